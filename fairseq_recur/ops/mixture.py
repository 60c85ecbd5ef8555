"""An attention map mixed with a matrix that depends only on positions, in two forms.

    O = (1 - g) A V + g P V                                (Huang et al. 2023, eq. 4)

A is any attention map, for example softmax(Q K^T / sqrt(D) + mask). `mixed_map` mixes the map with
the matrix, which is fastest for short sequences; on a GPU a Triton kernel mixes and multiplies at
once. `mixed_outputs` mixes outputs: the map need not be stored, and it may change the values, as
relative positions do. V must be zero at padded keys, since P does not hide them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_recur.ops.attention import read_values
from fairseq_recur.ops.precision import at_least_float32, no_autocast
from fairseq_recur.ops.triton.mixed import mix, mixes


def mixed_map(
    weights: Tensor,
    value: Tensor,
    matrix: Tensor,
    gate: Tensor,
    dropout: float = 0.0,
    drop_mixed: bool = False,
) -> tuple[Tensor, Tensor]:
    """((1 - g) A + g P) V: one map, then one product with V.

    Args:
        weights: A, (B, H, T, S) in float32 or higher
        value: (B, H, S, D)
        matrix: P, (H, T, S) or (B, H, T, S), in float32 or higher
        gate: g, (H, 1, 1), 0 for heads without a matrix
        dropout: probability of dropping an entry of A (0 outside training)
        drop_mixed: drop entries of the mixed map instead of entries of A

    Returns:
        (B, H, T, D) in the dtype of *value*, and the mixed map (B, H, T, S) without dropout of
        its own
    """
    with no_autocast(value):
        dropped = weights if drop_mixed else F.dropout(weights, dropout)
        if not drop_mixed and mixes(dropped, value, matrix):
            out, mixed = mix(dropped, at_least_float32(value), matrix, gate)
            return out.to(value.dtype), mixed
        mixed = torch.addcmul(gate * matrix, dropped, 1 - gate)
        return read_values(mixed, value, dropout if drop_mixed else 0.0), mixed


def mixed_outputs(local: Tensor, recurrent: Tensor, gate: Tensor) -> Tensor:
    """(1 - g) A V + g P V, given both products.

    Args:
        local: A V, the outputs of any attention map, (B, H, T, D)
        recurrent: P V of the first H' heads, (B, H', T, D) in float32 or higher; the other heads
            have no matrix
        gate: g, (H, 1, 1) or (B, H, T, 1), 0 for heads without a matrix and for rows that keep A V

    Returns:
        (B, H, T, D) in the dtype of *local*
    """
    missing = local.size(1) - recurrent.size(1)
    if missing:
        recurrent = F.pad(recurrent, (0, 0, 0, 0, 0, missing))
    with no_autocast(local):
        return torch.lerp(at_least_float32(local), recurrent, gate).to(local.dtype)
