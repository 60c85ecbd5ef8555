"""Self-attention with the learned relative positions of Shaw et al. 2018."""

from dataclasses import dataclass

import torch
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_recur.modules.context import Context, mask_as
from fairseq_recur.modules.mixture import Mixture
from fairseq_recur.modules.options import option
from fairseq_recur.modules.part import FreshWeights
from fairseq_recur.modules.self_attention import SelfAttention
from fairseq_recur.ops.shaw import relative_attention, table_rows


class RelativePositions(FreshWeights, nn.Module):
    """A key vector and a value vector for each lag up to a limit and head, "edge labels".

    Args:
        slot: the slot of the attention that it belongs to
        heads: H
        width: D
        clip: longer lags share the vectors of this one; 16 in the paper
        causal: whether there are no later keys
    """

    def __init__(self, slot: str, heads: int, width: int, clip: int, causal: bool) -> None:
        super().__init__()
        self.slot, self.clip, self.causal = slot, clip, causal
        rows = clip + 1 if causal else 2 * clip + 1
        self.key = nn.Parameter(torch.empty(heads, rows, width))
        self.value = nn.Parameter(torch.empty(heads, rows, width))
        for head in (*self.key.detach(), *self.value.detach()):
            nn.init.xavier_uniform_(head)

    def tables(self) -> tuple[Tensor, Tensor]:
        """The vectors for lags -clip ... clip, (H, 2 clip + 1, D); of hidden later keys 0."""
        if not self.causal:
            return self.key, self.value
        key, value = (nn.functional.pad(t, (0, 0, 0, self.clip)) for t in (self.key, self.value))
        return key, value


class RelativeSelfAttention(SelfAttention):
    """Attention whose keys and values know their distance (Shaw et al. 2018, eqs. 3-5)."""

    about = "Shaw et al. 2018"

    @dataclass
    class Options:
        """Options of the relative positions."""

        relative_clip: int = option(
            16, "largest distance with vectors of its own; longer ones share them", (1, 2**16)
        )

    has_map = False
    reads_memory = True

    def __init__(self, cfg: TransformerConfig, side: str, mixture: Mixture | None) -> None:
        super().__init__(cfg, side, mixture)
        self.positions = RelativePositions(
            f"{side} self-attention", self.num_heads, self.head_dim, cfg.relative_clip, self.causal
        )

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, context: Context, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """As in `SelfAttention.attend`."""
        tables, dropout = self.positions.tables(), self.dropout_probability
        mask = mask_as(context.mask, torch.promote_types(query.dtype, torch.float32))
        pairs = query.size(2), key.size(2), tables[0].size(1), query.device
        row = context.once(("table_rows", *pairs), lambda: table_rows(*pairs))
        return relative_attention(query, key, value, *tables, row, mask, dropout, self.scale)
