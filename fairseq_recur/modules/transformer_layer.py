"""The encoder layer and the decoder layer with slots for their attentions, and with fusion."""

from dataclasses import replace
from typing import Any

import torch
from fairseq.models.transformer import TransformerConfig
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from torch import Tensor, nn

from fairseq_recur import compat
from fairseq_recur.modules.context import Context
from fairseq_recur.modules.fusion import LayerFusion
from fairseq_recur.modules.layers import feed_forward
from fairseq_recur.modules.parts import build_cross_attention, build_self_attention
from fairseq_recur.modules.t5 import is_t5, use_t5_sublayers


class EncoderLayer(TransformerEncoderLayerBase):
    """fairseq's layer, whose self-attention is the part that the configuration names.

    Around a T5 its norms and its feed-forward network are T5's.
    """

    ffn_layernorm = w_resid = None  # which only fairseq's decoder layer can have

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__(cfg)
        compat.disable_encoder_fastpath(self)
        if is_t5(cfg):
            use_t5_sublayers(self, cfg, "encoder")

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> nn.Module:
        """The part for the slot."""
        return build_self_attention(cfg, "encoder")

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """Self-attention, then the feed-forward network: (S, B, C) to the same shape."""
        residual = x
        if self.normalize_before:
            x, context = self.self_attn_layer_norm(x), with_normed_memory(self, context)
        x, _ = self.self_attn(x, context)
        x = self.residual_connection(self.dropout_module(x), residual)
        return feed_forward(self, x if self.normalize_before else self.self_attn_layer_norm(x))


class DecoderLayer(TransformerDecoderLayerBase):
    """fairseq's layer, whose attentions are the parts that the configuration names.

    With a fusion it has a fourth sub-layer that reads the recurrence encoder, between the
    attention over the Transformer encoder and the feed-forward network (Hao et al. 2019,
    section 3.2 and figure 4), or in place of that attention. Around a T5 its norms and its
    feed-forward network are T5's.

    Args:
        cfg: the host's configuration
        no_encoder_attn: leave out the cross-attention
        fusion: how the layer reads the recurrence encoder, or None
    """

    def __init__(
        self,
        cfg: TransformerConfig,
        no_encoder_attn: bool = False,
        fusion: LayerFusion | None = None,
    ) -> None:
        super().__init__(cfg, no_encoder_attn or (fusion is not None and fusion.replaces))
        self.fusion = fusion
        if is_t5(cfg):
            use_t5_sublayers(self, cfg, "decoder")
        if self.encoder_attn is not None and not self.encoder_attn.stock:
            # In evaluation fairseq asks every layer for weights that it throws away; a map over
            # a long source is what the parts save. The layer that is asked for gives them.
            self.need_attn = False

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig, **_: Any) -> nn.Module:
        """The part for the slot."""
        return build_self_attention(cfg, "decoder")

    def build_encoder_attention(self, embed_dim: int, cfg: TransformerConfig) -> nn.Module:
        """The part for the slot."""
        return build_cross_attention(cfg)

    def forward(
        self, x: Tensor, context: Context, need_attn: bool = False
    ) -> tuple[Tensor, Tensor | None, None]:
        """One layer.

        Args:
            x: (T, B, C) target states
            context: of the batch
            need_attn: return the weights of the cross-attention for each head

        Returns:
            states (T, B, C), attention weights or None, None
        """
        residual = x
        if self.normalize_before:
            x, context = self.self_attn_layer_norm(x), with_normed_memory(self, context)
        x = self.attend_to_itself(x, context)
        x = self.residual_connection(self.dropout_module(x), residual)
        if not self.normalize_before:
            x = self.self_attn_layer_norm(x)

        read, attention = x, None
        if self.encoder_attn is not None and context.encoder_out is not None:
            if self.normalize_before:
                read = self.encoder_attn_layer_norm(x)
            needed = need_attn or (not self.training and self.need_attn)
            read, attention = self.encoder_attn(
                read, context, need_weights=needed, need_head_weights=need_attn
            )
            read = self.residual_connection(self.dropout_module(read), x)
            if not self.normalize_before:
                read = self.encoder_attn_layer_norm(read)
        if self.fusion is not None:
            read = self.fusion.opened(read, self.fusion(x, read, context))
        return feed_forward(self, read), attention, None

    def attend_to_itself(self, x: Tensor, context: Context) -> Tensor:
        """The self-attention with fairseq's options around it: (T, B, C) to the same shape."""
        options = {}
        if self.cross_self_attention:
            assert context.encoder_out is not None
            saved = self.self_attn._get_input_buffer(context.incremental_state)
            cached = context.incremental_state is not None and "prev_key" in saved
            options["source"] = x if cached else torch.cat((context.encoder_out, x), dim=0)
        x, _ = self.self_attn(x, context, **options)
        if self.c_attn is not None:
            heads = x.unflatten(2, (self.nh, self.head_dim))
            x = torch.einsum("tbhd,h->tbhd", heads, self.c_attn).flatten(2)
        return x if self.attn_ln is None else self.attn_ln(x)


def with_normed_memory(layer: EncoderLayer | DecoderLayer, context: Context) -> Context:
    """The context of a pre-norm layer, whose memory holds inputs of the layer, as its x is one."""
    if context.memory is None:
        return context
    return replace(context, memory=layer.self_attn_layer_norm(context.memory))
