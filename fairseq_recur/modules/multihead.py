"""What all attentions of the layers share: fairseq's parameters, with heads as a dimension."""

from collections.abc import Iterator
from typing import Any, ClassVar

from fairseq.models.transformer import TransformerConfig
from fairseq.modules import FairseqDropout, MultiheadAttention
from torch import Tensor

from fairseq_recur.modules.options import NoOptions
from fairseq_recur.modules.t5 import inner_width, is_t5, use_unbiased_projections
from fairseq_recur.modules.transformer_xl import is_transformer_xl


class MultiheadBase(MultiheadAttention):
    """fairseq's multi-head attention as a part: it takes a layer's input and its `Context`.

    The parameters are fairseq's, under their names, so that a stock checkpoint fits; around a
    T5 they are T5's, and the scores are not scaled.

    Args:
        cfg: the host's configuration
        side: "encoder" or "decoder"
        cross: whether keys and values are the encoder's output
        options: further arguments of fairseq's module
    """

    Options: ClassVar[type] = NoOptions
    """The options of this part: a dataclass, see `fairseq_recur.modules.options`."""

    covers: ClassVar[str] = ""
    """What the weights cover where they are not the whole result, for the title of a plot."""

    @property
    def has_weights(self) -> bool:
        """Whether there are attention weights, which a plot could show."""
        return True

    def __init__(
        self, cfg: TransformerConfig, side: str, cross: bool = False, **options: Any
    ) -> None:
        host = getattr(cfg, side)
        source_width = cfg.encoder.embed_dim if cross else host.embed_dim
        if cross:
            options = {"kdim": source_width, "vdim": source_width, **options}
        super().__init__(
            inner_width(cfg, side),
            host.attention_heads,
            dropout=cfg.attention_dropout,
            encoder_decoder_attention=cross,
            q_noise=cfg.quant_noise.pq,
            qn_block_size=cfg.quant_noise.pq_block_size,
            **options,
        )
        self.t5, widths = is_t5(cfg), (host.embed_dim, source_width)
        if self.t5:
            use_unbiased_projections(self, cfg, widths, (host.embed_dim * self.head_dim) ** -0.5)
            self.scaling = 1.0
        elif is_transformer_xl(cfg):
            use_unbiased_projections(self, cfg, widths, cfg.init_std, cfg.init_std)

    @classmethod
    def problems(cls, cfg: Any, side: str) -> Iterator[str]:
        """Problems with the combination of this part's options, one message each.

        Args:
            cfg: the model's options, flat
            side: the side on which this part is chosen
        """
        yield from ()

    def split(self, x: Tensor) -> Tensor:
        """Make the heads a dimension: (T, B, H D) to (B, H, T, D)."""
        return x.unflatten(2, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3)

    def output(
        self, heads: Tensor, weights: Tensor | None, per_head: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Project the heads' outputs, and bring the weights into fairseq's shape.

        Args:
            heads: their outputs (B, H, T, D)
            weights: (B, H, T, S), or None if they are not needed
            per_head: whether to return the weights of each head instead of their mean

        Returns:
            (T, B, C); and the weights (B, T, S), averaged over the heads, or (H, B, T, S)
        """
        out = self.out_proj(heads.permute(2, 0, 1, 3).flatten(2))
        if weights is None:
            return out, None
        return out, weights.transpose(0, 1) if per_head else weights.mean(dim=1)

    @property
    def scale(self) -> float | None:
        """What the scores are multiplied by: 1 around a T5; None for 1 / sqrt(D)."""
        return 1.0 if self.t5 else None

    @property
    def dropout_probability(self) -> float:
        """Probability of dropping a weight."""
        return probability(self.dropout_module)


def probability(module: FairseqDropout) -> float:
    """The probability with which values are dropped: 0 outside training, unless it is retained."""
    return module.p if module.training or module.apply_during_inference else 0.0


def uneven_heads(cfg: Any, side: str, own_width: int = 0) -> Iterator[str]:
    """No heads, or a width that the heads of *side* do not divide, where they share it.

    Those of a T5 and of a Transformer-XL may have heads of any width, *own_width*.
    """
    # A forecaster has one width for both sides.
    given = side if hasattr(cfg, f"{side}_embed_dim") else "encoder"
    width, heads = getattr(cfg, f"{given}_embed_dim"), getattr(cfg, f"{side}_attention_heads")
    if heads < 1:
        yield f"--{side}-attention-heads {heads}: expected at least 1"
    elif not own_width and width % heads:
        yield (
            f"--{given}-embed-dim {width} cannot be split evenly among --{side}-attention-heads "
            f"{heads}; choose a multiple of the heads"
        )
