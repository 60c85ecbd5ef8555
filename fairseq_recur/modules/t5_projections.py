"""T5's linear layers and norms: no biases, no means, weights of T5's initial sizes.

The standard deviations are those of Mesh TensorFlow's T5, with which its learning rates were
found: every product begins with the variance of its input, and the queries are small instead
of the scores being divided by sqrt(D).
"""

from typing import Any

from fairseq import utils
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import MultiheadAttention
from fairseq.modules.quant_noise import quant_noise
from torch import Tensor, nn


def is_t5(cfg: Any) -> bool:
    """Whether a model's host has T5's arithmetic; *cfg* of a language model knows no hosts."""
    return getattr(cfg, "host", "transformer") == "t5"


def inner_width(cfg: Any, side: str) -> int:
    """H D of a side's attentions: the side's width, unless T5's heads have their own."""
    options = getattr(cfg, side)
    if is_t5(cfg) and cfg.t5_head_dim:
        return options.attention_heads * cfg.t5_head_dim
    return options.embed_dim


def t5_linear(
    cfg: TransformerConfig, width_in: int, width_out: int, std: float | None = None
) -> nn.Module:
    """A linear layer without bias, its weights of deviation *std*, by default width_in^-1/2."""
    layer = nn.Linear(width_in, width_out, bias=False)
    nn.init.normal_(layer.weight, std=width_in**-0.5 if std is None else std)
    return quant_noise(layer, cfg.quant_noise.pq, cfg.quant_noise.pq_block_size)


def t5_norm(width: int) -> nn.Module:
    """Root mean square norm with a scale, computed in float32 under half precision."""
    return nn.RMSNorm(width, eps=1e-6)


def use_t5_projections(
    attention: MultiheadAttention, cfg: TransformerConfig, width: int, source_width: int
) -> None:
    """Give an attention T5's arithmetic: plain products, and matrices of the inner width.

    Args:
        attention: fairseq's, built with ``embed_dim`` H D, see `inner_width`
        cfg: the host's configuration
        width: of the queries and of the output
        source_width: of what the keys and values are made of
    """
    inner = attention.embed_dim
    attention.q_proj = t5_linear(cfg, width, inner, (width * attention.head_dim) ** -0.5)
    attention.k_proj = t5_linear(cfg, source_width, inner)
    attention.v_proj = t5_linear(cfg, source_width, inner)
    attention.out_proj = t5_linear(cfg, inner, width)
    attention.scaling = 1.0
    attention.skip_embed_dim_check = True


class GatedProjection(nn.Module):
    """f(W_0 x) * (W_1 x): the first half of T5 v1.1's feed-forward network (Shazeer 2020).

    Args:
        cfg: the host's configuration, whose ``activation_fn`` is f
        width: of x
        inner: of the result
    """

    def __init__(self, cfg: TransformerConfig, width: int, inner: int) -> None:
        super().__init__()
        self.gate = t5_linear(cfg, width, inner)
        self.value = t5_linear(cfg, width, inner)
        self.activation_fn = utils.get_activation_fn(cfg.activation_fn)

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) to (..., F)."""
        return self.activation_fn(self.gate(x)) * self.value(x)


def use_t5_sublayers(layer: nn.Module, cfg: TransformerConfig, side: str) -> None:
    """Give a layer T5's feed-forward network and norms, under fairseq's names for them."""
    options = getattr(cfg, side)
    width, inner = options.embed_dim, options.ffn_embed_dim
    if cfg.t5_gated:
        layer.fc1, layer.activation_fn = GatedProjection(cfg, width, inner), nn.Identity()
    else:
        layer.fc1 = t5_linear(cfg, width, inner)
        layer.activation_fn = utils.get_activation_fn(cfg.activation_fn)
    layer.fc2 = t5_linear(cfg, inner, width)
    layer.self_attn_layer_norm = t5_norm(width)
    layer.final_layer_norm = t5_norm(width)
    if getattr(layer, "encoder_attn", None) is not None:
        layer.encoder_attn_layer_norm = t5_norm(width)
