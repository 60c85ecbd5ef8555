"""Scaled dot-product attention: its map, its outputs, and its directional variant.

The map holds the probabilities (B, H, T, S). `read_values` computes outputs from any map;
`dot_product_attention` computes them with torch's fused kernel, which never stores the map.
T5's attention is the same function: its relative position bias is part of the mask.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_recur.ops.precision import at_least_float32, no_autocast


def attention_map(
    query: Tensor, key: Tensor, mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """softmax(Q K^T / sqrt(D) + mask) (Vaswani et al. 2017, eq. 1).

    The scores are computed in the dtype of the inputs, the softmax in float32 or higher. Large
    scores exceed float16's range: pass float32 inputs where that can happen.

    Args:
        query: (B, H, T, D), unscaled
        key: (B, H, S, D)
        mask: additive, broadcastable to (B, H, T, S), or None
        scale: factor of the scores in place of 1 / sqrt(D), or None

    Returns:
        (B, H, T, S) in float32 or higher
    """
    query = query * (query.size(-1) ** -0.5 if scale is None else scale)
    scores = at_least_float32(torch.matmul(query, key.transpose(-1, -2)))
    return torch.softmax(scores if mask is None else scores + mask, dim=-1)


def read_values(weights: Tensor, value: Tensor, dropout: float = 0.0) -> Tensor:
    """The outputs of an attention map: dropout(weights) V, computed in float32 or higher.

    Args:
        weights: (B, H, T, S) in float32 or higher
        value: (B, H, S, D)
        dropout: probability of dropping a weight (0 outside training)

    Returns:
        (B, H, T, D) in the dtype of *value*
    """
    with no_autocast(value):
        return torch.matmul(F.dropout(weights, dropout), at_least_float32(value)).to(value.dtype)


def dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(Q K^T / sqrt(D) + mask) V by torch's fused kernel (Vaswani et al. 2017, eq. 1).

    Args:
        query: (B, H, T, D), unscaled
        key, value: (B, H, S, D)
        mask: additive, or bool with True at visible keys; broadcastable to (B, H, T, S); or None
        dropout: probability of dropping a weight (0 outside training)
        causal: hide later keys without a mask, which is faster; *mask* must be None
        scale: as in `attention_map`

    Returns:
        (B, H, T, D); zero for a query that a bool mask hides all keys from
    """
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(query.dtype)
    return F.scaled_dot_product_attention(query, key, value, mask, dropout, causal, scale=scale)


def stores_map(query: Tensor, mask: Tensor | None, dropout: float) -> bool:
    """Whether `dot_product_attention` stores the map, because torch's kernel cannot be used.

    That for CPUs has no dropout, and no gradient of a mask such as T5's position bias.

    Args:
        query: (B, H, T, D); only its device is used
        mask, dropout: as in `dot_product_attention`
    """
    learned = mask is not None and mask.requires_grad
    return query.device.type == "cpu" and (dropout > 0 or learned)


def directional_masks(query: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The masks of the forward and of the backward half of the heads (Shen et al. 2018).

    The first half sees the keys j <= i and the second half the keys j >= i. In contrast to the
    paper, both see the query's own position.

    Args:
        query: (B, H, T, D); only its length, dtype and device are used
        mask: additive, broadcastable to (B, H, T, T), or None

    Returns:
        two additive masks, broadcastable to (B, H / 2, T, T), in the dtype of *query*
    """
    lowest, length = torch.finfo(query.dtype).min, query.size(2)
    forward = backward = query.new_zeros(1, 1) if mask is None else mask.to(query.dtype)
    if mask is not None and mask.dim() > 2 and mask.size(-3) > 1:
        forward, backward = forward.chunk(2, dim=-3)
    later = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
    return forward.masked_fill(later, lowest), backward.masked_fill(later.t(), lowest)


def directional_map(
    query: Tensor, key: Tensor, masks: tuple[Tensor, Tensor], scale: float | None = None
) -> Tensor:
    """The map of `directional_attention`: (B, H, T, T) in float32 or higher; as `attention_map`."""
    halves = zip(query.chunk(2, dim=1), key.chunk(2, dim=1), masks)
    return torch.cat([attention_map(*half, scale) for half in halves], dim=1)


def directional_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    masks: tuple[Tensor, Tensor],
    dropout: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """Self-attention with the `directional_masks`, by torch's fused kernel (Shen et al. 2018).

    Other arguments and result as for `dot_product_attention`, with S = T and H even.
    """
    halves = zip(*(x.chunk(2, dim=1) for x in (query, key, value)), masks)
    return torch.cat(
        [dot_product_attention(q, k, v, m, dropout, scale=scale) for q, k, v, m in halves], dim=1
    )
