"""Products with a band of a Toeplitz matrix, as Triton kernels.

The band (H, ROWS, span) holds the entries of any ROWS rows that follow each other: the window of
the rows from t on begins at position t - before. All sentences and blocks share it.
"""

import triton
import triton.language as tl

from fairseq_recur.ops.triton.tile_kernels import VARYING, load_rows, store_rows


@triton.jit(do_not_specialize=VARYING)
def multiply(
    band, values, out, heads, length, span, before, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the product of the band with *values*, (B, H, T, D), to *out*.

    A program has ROWS rows of a head of a sentence.
    """
    row = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * ROWS
    channels = tl.arange(0, WIDTH)
    band += (row % heads) * ROWS * span
    values += row * length * width
    total = tl.zeros((ROWS, WIDTH), dtype=values.dtype.element_ty)
    for first in range(0, span, COLUMNS):
        x = load_rows(band, 0, ROWS, first + tl.arange(0, COLUMNS), span, ROWS)
        y = load_rows(values, start - before + first, length, channels, width, COLUMNS)
        total += tl.dot(x, y, input_precision=PRECISION)
    store_rows(out + row * length * width, total, start, length, channels, width, ROWS)


@triton.jit(do_not_specialize=VARYING)
def correlate(
    grad, values, out, batch, heads, length, span, before, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the gradient of the band, given that of the product, to *out* (parts, H, ROWS, span).

    A program has COLUMNS columns of a head's band, and every parts-th sentence.
    """
    head = tl.program_id(0).to(tl.int64)
    begin = tl.program_id(1) * COLUMNS
    total = tl.zeros((ROWS, COLUMNS), dtype=values.dtype.element_ty)
    for sentence in range(tl.program_id(2), batch, tl.num_programs(2)):
        at = (sentence * heads + head) * length * width
        for start in range(0, length, ROWS):
            first = start - before + begin
            for channel in range(0, width, WIDTH):
                channels = channel + tl.arange(0, WIDTH)
                x = load_rows(grad + at, start, length, channels, width, ROWS)
                y = load_rows(values + at, first, length, channels, width, COLUMNS)
                total += tl.dot(x, tl.trans(y), input_precision=PRECISION)
    out += (tl.program_id(2) * heads + head) * ROWS * span
    store_rows(out, total, 0, ROWS, begin + tl.arange(0, COLUMNS), span, ROWS)
