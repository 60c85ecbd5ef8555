"""Attention within segments by Triton kernels, with SRformer's recurrent term added.

No weights are stored. The backward pass computes them again from the logarithm of the softmax's
sum; dropout draws the same numbers again from its seed. See `softmax_kernels`.

Letters as in `segmented_recurrent`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_recur.ops.arguments import check_tensors
from fairseq_recur.ops.triton.dispatch import block, precision


class SegmentAttention(torch.autograd.Function):
    """As `segment_softmax`."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        added: Tensor | None,
        unit: Tensor | None,
        mask: Tensor | None,
        heads: int,
        dropout: float,
    ) -> Tensor:
        """O, (R, N, n, D)."""
        from fairseq_recur.ops.triton.softmax_kernels import attend

        counts, sizes, constants = segment_launch(queries, keys, mask, heads, dropout)
        out, logs = torch.empty_like(queries), queries.new_empty(queries.size()[:3])
        seed = None
        if dropout > 0:  # drawn on the device, which the host does not wait for
            seed = torch.randint(2**62, (), device=queries.device)
        given = [queries if x is None else x for x in (mask, added, unit, seed)]
        with torch.cuda.device_of(queries):
            attend[counts[0], counts[1]](
                queries, keys, values, *given, out, logs, *sizes, ADDED=added is not None,
                **constants,
            )  # fmt: skip
        ctx.save_for_backward(queries, keys, values, added, unit, mask, seed, logs)
        ctx.options = heads, dropout
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        """The gradients of the first five arguments."""
        from fairseq_recur.ops.triton.softmax_kernels import attend_back_keys, attend_back_queries

        queries, keys, values, added, unit, mask, seed, logs = ctx.saved_tensors
        counts, sizes, constants = segment_launch(queries, keys, mask, *ctx.options)
        grad = grad.contiguous()
        of_queries, means = torch.empty_like(queries), torch.empty_like(logs)
        of_keys, of_values = torch.empty_like(keys), torch.empty_like(values)
        for found in (of_keys, of_values):
            found[:, queries.size(1) :].zero_()  # no query reads the segments after the last step
        of_added, of_unit = None, None
        if added is not None:
            of_added = torch.empty_like(added)
            of_unit = queries.new_empty(*queries.size()[:2], counts[1], queries.size(3))
        masks, factors, terms, seeds = (
            queries if x is None else x for x in (mask, unit, added, seed)
        )
        with torch.cuda.device_of(queries):
            attend_back_queries[counts[0], counts[1]](
                queries, keys, values, masks, terms, factors, seeds, logs, grad, of_queries,
                queries if of_added is None else of_added, queries if of_unit is None else of_unit,
                means, *sizes, ADDED=added is not None, **constants,
            )  # fmt: skip
            attend_back_keys[counts[0], counts[2]](
                queries, keys, values, masks, seeds, logs, means, grad, of_keys, of_values, *sizes,
                **constants,
            )  # fmt: skip
        of_unit = None if of_unit is None else of_unit.sum((1, 2))
        return of_queries, of_keys, of_values, of_added, of_unit, None, None, None


def segment_launch(
    queries: Tensor, keys: Tensor, mask: Tensor | None, heads: int, dropout: float
) -> tuple[tuple[int, int, int], tuple[int, ...], dict[str, Any]]:
    """How the kernels are started.

    Returns:
        the numbers of blocks of queries, of tiles of one block, and of tiles of a segment; the
        sizes; and the constants
    """
    (rows, steps, room, width), (_, segments, size, _) = queries.size(), keys.size()
    most = 32 if width <= 64 else 16
    constants: dict[str, Any] = {
        "MASKED": mask is not None, "DROPOUT": dropout, "PRECISION": precision(),
        "QUERIES": block(room, most), "KEYS": block(size, most),
        "WIDTH": block(width), "num_warps": 8, "num_stages": 1,
    }  # fmt: skip
    counts = rows * steps, -(-room // constants["QUERIES"]), -(-size // constants["KEYS"])
    return counts, (heads, segments, steps, size, room, width), constants


def segment_softmax(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    heads: int = 1,
    dropout: float = 0.0,
    added: Tensor | None = None,
    unit: Tensor | None = None,
) -> Tensor:
    """softmax(Q_t K_i^T + mask) V_i + unit F_t, where block i of the queries reads segment i.

    Args:
        queries: Q (R, N, n, D), scaled, that `dispatch.usable` accepts
        keys, values: (R, M, s, D), with M >= N, in the dtype of *queries*
        mask: additive (R / heads, N, s), without a gradient, in the dtype of *queries*; or None
        heads: rows that follow each other and share a mask
        dropout: probability of dropping a weight (0 outside training)
        added: F (R, N, n, D), given together with *unit*; or None
        unit: factors of F, (R, D)

    Returns:
        (R, N, n, D)

    Raises:
        ValueError: a tensor has another shape or dtype than the kernels read
    """
    (rows, steps, _, width), (_, segments, size, _) = queries.size(), keys.size()
    expected: dict[str, tuple[Tensor, Sequence[int]]] = {
        "keys": (keys, (rows, segments, size, width)), "values": (values, keys.size())
    }  # fmt: skip
    if mask is not None:
        expected["mask"] = mask, (rows // heads, steps, size)
    if added is not None and unit is not None:
        expected["added"] = added, queries.size()
        expected["unit"] = unit, (rows, width)
    check_tensors(queries.dtype, **expected)
    if steps > segments:
        raise ValueError(f"the queries have {steps} steps, expected at most {segments}; give fewer")
    inputs = (
        None if x is None else x.contiguous() for x in (queries, keys, values, added, unit, mask)
    )
    return SegmentAttention.apply(*inputs, heads, dropout)
