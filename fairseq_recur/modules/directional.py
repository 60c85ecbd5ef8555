"""Directional self-attention for the encoder, after DiSAN (Shen et al. 2018)."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from fairseq_recur.modules.context import Context, mask_as
from fairseq_recur.modules.self_attention import SelfAttention
from fairseq_recur.ops.attention import (
    directional_attention,
    directional_map,
    directional_masks,
)


class DirectionalSelfAttention(SelfAttention):
    """Half of the heads attend to earlier positions and half to later ones, all to their own.

    Hao et al. 2019, section 5.3: "a mask ... constrains the SAN to focus on forward or backward
    elements". It has no parameters of its own; the number of heads is even.
    """

    about = "Shen et al. 2018; encoder only"

    sides = ("encoder",)
    fused = True

    @classmethod
    def problems(cls, cfg: Any, side: str) -> Iterator[str]:
        """Heads that cannot be halved."""
        heads = getattr(cfg, f"{side}_attention_heads")
        if heads % 2:
            yield (
                f"--{side}-attention-heads {heads}: directional needs an even number of heads, one "
                "half for each direction"
            )

    def weights(self, query: Tensor, key: Tensor, mask: Tensor | None, context: Context) -> Tensor:
        """As in `SelfAttention.weights`."""
        return directional_map(query, key, self.masks(query, mask, context), self.scale)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, context: Context, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """As in `SelfAttention.attend`; by torch's fused kernel where no weights are needed."""
        if need_weights:
            return super().attend(query, key, value, context, need_weights)
        masks = self.masks(query, context.mask, context)
        dropout = self.dropout_probability
        return directional_attention(query, key, value, masks, dropout, self.scale), None

    def masks(self, query: Tensor, mask: Tensor | None, context: Context) -> tuple[Tensor, Tensor]:
        """The masks of both halves of the heads, the same in all layers; as in `weights`."""
        key = ("directional", query.size(2), query.dtype)
        return context.once(key, lambda: directional_masks(query, mask_as(mask, query.dtype)))
