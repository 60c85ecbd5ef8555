"""Self-attention mixed with a matrix that depends on positions alone: three forms of one sum.

    O = (1 - g) softmax(Q K^T / sqrt(D) + mask) V + g P V        (Huang et al. 2023, eq. 4)

V must be zero at padded keys: the softmax does not read them, and P would.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_recur.ops.precision import at_least_float32, no_autocast


def attention_map(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(Q K^T / sqrt(D) + mask), (B, H, T, S) in float32 or more, of (B, H, T or S, D)."""
    scores = at_least_float32(torch.matmul(query * query.size(-1) ** -0.5, key.transpose(-1, -2)))
    return torch.softmax(scores if mask is None else scores + mask, dim=-1)


def mixed_map(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    matrix: Tensor,
    gate: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    drop_mixed: bool = False,
) -> tuple[Tensor, Tensor]:
    """The sum as one map, then one product with V: the form for short sequences.

    Args:
        query: (B, H, T, D), not scaled
        key, value: (B, H, S, D)
        matrix: (H, T, S) or (B, H, T, S), P in float32 or more
        gate: (H, 1, 1), 0 for ordinary heads
        mask: additive, broadcastable to (B, H, T, S), or None
        dropout: probability of dropping an entry of the softmax (0 outside training)
        drop_mixed: drop entries of the mixed map instead of the softmax

    Returns:
        (B, H, T, D) in the dtype of *value*, and the map (B, H, T, S) before any dropout
        of it
    """
    with no_autocast(value):
        # As torch's fused attention does: large scores would leave float16's range.
        weights = attention_map(at_least_float32(query), at_least_float32(key), mask)
        dropped = weights if drop_mixed else F.dropout(weights, dropout)
        mixed = torch.addcmul(gate * matrix, dropped, 1 - gate)
        used = F.dropout(mixed, dropout) if drop_mixed else mixed
        return torch.matmul(used, at_least_float32(value)).to(value.dtype), mixed


def mixed_outputs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    recurrent: Tensor,
    gate: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    causal: bool = False,
) -> Tensor:
    """The sum of two outputs, the first by torch's fused attention: the form for long sequences.

    Args:
        query, key, value, gate, mask, dropout: as in `mixed_map`
        recurrent: (B, H', T, D), P V of the first H' heads; the others are ordinary
        causal: hide the later keys, by torch's rule instead of a mask: it skips their products

    Returns:
        (B, H, T, D) in the dtype of *value*
    """
    mask = None if mask is None else mask.to(query.dtype)
    attention = F.scaled_dot_product_attention(query, key, value, mask, dropout, causal)
    mixing = recurrent.size(1)
    if mixing < value.size(1):
        recurrent = F.pad(recurrent, (0, 0, 0, 0, 0, value.size(1) - mixing))
    with no_autocast(value):
        out = (1 - gate) * at_least_float32(attention) + gate * recurrent
        return out.to(value.dtype)
