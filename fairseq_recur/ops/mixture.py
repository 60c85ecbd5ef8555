"""Self-attention mixed with a matrix that depends on positions alone: three forms of one sum.

    O = (1 - g) softmax(Q K^T / sqrt(D) + mask) V + g P V        (Huang et al. 2023, eq. 4)

V must be zero at padded keys: the softmax does not read them, and P would.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_recur.ops.precision import at_least_float32, no_autocast


def attention_map(
    query: Tensor, key: Tensor, mask: Tensor | None, scale: float | None = None
) -> Tensor:
    """softmax(Q K^T / sqrt(D) + mask), (B, H, T, S) in float32 or more, of (B, H, T or S, D)."""
    scale = query.size(-1) ** -0.5 if scale is None else scale
    query = query if scale == 1 else query * scale
    scores = at_least_float32(torch.matmul(query, key.transpose(-1, -2)))
    return torch.softmax(scores if mask is None else scores + mask, dim=-1)


def mixed_map(
    weights: Tensor,
    value: Tensor,
    matrix: Tensor,
    gate: Tensor,
    dropout: float = 0.0,
    drop_mixed: bool = False,
) -> tuple[Tensor, Tensor]:
    """mixed"""
    with no_autocast(value):
        dropped = weights if drop_mixed else F.dropout(weights, dropout)
        mixed = torch.addcmul(gate * matrix, dropped, 1 - gate)
        used = F.dropout(mixed, dropout) if drop_mixed else mixed
        return torch.matmul(used, at_least_float32(value)).to(value.dtype), mixed


def mixed_outputs(local: Tensor, recurrent: Tensor, gate: Tensor) -> Tensor:
    """outputs"""
    mixing = recurrent.size(1)
    if mixing < local.size(1):
        recurrent = F.pad(recurrent, (0, 0, 0, 0, 0, local.size(1) - mixing))
    with no_autocast(local):
        out = (1 - gate) * at_least_float32(local) + gate * recurrent
        return out.to(local.dtype)
