"""Attention over the encoder's output as fairseq has it."""

from collections.abc import Iterator
from typing import Any

from fairseq.models.transformer import TransformerConfig
from fairseq.modules import MultiheadAttention
from torch import Tensor

from fairseq_recur.modules.context import Context
from fairseq_recur.modules.multihead import MultiheadBase


class CrossAttention(MultiheadBase):
    """What the parts for cross-attention share.

    Args:
        cfg: the host's configuration
    """

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__(
            cfg, "decoder", cross=True, xformers_att_config=cfg.encoder.xformers_att_config
        )

    @classmethod
    def problems(cls, cfg: Any, side: str) -> Iterator[str]:
        """Options of fairseq that leave no place for a part of this slot."""
        for name in ("no_cross_attention", "cross_self_attention"):
            if getattr(cfg, name):
                yield (
                    f"--{name.replace('_', '-')} leaves no place for "
                    f"--cross-attention {cfg.cross_attention}; leave one out"
                )

    def forward(
        self,
        x: Tensor,
        context: Context,
        need_weights: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from each position of *x* to the encoder's output.

        Args:
            x: (T, B, C); in incremental decoding the newest position
            context: of the batch
            need_weights: return the attention weights, averaged over the heads
            need_head_weights: return the attention weights of each head

        Returns:
            (T, B, C), and attention weights: (B, T, S), or (H, B, T, S) per head; None where
            they are not computed
        """
        raise NotImplementedError(type(self).__name__)


class DotCrossAttention(CrossAttention):
    """fairseq's own module; around a T5 its scores are not scaled."""

    @classmethod
    def problems(cls, cfg: Any, side: str) -> Iterator[str]:
        """None: what fairseq's module does not go with, fairseq says itself."""
        yield from ()

    def forward(
        self,
        x: Tensor,
        context: Context,
        need_weights: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As in `CrossAttention.forward`."""
        return MultiheadAttention.forward(
            self,
            query=x,
            key=context.encoder_out,
            value=context.encoder_out,
            key_padding_mask=context.encoder_padding,
            incremental_state=context.incremental_state,
            static_kv=True,
            need_weights=need_weights,
            need_head_weights=need_head_weights,
        )
