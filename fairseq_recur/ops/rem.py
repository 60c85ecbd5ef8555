"""Recurrence encoding matrices: what a linear recurrence adds up, as a kernel over lags.

A head is a decay, an angle and which of the two parts it takes:

    f(n) = decay^n cos(n angle)  or  decay^n sin(n angle),   n = lag / dilation >= 1

A regular head (Huang et al. 2023, eq. 2) has decay lambda, which may be negative, and
angle 0; a cyclical one has decay gamma and angle theta. P[i, j] = f(lag) is the matrix of
eq. 3, and P V the output of the recurrences of eqs. 11 and 12 of the paper's appendix.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_recur.ops.toeplitz import shared_product, toeplitz_matrix


def rem_kernel(
    decay: Tensor,
    angle: Tensor,
    sine: Tensor,
    dilation: Tensor,
    length: int,
    max_power: int = 0,
) -> Tensor:
    """The table f(lag): zero at lag 0, off the dilation's grid, and past the highest power.

    The appendix's D - I (a diagonal of -1 for the sine) and its dilated exponents (1 off
    the grid) are misprints: the matrix of a dilated head is P kron I_d.

    Args:
        decay: (H,) lambda or gamma
        angle: (H,) theta; 0 for regular heads
        sine: (H,) bool, True for heads of the second cyclical kind
        dilation: (H,) int64, at least 1
        length: number of lags, 0 ... length - 1
        max_power: highest n; 0 for no limit

    Returns:
        (H, length) in the dtype of *decay*
    """
    lags = torch.arange(length, device=decay.device)
    n = lags // dilation.unsqueeze(1)
    zero = (lags == 0) | (lags % dilation.unsqueeze(1) != 0)
    if max_power:
        zero = zero | (n > max_power)
    cosines, sines = powers(decay, angle, n)
    return torch.where(sine.unsqueeze(1), sines, cosines).masked_fill(zero, 0.0)


def powers(decay: Tensor, angle: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """decay^n cos(n angle) and decay^n sin(n angle): (H,), (H,) and (H or 1, N) to (H, N)."""
    n = n.to(decay.dtype)
    size = decay.unsqueeze(1) ** n
    turn = n * angle.unsqueeze(1)
    return size * torch.cos(turn), size * torch.sin(turn)


def recurrent_product(
    decay: Tensor, angle: Tensor, sine: Tensor, values: Tensor, chunk: int
) -> Tensor:
    """y_t = sum_{n>=1} f(n) v_{t-n} without a limit on n, in chunks that hand on their state.

    Within a chunk it is a product with a small matrix. What a chunk leaves to the later
    ones is z = sum of (decay e^{i angle})^n v, n counted to the chunk's end; it decays
    from chunk to chunk, and each of the next chunks reads its real or imaginary part.

    Args:
        decay, angle, sine: (H,) as in `rem_kernel`; every dilation is 1
        values: (B, H, T, D)
        chunk: rows of a chunk, C

    Returns:
        (B, H, T, D)
    """
    batch, heads, length, width = values.shape
    chunks = -(-length // chunk)
    padded = F.pad(values, (0, 0, 0, chunks * chunk - length))
    parts = padded.view(batch, heads, chunks, chunk, width).transpose(1, 2).flatten(0, 1)
    once = torch.ones_like(sine, dtype=torch.int64)
    kernel = rem_kernel(decay, angle, sine, once, chunk)
    out = shared_product(toeplitz_matrix(kernel, None, chunk, chunk), parts)
    if chunks > 1:
        steps = torch.arange(chunk, device=values.device).unsqueeze(0)
        to_end = torch.stack(powers(decay, angle, chunk - steps), dim=1)  # (H, 2, C)
        left = shared_product(to_end, parts).view(batch, chunks, heads, 2, width)
        state = carry(decay, angle, left.transpose(1, 2), chunk).transpose(1, 2).flatten(0, 1)
        real, imaginary = powers(decay, angle, steps)  # position c reads z decayed by c
        cosine_part = torch.stack([real, -imaginary], dim=-1)
        sine_part = torch.stack([imaginary, real], dim=-1)
        reading = torch.where(sine.view(-1, 1, 1), sine_part, cosine_part)  # (H, C, 2)
        out = out + shared_product(reading, state)
    out = out.view(batch, chunks, heads, chunk, width).transpose(1, 2)
    return out.flatten(2, 3)[:, :, :length]


def carry(decay: Tensor, angle: Tensor, left: Tensor, chunk: int) -> Tensor:
    """The state at the start of each chunk: the earlier chunks' z, decayed over the chunks between.

    Args:
        decay, angle: (H,)
        left: (B, H, M, 2, D), real and imaginary part of what each chunk leaves at its end
        chunk: C

    Returns:
        (B, H, M, 2, D)
    """
    chunks = left.size(2)
    between = torch.arange(chunks, device=left.device).unsqueeze(0) - 1  # lag 1 has none between
    real, imaginary = (
        toeplitz_matrix(table.masked_fill(between < 0, 0.0), None, chunks, chunks)
        for table in powers(decay, angle, between.clamp(min=0) * chunk)
    )  # (H, M, M)
    z_real, z_imaginary = left.unbind(dim=3)
    return torch.stack(
        [
            shared_product(real, z_real) - shared_product(imaginary, z_imaginary),
            shared_product(imaginary, z_real) + shared_product(real, z_imaginary),
        ],
        dim=3,
    )
