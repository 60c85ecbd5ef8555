"""The encoder layer with a slot for its self-attention."""

from fairseq.models.transformer import TransformerConfig
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch import Tensor, nn

from fairseq_recur import compat
from fairseq_recur.modules.context import Context
from fairseq_recur.modules.parts import build_self_attention
from fairseq_recur.modules.t5 import is_t5, use_t5_sublayers


class EncoderLayer(TransformerEncoderLayerBase):
    """fairseq's layer, whose self-attention is the part that the configuration names.

    Around a T5 its norms and its feed-forward network are T5's.
    """

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__(cfg)
        compat.disable_encoder_fastpath(self)
        if is_t5(cfg):
            use_t5_sublayers(self, cfg, "encoder")

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> nn.Module:
        """The part for the slot."""
        return build_self_attention(cfg, "encoder")

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """Self-attention and feed-forward network, each with norm and residual connection.

        Args:
            x: (S, B, C)
            context: of the batch

        Returns:
            (S, B, C)
        """
        residual = x
        if self.normalize_before:
            x = self.self_attn_layer_norm(x)
        x, _ = self.self_attn(x, context)
        x = self.residual_connection(self.dropout_module(x), residual)
        if not self.normalize_before:
            x = self.self_attn_layer_norm(x)

        residual = x
        if self.normalize_before:
            x = self.final_layer_norm(x)
        x = self.activation_dropout_module(self.activation_fn(self.fc1(x)))
        x = self.residual_connection(self.dropout_module(self.fc2(x)), residual)
        return x if self.normalize_before else self.final_layer_norm(x)
