"""Matrices and products whose entries depend only on the lag between two positions."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_recur.ops.triton.banded import ROWS, band_product
from fairseq_recur.ops.triton.dispatch import usable


def toeplitz_matrix(
    past: Tensor, future: Tensor | None, queries: int, keys: int, offset: int = 0
) -> Tensor:
    """P[h, i, j] = past[h, lag] for lag = offset + i - j > 0, future[h, -lag] for lag < 0.

    Query i is at position offset + i and key j at position j. This covers the square matrix
    (offset 0), its last rows for Transformer-XL's memory or incremental decoding (offset
    keys - queries), and any other pair of sequences (Huang et al. 2023, appendix D.2). The
    diagonal is past[h, 0]. Lags beyond the end of a kernel give 0.

    Args:
        past: (H, L) kernel over lags 0 ... L - 1
        future: (H, L) kernel over the distances of later keys; None for a causal matrix
        queries: T, at least 1
        keys: S
        offset: position of the first query

    Returns:
        (H, T, S)
    """
    # All entries (i, j) with j - i + queries - 1 = m equal band[m]; row i is a window of the band,
    # which goes from the largest lag to the smallest. Slices, and no index: on a GPU the time goes
    # into starting kernels.
    largest, smallest = offset + queries - 1, offset - keys + 1
    band = at_lags(past, max(smallest, 0), largest + 1).flip(1)
    first, end = max(1, -largest), 1 - smallest
    if future is not None:  # also where no key is later: its gradient is 0 there
        band = torch.cat([band, at_lags(future, first, end)], dim=1)
    elif first < end:
        band = F.pad(band, (0, end - first))
    return band.unfold(-1, keys, 1).flip(1)


def at_lags(kernel: Tensor, first: int, end: int) -> Tensor:
    """kernel[:, first:end] with 0 beyond the kernel's end: (H, L) to (H, end - first).

    It is (H, 0) if *end* is not above *first*.
    """
    found = kernel[:, first : max(first, end)]
    missing = end - first - found.size(1)
    return F.pad(found, (0, missing)) if missing > 0 else found


def shared_product(matrix: Tensor, values: Tensor) -> Tensor:
    """P V for a matrix shared by the batch: one product per head, with the batch as columns.

    Args:
        matrix: (H, T, S)
        values: (B, H, S, D)

    Returns:
        (B, H, T, D)
    """
    batch, heads, keys, width = values.shape
    columns = values.permute(1, 2, 0, 3).reshape(heads, keys, batch * width)
    out = torch.bmm(matrix, columns).view(heads, matrix.size(1), batch, width)
    return out.permute(2, 0, 1, 3)


def banded_product(
    kernel: Tensor, values: Tensor, chunk: int, future: Tensor | None = None
) -> Tensor:
    """y_t = sum_n kernel[n] v_{t-n} + future[n] v_{t+n}, in blocks: time and memory grow with T L.

    Each block of *chunk* rows is multiplied by the window of values that its lags reach. On a GPU
    a Triton kernel does that with blocks of its own, and no window is copied.

    Args:
        kernel: (H, L) over lags 0 ... L - 1; 0 for longer lags
        values: (B, H, T, D)
        chunk: rows of a block
        future: (H, L) over the distances of later positions, of which 0 is not read; None for none

    Returns:
        (B, H, T, D)
    """
    batch, heads, length, width = values.shape
    by_triton = usable(values)
    chunk = ROWS if by_triton else chunk
    reach = min(kernel.size(1), length) - 1
    ahead = 0 if future is None else min(future.size(1), length) - 1
    window = reach + chunk + ahead
    band = toeplitz_matrix(kernel, future, chunk, window, offset=reach)
    if by_triton:
        return band_product(band, values, reach)
    blocks = -(-length // chunk)
    padded = F.pad(values, (0, 0, reach, blocks * chunk - length + ahead))
    windows = padded.unfold(2, window, chunk)  # (B, H, blocks, D, window)
    columns = windows.permute(1, 4, 0, 2, 3).flatten(2)  # one copy, in the order of the product
    out = torch.bmm(band, columns).view(heads, chunk, batch, blocks, width)
    return out.permute(2, 0, 3, 1, 4).flatten(2, 3)[:, :, :length]
