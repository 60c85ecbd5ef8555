"""An attention map mixed with a matrix that depends only on positions, in two forms.

    O = (1 - g) A V + g P V                                (Huang et al. 2023, eq. 4)

A is any attention map, for example softmax(Q K^T / sqrt(D) + mask). `mixed_map` mixes the map with
the matrix, which is fastest for short sequences and where the map is stored anyway; on a GPU a
Triton kernel mixes and multiplies at once. `mixed_outputs` mixes outputs: the map need not be
stored, and it may change the values, as relative positions do. V must be zero at padded keys,
since P does not hide them.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_recur.ops.attention import read_values
from fairseq_recur.ops.precision import at_least_float32, no_autocast
from fairseq_recur.ops.triton.mixed import mix, mixes


class MixedMap(torch.autograd.Function):
    """(1 - g) dropout(A) + g P, in as many passes over a map as dropout alone takes.

    A map is large, and its time goes into memory. So the gate is part of what dropout multiplies
    by, and in the backward pass nothing of the size of a map is written but the gradient of A.
    """

    @staticmethod
    def forward(ctx: Any, weights: Tensor, matrix: Tensor, gate: Tensor, dropout: float) -> Tensor:
        """The mixed map (B, H, T, S); arguments as of `mixed_map`."""
        kept = 1 - gate
        if dropout > 0:
            scale = 0.0 if dropout == 1 else 1 / (1 - dropout)
            kept = torch.empty_like(weights).bernoulli_(1 - dropout).mul_(kept * scale)
        ctx.save_for_backward(weights, matrix, gate, kept)
        return torch.addcmul(gate * matrix, weights, kept)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """The gradients of the map, the matrix and the gate.

        With g = 1, that of the gate lacks the map's part. The derivative of the sigmoid is 0 there.
        """
        weights, matrix, gate, kept = ctx.saved_tensors
        of_weights, of_gated = grad * kept, grad.sum_to_size(matrix.shape)
        with no_autocast(grad):  # the sum of grad (1 - g) dropout(A) over a head
            of_map = torch.linalg.vecdot(of_weights.flatten(2), weights.flatten(2)).sum(0)
        share = (1 - gate).masked_fill(gate == 1, 1.0)  # the sum is 0 there, too
        of_gate = (of_gated * matrix).sum_to_size(gate.shape) - of_map.view_as(gate) / share
        return of_weights, gate * of_gated, of_gate, None


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
        matrix: P, (H, T, S), (B, H, T, S), or (H, 1, S) for rows that share a position; in float32
            or higher
        gate: g, (H, 1, 1), 0 for heads without a matrix
        dropout: probability of dropping an entry of A (0 outside training)
        drop_mixed: drop entries of the mixed map instead of entries of A

    Returns:
        (B, H, T, D) in the dtype of *value*, and the mixed map (B, H, T, S) without dropout of
        its own
    """
    with no_autocast(value):
        if not drop_mixed and mixes(weights, value, matrix):
            kept = F.dropout(weights, dropout)
            out, mixed = mix(kept, at_least_float32(value), matrix, gate)
            return out.to(value.dtype), mixed
        before, after = (0.0, dropout) if drop_mixed else (dropout, 0.0)
        mixed = MixedMap.apply(weights, matrix, gate, before)  # type: ignore[no-untyped-call]
        return read_values(mixed, value, after), mixed


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
