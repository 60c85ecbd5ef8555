"""Tiles of row-major matrices: loaded, stored and multiplied within Triton kernels.

A matrix has *rows* rows of *width* numbers. What lies outside of it reads as zero and is not
written. COUNT is the number of rows per tile.
"""

import triton
import triton.language as tl

VARYING = ["batch", "heads", "chains", "segments", "steps", "words", "room", "length", "before"]
"""Arguments that differ between batches, for whose values no kernel is compiled anew."""


@triton.jit
def load_rows(matrix, first, rows, columns, width, COUNT: tl.constexpr):
    """Rows first ... first + COUNT - 1, and the given columns."""
    row = first + tl.arange(0, COUNT)
    inside = ((row >= 0) & (row < rows))[:, None] & (columns < width)[None, :]
    return tl.load(matrix + row[:, None] * width + columns[None, :], mask=inside, other=0)


@triton.jit
def store_rows(matrix, value, first, rows, columns, width, COUNT: tl.constexpr):
    """Write what `load_rows` would read."""
    row = first + tl.arange(0, COUNT)
    inside = (row < rows)[:, None] & (columns < width)[None, :]
    tl.store(matrix + row[:, None] * width + columns[None, :], value, mask=inside)


@triton.jit
def outer_sum(
    left, right, rows, a, b, width,
    COUNT: tl.constexpr, A: tl.constexpr, B: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """left^T right, of the columns a of *left* and b of *right*: (A, B)."""
    total = tl.zeros((A, B), dtype=left.dtype.element_ty)
    for first in range(0, rows, COUNT):
        x = load_rows(left, first, rows, a, width, COUNT)
        y = load_rows(right, first, rows, b, width, COUNT)
        total += tl.dot(tl.trans(x), y, input_precision=PRECISION)
    return total


@triton.jit
def store_product(
    left, right, out, rows, a, b, width, COUNT: tl.constexpr, PRECISION: tl.constexpr
):
    """Write left right, of the columns a of *left* and the tile *right*, to the columns b."""
    for first in range(0, rows, COUNT):
        x = load_rows(left, first, rows, a, width, COUNT)
        y = tl.dot(x, right, input_precision=PRECISION)
        store_rows(out, y, first, rows, b, width, COUNT)
