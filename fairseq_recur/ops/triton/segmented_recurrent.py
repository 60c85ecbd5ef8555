"""SRformer's recurrent term by Triton kernels, with nothing of the size of the D x D matrices.

V W^T, and the sum of K^T V W^T over all segments, are products of torch's. The forward pass keeps
only the latter and its inputs. The backward pass repeats the scan, which gives the gradient of Q
and a bit per neuron and step. Then it goes through the steps in reverse twice, for K and for V W^T.
See `scan_kernels`.

Letters: R = B H rows, one per head of a sentence; M segments, of which N are steps of the scan;
n queries per step.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_recur.ops.arguments import check_tensors
from fairseq_recur.ops.precision import no_autocast
from fairseq_recur.ops.triton.dispatch import block, precision

STEPS_PER_WORD = 32
"""Steps whose spikes share a word; `scan_kernels` has the same number."""

ROWS = 2**16
"""Rows that are multiplied at a time where a product replaces its factor."""

COLUMNS = 16
"""Columns of the D x D matrices per program: few, for more programs, and for their registers."""


class FiredSums(torch.autograd.Function):
    """As `fired_sums`."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        weight: Tensor,
        leak: Tensor,
        threshold: Tensor,
        rest: bool,
    ) -> Tensor:
        """Q_t relu(mem_i - thr), (R, N, n, D)."""
        from fairseq_recur.ops.triton.scan_kernels import scan

        out = torch.empty_like(queries)
        grid, sizes, constants = scan_launch(queries, keys, rest)
        width = queries.size(3)
        with no_autocast(queries):  # the kernels read the products, in the dtype of the queries
            folded = values @ weight.t()
            products = keys.flatten(1, 2).mT @ folded.flatten(1, 2) if rest else None
        with torch.cuda.device_of(queries):
            scan[grid](
                keys, folded, queries, queries, out, out if products is None else products,
                out, out, out, leak, threshold, *sizes, width, 1, GRADIENT=False, **constants,
            )  # fmt: skip
        ctx.save_for_backward(queries, keys, values, weight, leak, threshold, products)
        ctx.rest = rest
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        """The gradients of the first six arguments."""
        with no_autocast(grad):
            return (*gradients(grad.contiguous(), ctx.rest, *ctx.saved_tensors), None)


def gradients(
    grad: Tensor,
    rest: bool,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    weight: Tensor,
    leak: Tensor,
    threshold: Tensor,
    products: Tensor | None,
) -> tuple[Tensor, ...]:
    """Those of the tensors of `fired_sums`.

    Args:
        grad: of its output, (R, N, n, D)
        products: the sum of K^T V W^T over the segments, (R, D, D), if *rest*
    """
    from fairseq_recur.ops.triton.scan_kernels import scan, scan_back

    grid, sizes, constants = scan_launch(queries, keys, rest)
    rows, width, words = grid[0], queries.size(3), sizes[2]
    folded = values @ weight.t()  # again: it is as large as the keys
    of_queries, of_keys = torch.empty_like(queries), torch.empty_like(keys)
    spikes = queries.new_empty(rows, words, width, width, dtype=torch.int32)
    total = queries.new_empty(rows, width, width)
    of_leak, of_threshold = queries.new_empty(grid), queries.new_empty(grid)
    with torch.cuda.device_of(queries):
        # The rows of these matrices are value channels, and their columns key channels.
        scan[grid](
            folded, keys, grad, queries, of_queries, total if products is None else products,
            spikes, total, of_leak, leak, threshold, *sizes, 1, width,
            GRADIENT=True, **constants,
        )  # fmt: skip
        for read, asked, other, out, strides in (
            (folded, grad, queries, of_keys, (width, 1)),
            (keys, queries, grad, folded, (1, width)),  # V W^T gives way to its gradient
        ):
            scan_back[grid](
                read, asked, other, out, spikes, total, of_threshold, leak, *sizes, *strides,
                **constants,
            )  # fmt: skip
    of_weight = folded.flatten(0, 2).t() @ values.flatten(0, 2)
    of_values = multiplied_in_place(folded, weight)
    return of_queries, of_keys, of_values, of_weight, of_leak.sum(), of_threshold.sum()


def multiplied_in_place(x: Tensor, weight: Tensor) -> Tensor:
    """Replace *x* (..., D) by its product with *weight* (D, D), and return it."""
    for part in x.view(-1, x.size(-1)).split(ROWS):
        part.copy_(part @ weight)
    return x


def scan_launch(
    queries: Tensor, keys: Tensor, rest: bool
) -> tuple[tuple[int, int], tuple[int, ...], dict[str, Any]]:
    """How the kernels are started: the grid, the sizes and the constants.

    Args:
        queries: (R, N, n, D)
        keys: (R, M, s, D)
        rest: as in `fired_sums`
    """
    (rows, steps, room, width), (_, segments, size, _) = queries.size(), keys.size()
    words, most = -(-steps // STEPS_PER_WORD), 32 if width <= 64 else 16
    constants = {
        "REST": rest, "PRECISION": precision(), "A": block(width), "B": COLUMNS,
        "KEYS": block(size, most), "QUERIES": block(room, most), "num_warps": 8, "num_stages": 2,
    }  # fmt: skip
    grid = rows, -(-width // COLUMNS)
    return grid, (segments, steps, words, size, room, width), constants


def fired_sums(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    weight: Tensor,
    leak: Tensor,
    threshold: Tensor,
    rest: bool = True,
) -> Tensor:
    """Q_t relu(mem_i - thr) = thr Q_t RAF(x_i), for queries in blocks.

    Args:
        queries: (R, N, n, D) that `dispatch.usable` accepts
        keys, values: (R, M, s, D), zero at padding, with M >= N, in the dtype of *queries*
        weight: W (D, D)
        leak, threshold: scalars, the threshold positive
        rest: as in `ops.segmented_recurrent.segmented_recurrent`

    Returns:
        (R, N, n, D)

    Raises:
        ValueError: a tensor has another shape or dtype than the kernels read
    """
    rows, steps, _, width = queries.size()
    segments, size = keys.size(1), keys.size(2)
    weight, leak, threshold = (x.to(queries.dtype) for x in (weight, leak, threshold))
    check_tensors(
        queries.dtype, keys=(keys, (rows, segments, size, width)), values=(values, keys.size()),
        weight=(weight, (width, width)), leak=(leak, ()), threshold=(threshold, ()),
    )  # fmt: skip
    if steps > segments:
        raise ValueError(f"the queries have {steps} steps, expected at most {segments}; give fewer")
    inputs = (x.contiguous() for x in (queries, keys, values))
    return FiredSums.apply(*inputs, weight, leak, threshold, rest)
