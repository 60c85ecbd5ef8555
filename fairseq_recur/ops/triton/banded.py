"""Products with a band of a Toeplitz matrix by Triton kernels, without a copy of the windows.

The gradient of V is the product with the transposed band, which is the band turned by half a
circle. The gradient of the band is one matrix product per head, over all sentences and blocks.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_recur.ops.arguments import check_tensors
from fairseq_recur.ops.triton.dispatch import block, precision

ROWS = 64
"""Rows of the band, and of a block of outputs."""

COLUMNS = 32
"""Columns of the band that are multiplied at a time."""

PARTS = 8
"""Sums into which the gradient of the band is divided at most, for more programs."""


class BandProduct(torch.autograd.Function):
    """As `band_product`."""

    @staticmethod
    def forward(ctx: Any, band: Tensor, values: Tensor, before: int) -> Tensor:
        """The product, (B, H, T, D)."""
        ctx.save_for_backward(band, values)
        ctx.before = before
        return product(band, values, before)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        """The gradients of the band and of the values."""
        from fairseq_recur.ops.triton.band_kernels import correlate

        band, values = ctx.saved_tensors
        grad, (batch, heads, length, width), span = grad.contiguous(), values.size(), band.size(2)
        after = span - ROWS - ctx.before
        grad_values = product(band.flip(1, 2), grad, after)
        parts = min(PARTS, batch)
        grad_band = band.new_empty(parts, *band.size())
        with torch.cuda.device_of(values):
            correlate[heads, -(-span // COLUMNS), parts](
                grad, values, grad_band, batch, heads, length, span, ctx.before, width,
                **{**constants(width), "WIDTH": block(width, 64)},
            )  # fmt: skip
        return grad_band.sum(0), grad_values, None


def product(band: Tensor, values: Tensor, before: int) -> Tensor:
    """The product, without gradients."""
    from fairseq_recur.ops.triton.band_kernels import multiply

    (batch, heads, length, width), out = values.size(), torch.empty_like(values)
    with torch.cuda.device_of(values):
        multiply[batch * heads, -(-length // ROWS)](
            band, values, out, heads, length, band.size(2), before, width, **constants(width)
        )
    return out


def constants(width: int) -> dict[str, Any]:
    """The constants of the kernels for heads of this width."""
    return {
        "ROWS": ROWS, "COLUMNS": COLUMNS, "WIDTH": block(width), "PRECISION": precision(),
        "num_warps": 4 if width <= 64 else 8, "num_stages": 2,
    }  # fmt: skip


def band_product(band: Tensor, values: Tensor, before: int) -> Tensor:
    """P V for a Toeplitz matrix P, given as the band of any `ROWS` of its rows.

    Args:
        band: (H, ROWS, before + ROWS + after); the diagonal begins in column *before*
        values: (B, H, T, D) that `dispatch.usable` accepts
        before: number of earlier positions that a row reads

    Returns:
        (B, H, T, D)

    Raises:
        ValueError: the band has another shape or dtype than the kernels read
    """
    check_tensors(
        values.dtype, band=(band, (values.size(1), ROWS, max(before + ROWS, band.size(-1))))
    )
    return BandProduct.apply(band.contiguous(), values.contiguous(), before)
