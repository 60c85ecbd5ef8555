"""fairseq's Transformer decoder layer with slots for its attentions, and with fusion."""

from collections.abc import Callable
from typing import Any

from fairseq.models.transformer import TransformerConfig
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import Tensor, nn

from fairseq_recur.modules.fusion import IncrementalState
from fairseq_recur.modules.parts import CROSS_ATTENTION, FUSION, SELF_ATTENTION
from fairseq_recur.modules.segmented_attention import SegmentedAttention
from fairseq_recur.modules.t5_attention import T5CrossAttention, T5SelfAttention
from fairseq_recur.modules.t5_projections import is_t5, use_t5_sublayers

Output = tuple[Tensor, Tensor | None]


class DecoderLayer(TransformerDecoderLayerBase):
    """A layer whose attentions are the parts that the configuration names.

    In a T5 its norms, its feed-forward network and the attentions named "dot" are T5's.
    """

    fuses_recurrence = False

    def __init__(self, cfg: TransformerConfig, no_encoder_attn: bool = False) -> None:
        super().__init__(cfg, no_encoder_attn)
        if is_t5(cfg):
            use_t5_sublayers(self, cfg, "decoder")
        if isinstance(self.encoder_attn, SegmentedAttention):
            # In evaluation fairseq asks every layer for weights that it throws away; a map over
            # a long source is what this part saves. The layer that is asked for gives them.
            self.need_attn = False

    def build_self_attention(
        self, embed_dim: int, cfg: TransformerConfig, **options: bool
    ) -> nn.Module:
        """The part named by ``decoder_self_attention``; "dot" is fairseq's own module."""
        stock = super().build_self_attention
        build = SELF_ATTENTION[cfg.decoder_self_attention]
        if is_t5(cfg):
            return build(cfg, "decoder", lambda: T5SelfAttention(cfg, "decoder"))
        return build(cfg, "decoder", lambda: stock(embed_dim, cfg, **options))

    def build_encoder_attention(self, embed_dim: int, cfg: TransformerConfig) -> nn.Module:
        """The part named by ``cross_attention``; "dot" is fairseq's own module."""
        stock = super().build_encoder_attention
        build = CROSS_ATTENTION[cfg.cross_attention]
        if is_t5(cfg):
            return build(cfg, "decoder", lambda: T5CrossAttention(cfg))
        return build(cfg, "decoder", lambda: stock(embed_dim, cfg))

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """One layer; arguments and results are those of fairseq's decoder layer."""
        if not isinstance(self.encoder_attn, SegmentedAttention):
            return self.sublayers(x, *args, **kwargs)
        with self.encoder_attn.knowing_references(kwargs.get("self_attn_padding_mask")):
            return self.sublayers(x, *args, **kwargs)

    def sublayers(self, x: Tensor, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The layer itself: fairseq's."""
        return super().forward(x, *args, **kwargs)


class FusedDecoderLayer(DecoderLayer):
    """A decoder layer with a fourth sub-layer that reads the recurrence encoder.

    Hao et al. 2019, section 3.2 and figure 4: between the attention over the Transformer
    encoder and the feed-forward network.
    """

    fuses_recurrence = True

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__(cfg)
        self.fusion = FUSION[cfg.recurrence_fusion](cfg)

    def sublayer(self, x: Tensor, norm: nn.Module, function: Callable[[Tensor], Output]) -> Output:
        """LN(function(x) + x), or function(LN(x)) + x where the host normalises before."""
        residual = x
        if self.normalize_before:
            x = norm(x)
        x, attention = function(x)
        x = self.residual_connection(self.dropout_module(x), residual)
        return (x if self.normalize_before else norm(x)), attention

    def feed_forward(self, x: Tensor) -> Output:
        """The position-wise network, without its residual connection."""
        return self.fc2(self.activation_dropout_module(self.activation_fn(self.fc1(x)))), None

    def sublayers(
        self,
        x: Tensor,
        encoder_out: Tensor,
        encoder_padding_mask: Tensor | None,
        incremental_state: IncrementalState,
        self_attn_mask: Tensor | None = None,
        self_attn_padding_mask: Tensor | None = None,
        need_attn: bool = False,
        need_head_weights: bool = False,
        recurrence_out: Tensor | None = None,
        recurrence_padding_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, None]:
        """One layer, as in fairseq's decoder layer.

        Args:
            x: (T, B, C) target states
            encoder_out: (S, B, C) output of the Transformer encoder
            encoder_padding_mask: (B, S) bool or None
            incremental_state: fairseq's, of incremental decoding
            self_attn_mask: (T, T) additive causal mask; None in incremental decoding
            self_attn_padding_mask: (B, T) bool or None
            need_attn: return the attention weights over the Transformer encoder
            need_head_weights: return them for each head
            recurrence_out: (L', B, 2C) output of the recurrence encoder
            recurrence_padding_mask: (B, L') bool or None

        Returns:
            states (T, B, C), attention weights or None, None
        """
        c, _ = self.sublayer(
            x,
            self.self_attn_layer_norm,
            lambda y: self.self_attn(
                query=y,
                key=y,
                value=y,
                key_padding_mask=self_attn_padding_mask,
                incremental_state=incremental_state,
                need_weights=False,
                attn_mask=self_attn_mask,
            ),
        )
        d, attention = self.sublayer(
            c,
            self.encoder_attn_layer_norm,
            lambda y: self.encoder_attn(
                query=y,
                key=encoder_out,
                value=encoder_out,
                key_padding_mask=encoder_padding_mask,
                incremental_state=incremental_state,
                static_kv=True,
                need_weights=need_attn or (not self.training and self.need_attn),
                need_head_weights=need_head_weights,
            ),
        )
        with self.fusion.knowing_targets(self_attn_padding_mask):
            fused = self.fusion(c, d, recurrence_out, recurrence_padding_mask, incremental_state)
        x, _ = self.sublayer(fused, self.final_layer_norm, self.feed_forward)
        return x, attention, None
