"""T5's layers: linear maps without bias, norms without mean, position bias (Raffel et al. 2020).

The standard deviations are those of Mesh TensorFlow's T5, for which its learning rates were
found. Every product starts with the variance of its input, and the queries are small instead of
the scores being divided by sqrt(D).
"""

from typing import Any

import torch
from fairseq import utils
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import MultiheadAttention
from fairseq.modules.quant_noise import quant_noise
from torch import Tensor, nn

from fairseq_recur.ops.t5_buckets import bucket_starts, relative_buckets


def is_t5(cfg: Any) -> bool:
    """Whether a model's host has T5's arithmetic."""
    return bool(cfg.host == "t5")


def own_head_width(cfg: Any, host: str, side: str) -> int:
    """The width of a head where an option of the host sets it; 0 where heads share a width."""
    if host == "t5":
        return int(cfg.t5_head_dim)
    return int(cfg.decoder_head_dim) if (host, side) == ("transformer_xl", "decoder") else 0


def inner_width(cfg: Any, side: str) -> int:
    """H D of a side's attentions: the side's width, unless heads have a width of their own."""
    options, own = getattr(cfg, side), own_head_width(cfg, cfg.host, side)
    return int(options.attention_heads * own if own else options.embed_dim)


def t5_linear(
    cfg: TransformerConfig, width_in: int, width_out: int, std: float | None = None
) -> nn.Module:
    """A linear layer without bias; its weights have deviation *std*, by default width_in^-1/2."""
    layer = nn.Linear(width_in, width_out, bias=False)
    nn.init.normal_(layer.weight, std=width_in**-0.5 if std is None else std)
    return quant_noise(layer, cfg.quant_noise.pq, cfg.quant_noise.pq_block_size)


def use_unbiased_projections(
    attention: MultiheadAttention,
    cfg: TransformerConfig,
    widths: tuple[int, int],
    query_std: float,
    std: float | None = None,
) -> None:
    """Give an attention projections of the inner width without biases.

    Args:
        attention: fairseq's, built with ``embed_dim`` H D, see `inner_width`
        cfg: the host's configuration
        widths: of the queries and the output, and of the input of the keys and values
        query_std, std: deviations of the queries' matrix and of the others, see `t5_linear`
    """
    inner, (width, source_width) = attention.embed_dim, widths
    attention.q_proj = t5_linear(cfg, width, inner, query_std)
    attention.k_proj = t5_linear(cfg, source_width, inner, std)
    attention.v_proj = t5_linear(cfg, source_width, inner, std)
    attention.out_proj = t5_linear(cfg, inner, width, std)
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
    layer.self_attn_layer_norm = nn.RMSNorm(width, eps=1e-6)
    layer.final_layer_norm = nn.RMSNorm(width, eps=1e-6)
    if getattr(layer, "encoder_attn", None) is not None:
        layer.encoder_attn_layer_norm = nn.RMSNorm(width, eps=1e-6)


class RelativePositionBias(nn.Module):
    """A number per head and bucket of distances, added to the scores of self-attention.

    Raffel et al. 2020, section 2.1. A stack has one, which all of its layers share.

    Args:
        cfg: the host's configuration
        side: "encoder", where half of the buckets are for later keys, or "decoder"
    """

    starts: Tensor

    def __init__(self, cfg: TransformerConfig, side: str) -> None:
        super().__init__()
        self.bidirectional = side == "encoder"
        options, buckets = getattr(cfg, side), cfg.t5_relative_buckets
        self.weight = nn.Parameter(torch.empty(buckets, options.attention_heads))
        nn.init.normal_(self.weight, std=options.embed_dim**-0.5)
        starts = bucket_starts(
            buckets // 2 if self.bidirectional else buckets, cfg.t5_relative_max_distance
        )
        self.register_buffer("starts", torch.tensor(starts), persistent=False)

    def forward(self, queries: int, keys: int) -> Tensor:
        """The bias of the last *queries* of *keys* positions over all of them: (H, T, S)."""
        lag = torch.arange(1 - keys, queries, device=self.weight.device)
        band = self.weight[relative_buckets(lag, self.starts, self.bidirectional)]
        # Row i of the map is the window of the band that begins T - 1 - i from its start.
        return band.t().unfold(-1, keys, 1).flip(1)
