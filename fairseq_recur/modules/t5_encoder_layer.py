"""T5's encoder layer."""

from typing import Any

from fairseq.models.transformer import TransformerConfig
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from fairseq_recur.modules.parts import SELF_ATTENTION
from fairseq_recur.modules.t5_attention import T5SelfAttention
from fairseq_recur.modules.t5_projections import use_t5_sublayers


class T5EncoderLayer(nn.Module):
    """Self-attention and feed-forward network, each normalised before (Raffel et al. 2020).

    Not fairseq's layer with other parts, as the decoder's is: fairseq's encoder layer takes
    a mask for a choice of keys, and would turn a bias into one. The names are fairseq's.

    Args:
        cfg: the host's configuration
    """

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__()
        build = SELF_ATTENTION[cfg.encoder_self_attention]
        self.self_attn = build(cfg, "encoder", lambda: T5SelfAttention(cfg, "encoder"))
        use_t5_sublayers(self, cfg, "encoder")
        name = type(self).__name__
        self.dropout_module = FairseqDropout(cfg.dropout, module_name=name)
        self.activation_dropout_module = FairseqDropout(
            float(cfg.activation_dropout), module_name=name
        )

    def forward(self, x: Tensor, padding_mask: Tensor | None, position_bias: Tensor) -> Tensor:
        """One layer.

        Args:
            x: (S, B, C)
            padding_mask: (B, S) bool, True at padding, or None
            position_bias: (H, S, S)

        Returns:
            (S, B, C)
        """
        y = self.self_attn_layer_norm(x)
        y, _ = self.self_attn(
            query=y,
            key=y,
            value=y,
            key_padding_mask=padding_mask,
            need_weights=False,
            attn_mask=position_bias,
        )
        x = x + self.dropout_module(y)
        y = self.activation_fn(self.fc1(self.final_layer_norm(x)))
        y = self.fc2(self.activation_dropout_module(y))
        return x + self.dropout_module(y)

    def upgrade_state_dict_named(self, state_dict: dict[str, Any], name: str) -> None:
        """Called by fairseq's encoder to rename what old checkpoints have; none has a T5."""
