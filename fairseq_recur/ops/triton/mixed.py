"""RSA's mixed map of short sequences by Triton kernels.

The map is mixed and multiplied in one pass. In the backward pass one kernel gives all gradients
but that of V, which is a product of torch's with the mixed map.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_recur.ops.arguments import check_tensors
from fairseq_recur.ops.precision import no_autocast
from fairseq_recur.ops.triton.dispatch import (
    LARGEST_WIDTH,
    SMALLEST_BLOCK,
    block,
    precision,
    usable,
)

LONGEST = 64
"""Queries and keys at most: a tile has all keys."""

PARTS = 16
"""Sums into which the gradient of the matrix is divided at most, for more programs."""


def mixes(weights: Tensor, value: Tensor, matrix: Tensor) -> bool:
    """Whether `mix` can compute with this map, these values and this matrix."""
    if matrix.size() != weights.size()[1:]:
        return False  # a matrix per sentence, or one row for all rows of a beam
    fits = max(weights.size()[2:]) <= LONGEST and value.size(3) <= LARGEST_WIDTH
    return fits and usable(weights)


class MixedMap(torch.autograd.Function):
    """As `mix`, with the gates (H,)."""

    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, value: Tensor, matrix: Tensor, gates: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The outputs and the mixed map."""
        from fairseq_recur.ops.triton.mix_kernels import mix_maps

        (batch, heads, queries, keys), width = weights.size(), value.size(3)
        out, mixed = value.new_empty(batch, heads, queries, width), torch.empty_like(weights)
        with torch.cuda.device_of(weights):
            mix_maps[batch * heads, query_tiles(queries)](
                weights, matrix, gates, value, out, mixed, heads, queries, keys, width,
                **constants(keys, width),
            )  # fmt: skip
        ctx.save_for_backward(weights, value, matrix, gates, mixed)
        ctx.set_materialize_grads(False)
        return out, mixed

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_out: Tensor | None, grad_mixed: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """The gradients of the map, the values, the matrix and the gates."""
        from fairseq_recur.ops.triton.mix_kernels import mix_back

        weights, value, matrix, gates, mixed = ctx.saved_tensors
        (batch, heads, queries, keys), width = weights.size(), value.size(3)
        if grad_out is None:
            grad_out = value.new_zeros(batch, heads, queries, width)
        given = grad_mixed is not None
        grad_mixed = weights if grad_mixed is None else grad_mixed.contiguous()
        parts = min(PARTS, batch)
        grad_weights = torch.empty_like(weights)
        sums = matrix.new_empty(parts, *matrix.size()), gates.new_empty(parts, heads, queries)
        with torch.cuda.device_of(weights):
            mix_back[heads, query_tiles(queries), parts](
                weights, matrix, gates, value, grad_out.contiguous(), grad_mixed, grad_weights,
                *sums, batch, queries, keys, width, READ=given, **constants(keys, width),
            )  # fmt: skip
        with no_autocast(grad_out):
            grad_value = mixed.mT @ grad_out
        return grad_weights, grad_value, sums[0].sum(0), sums[1].sum((0, 2))


def query_tiles(queries: int) -> int:
    """The number of programs that share a map."""
    return -(-queries // SMALLEST_BLOCK)


def constants(keys: int, width: int) -> dict[str, Any]:
    """The constants of the kernels for this many keys and heads of this width."""
    return {
        "QUERIES": SMALLEST_BLOCK, "KEYS": block(keys), "WIDTH": block(width),
        "PRECISION": precision(), "num_warps": 4 if width <= 64 else 8, "num_stages": 1,
    }  # fmt: skip


def mix(weights: Tensor, value: Tensor, matrix: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    """((1 - g) A + g P) V and the mixed map, of at most `LONGEST` queries and keys.

    Args:
        weights: A, (B, H, T, S), for which `mixes` is true
        value: (B, H, S, D) in the dtype of *weights*
        matrix: P, (H, T, S), in the dtype of *weights*
        gate: g, (H, 1, 1), in the dtype of *weights*

    Returns:
        (B, H, T, D) and (B, H, T, S)

    Raises:
        ValueError: a tensor has another shape or dtype than the kernels read
    """
    batch, heads, queries, keys = weights.size()
    check_tensors(
        weights.dtype, value=(value, (batch, heads, keys, value.size(3))),
        matrix=(matrix, (heads, queries, keys)), gate=(gate, (heads, 1, 1)),
    )  # fmt: skip
    inputs = (x.contiguous() for x in (weights, value, matrix, gate.flatten()))
    return MixedMap.apply(*inputs)
