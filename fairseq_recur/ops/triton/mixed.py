"""RSA's mixed map of short sequences by Triton kernels: one pass over the map each way."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_recur.ops.native.segmented_recurrent import expect
from fairseq_recur.ops.triton.choosing import LARGEST_WIDTH, block, precision, usable

LONGEST = 64
"""Queries and keys at most: a map is one tile."""

PARTS = 16
"""Sums into which the gradient of the matrix is divided at most, for more programs."""


def mixes(weights: Tensor, value: Tensor, matrix: Tensor) -> bool:
    """Whether `mix` can compute with this map, these values and this matrix."""
    if not usable(weights) or matrix.size() != weights.size()[1:]:
        return False  # a matrix per sentence, or one row for all rows of a beam
    return max(weights.size()[2:]) <= LONGEST and value.size(3) <= LARGEST_WIDTH


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
            mix_maps[(batch * heads,)](
                weights, matrix, gates, value, out, mixed, heads, queries, keys, width,
                **constants(queries, keys, width),
            )  # fmt: skip
        ctx.save_for_backward(weights, value, matrix, gates)
        ctx.set_materialize_grads(False)
        return out, mixed

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_out: Tensor | None, grad_mixed: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """The gradients of the map, the values, the matrix and the gates."""
        from fairseq_recur.ops.triton.mix_kernels import mix_back

        weights, value, matrix, gates = ctx.saved_tensors
        (batch, heads, queries, keys), width = weights.size(), value.size(3)
        if grad_out is None:
            grad_out = value.new_zeros(batch, heads, queries, width)
        given = grad_mixed is not None
        grad_mixed = weights if grad_mixed is None else grad_mixed.contiguous()
        parts = min(PARTS, batch)
        grads = torch.empty_like(weights), torch.empty_like(value)
        sums = matrix.new_empty(parts, *matrix.size()), gates.new_empty(parts, heads)
        with torch.cuda.device_of(weights):
            mix_back[heads, parts](
                weights, matrix, gates, value, grad_out.contiguous(), grad_mixed,
                grads[0], *sums, grads[1], batch, queries, keys, width,
                READ=given, **constants(queries, keys, width),
            )  # fmt: skip
        return (*grads, sums[0].sum(0), sums[1].sum(0))


def constants(queries: int, keys: int, width: int) -> dict[str, Any]:
    """The constants of the kernels for maps of this size and heads of this width."""
    return {
        "QUERIES": block(queries), "KEYS": block(keys), "WIDTH": block(width),
        "PRECISION": precision(), "num_warps": 4, "num_stages": 1,
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
    expect(
        weights.dtype, value=(value, (batch, heads, keys, value.size(3))),
        matrix=(matrix, (heads, queries, keys)), gate=(gate, (heads, 1, 1)),
    )  # fmt: skip
    inputs = (x.contiguous() for x in (weights, value, matrix, gate.flatten()))
    return MixedMap.apply(*inputs)
