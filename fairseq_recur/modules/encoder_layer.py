"""fairseq's Transformer encoder layer with a slot for its self-attention."""

from fairseq.models.transformer import TransformerConfig
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch import nn

from fairseq_recur import compat
from fairseq_recur.modules.parts import SELF_ATTENTION


class EncoderLayer(TransformerEncoderLayerBase):
    """A layer whose self-attention is the part named by ``encoder_self_attention``."""

    def __init__(self, cfg: TransformerConfig, return_fc: bool = False) -> None:
        super().__init__(cfg, return_fc)
        compat.disable_encoder_fastpath(self)

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> nn.Module:
        """The part for the slot; "dot" is fairseq's own module."""
        stock = super().build_self_attention
        build = SELF_ATTENTION[cfg.encoder_self_attention]
        return build(cfg, "encoder", lambda: stock(embed_dim, cfg))
