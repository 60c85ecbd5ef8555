"""Attention over the encoder's output as fairseq has it, optionally mixed with matrices."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from fairseq.models.transformer import TransformerConfig
from fairseq.modules import MultiheadAttention
from torch import Tensor

from fairseq_recur.modules.context import Context, IncrementalState, Source
from fairseq_recur.modules.cross_mixture import CrossRecurrenceEncodingMatrices
from fairseq_recur.modules.multihead import MultiheadBase
from fairseq_recur.modules.options import flag, option
from fairseq_recur.ops.attention import dot_product_attention
from fairseq_recur.ops.padding import restore_order


class CrossAttention(MultiheadBase):
    """What the parts for cross-attention share.

    Args:
        cfg: the host's configuration
        mixture: P and its gate (Huang et al. 2023, appendix D.2), for a part that is `mixable`; or
            None
    """

    mixable: ClassVar[bool] = False
    """Whether a mixture has an effect; only then the part is built with one."""

    reads_segments: ClassVar[bool] = False
    """Whether it reads `Context.segments`, which a method `segments` makes once per batch."""

    def __init__(
        self, cfg: TransformerConfig, mixture: CrossRecurrenceEncodingMatrices | None = None
    ) -> None:
        super().__init__(
            cfg, "decoder", cross=True, xformers_att_config=cfg.encoder.xformers_att_config
        )
        self.mixture = mixture

    @property
    def stock(self) -> bool:
        """Whether fairseq's own arithmetic is used, which has the weights in any case.

        Any other part is asked for its weights only where they are read: in training, where a
        criterion names the layer.
        """
        return False

    @property
    def reads_source(self) -> bool:
        """Whether it reads `Context.source`."""
        return True

    @classmethod
    def problems(cls, cfg: Any, side: str) -> Iterator[str]:
        """Options of fairseq that cannot be combined with a part of this slot."""
        for name in ("no_cross_attention", "cross_self_attention"):
            if getattr(cfg, name):
                yield (
                    f"{flag(name)} cannot be combined with "
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
    """Scaled dot products, optionally mixed with matrices over the times of target and source.

    Without a mixture it is fairseq's own module. Around a T5 the scores are not scaled.
    """

    about = "standard"

    mixable = True

    @dataclass
    class Options:
        """Options of the dot products."""

        cross_attention_fused: bool = option(
            False,
            "use torch's fused kernel in the cross-attention when its weights are not needed: it "
            "does not store the S x T map, and is faster with thousands of source tokens; results "
            "differ from fairseq's by rounding; in training the model returns no attention weights "
            "unless a criterion names an alignment layer",
            needs={"cross_attention_mixture": ("none",)},
        )

    def __init__(
        self, cfg: TransformerConfig, mixture: CrossRecurrenceEncodingMatrices | None = None
    ) -> None:
        super().__init__(cfg, mixture)
        self.fused: bool = cfg.cross_attention_fused

    @property
    def stock(self) -> bool:
        """As in `CrossAttention`."""
        return self.mixture is None and not self.fused

    @property
    def reads_source(self) -> bool:
        """As in `CrossAttention`; for fairseq's own arithmetic `Context.encoder_out` is enough."""
        return not self.stock

    @classmethod
    def problems(cls, cfg: Any, side: str) -> Iterator[str]:
        """None: fairseq itself reports the options that its module does not support."""
        yield from ()

    @classmethod
    def unread_options(cls, cfg: Any, side: str) -> Iterator[tuple[str, str]]:
        """The option of a sub-layer that is left out; --cross-self-attention alone keeps it."""
        if getattr(cfg, "no_cross_attention", False):
            yield "cross_attention_fused", "--no-cross-attention leaves out what it would change"

    def forward(
        self,
        x: Tensor,
        context: Context,
        need_weights: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As in `CrossAttention.forward`."""
        if self.mixture is not None:
            query, needed = self.split(self.q_proj(x)), need_weights or need_head_weights
            way = self.all_steps if context.incremental_state is None else self.one_step
            out, weights = way(query, context, needed)
            return self.output(out, weights if needed else None, need_head_weights)
        if self.fused and context.incremental_state is None and not need_weights:
            return self.fused_products(x, context)
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

    def fused_products(self, x: Tensor, context: Context) -> tuple[Tensor, None]:
        """Every position of *x* (T, B, C) by torch's fused kernel: (T, B, C), no weights."""
        assert context.source is not None
        states, padding = context.encoder_out, context.source.padding
        query = self.split(self.q_proj(x))
        key, value = self.split(self.k_proj(states)), self.split(self.v_proj(states))
        # Without a mask torch has the faster kernels.
        visible = None if padding is None else ~padding.mask[:, None, None]
        dropout = self.dropout_probability
        out = dot_product_attention(query, key, value, visible, dropout, scale=self.scale)
        return self.output(out, None, False)[0], None

    def all_steps(
        self, query: Tensor, context: Context, needed: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Teacher forcing: (B, H, T, D) to the same shape, and the map (B, H, T, S) if *needed*."""
        mixture, source, order = self.mixture, context.source, None
        assert mixture is not None and source is not None
        if context.padding is not None and not context.padding.trailing:
            order = context.padding.order[:, None, :, None]
            query = query.gather(2, order.expand_as(query))
        hidden = None if source.padding is None else source.padding.ordered_mask
        key, value = self.keys_and_values(source)
        out, weights = mixture.mix_source(self, query, key, value, hidden, context, needed)
        if order is not None:
            out = restore_order(out, order, 2)
            weights = None if weights is None else restore_order(weights, order, 2)
        if weights is not None and source.padding is not None:
            weights = restore_order(weights, source.padding.order[:, None, None], 3)
        return out, weights

    def one_step(
        self, query: Tensor, context: Context, needed: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The newest position: (B, H, 1, D) as *query*, and the map (B, H, 1, S) if *needed*.

        Keys and values are computed at the first position, once per sentence, and stay where they
        are. The rows of a beam are queries at the same time.
        """
        mixture, source, state = self.mixture, context.source, context.incremental_state
        assert mixture is not None and source is not None
        saved = self.get_incremental_state(state, "source")
        if saved is None:
            saved = dict(zip(("key", "value"), self.keys_and_values(source)))
            self.set_incremental_state(state, "source", saved)
        rows, padding = source.groups, source.padding
        hidden = None if padding is None else padding.ordered_mask[rows]
        queries = source.beams_as_queries(query)
        key, value = source.of_groups(saved["key"]), source.of_groups(saved["value"])
        out, weights = mixture.mix_source(self, queries, key, value, hidden, context, needed)
        if weights is not None and padding is not None:
            weights = restore_order(weights, padding.order[rows][:, None, None], 3)
        if weights is not None:
            weights = source.queries_as_beams(weights)
        return source.queries_as_beams(out), weights

    def keys_and_values(self, source: Source) -> tuple[Tensor, Tensor]:
        """(U, H, S, D) each, the real tokens first, the values zero at padding."""
        states, padding = source.states, source.padding
        if padding is not None:
            states = states.gather(0, padding.order.t().unsqueeze(2).expand_as(states))
        key, value = self.split(self.k_proj(states)), self.split(self.v_proj(states))
        if padding is not None:
            value = value.masked_fill(padding.ordered_mask[:, None, :, None], 0.0)
        return key, value

    def reorder_incremental_state(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> None:
        """With a mixture nothing moves: what is stored belongs to sentences, not to rows."""
        if self.mixture is None:
            super().reorder_incremental_state(incremental_state, new_order)
