"""Recurrence encoding matrices (REMs): linear recurrences as kernels over lags.

A head has a decay and an angle, and is the real or the imaginary part of a complex recurrence:

    f(n) = decay^n cos(n angle)  or  decay^n sin(n angle),   n = lag / dilation >= 1

A regular head (Huang et al. 2023, eq. 2) has decay lambda, which may be negative, and
angle 0. A cyclical head has decay gamma and angle theta. P[i, j] = f(lag / dilation), and 0 at
lag 0 and off the dilation's grid, is the matrix of eq. 3. P V is the output of the recurrences of
eqs. 11 (with lambda on the input, too, which is missing in print) and 12 in the paper's appendix.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_recur.ops.toeplitz import shared_product, toeplitz_matrix


def rem_kernel(
    decay: Tensor,
    angle: Tensor | None,
    sine: Tensor | None,
    dilation: Tensor | None,
    length: int,
    max_power: int = 0,
) -> Tensor:
    """f(lag / dilation): zero at lag 0, off the dilation's grid, and beyond the highest power.

    The matrix of a dilated head is P kron I_d. In the paper's appendix, D - I (a diagonal of -1
    for the sine) and the dilated exponents (1 off the grid, but for the sine) are misprints.

    Args:
        decay: (H,) lambda or gamma
        angle: (H,) theta, 0 for regular heads; None: all heads are regular
        sine: (H,) bool, True for heads of the second cyclical kind; None: there are none
        dilation: (H,) int64, at least 1; None: all are 1
        length: L, the number of lags from 0 on
        max_power: highest n; 0 for no limit

    Returns:
        (H, L) in the dtype of *decay*
    """
    lags = torch.arange(length, device=decay.device).unsqueeze(0)
    n, zero = lags, lags == 0
    if dilation is not None:
        n = lags // dilation.unsqueeze(1)
        zero = zero | (lags % dilation.unsqueeze(1) != 0)
    if 0 < max_power < length - 1:
        zero = zero | (n > max_power)
    if angle is None:
        table = decay.unsqueeze(1) ** n
    else:
        cosines, sines = powers(decay, angle, n)
        table = cosines if sine is None else torch.where(sine.unsqueeze(1), sines, cosines)
    return table.masked_fill(zero, 0.0)


def powers(decay: Tensor, angle: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """decay^n cos(n angle) and decay^n sin(n angle): (H,), (H,) and (H or 1, N) to (H, N)."""
    n = n.to(decay.dtype)
    size = decay.unsqueeze(1) ** n
    turn = n * angle.unsqueeze(1)
    return size * torch.cos(turn), size * torch.sin(turn)


def recurrent_product(
    decay: Tensor, angle: Tensor, sine: Tensor, values: Tensor, chunk: int
) -> Tensor:
    """y_t = sum_{n>=1} f(n) v_{t-n} without a limit on n, in chunks that pass on a state.

    Within a chunk, the sum is a product with a small matrix. A chunk contributes to later ones by
    the state z = sum of (decay e^{i angle})^n v, with n counted to the chunk's end. The state
    decays from chunk to chunk, and each later chunk reads its real or imaginary part.

    Args:
        decay, angle, sine: (H,) as in `rem_kernel`; every dilation is 1
        values: (B, H, T, D)
        chunk: rows per chunk

    Returns:
        (B, H, T, D)
    """
    batch, heads, length, width = values.shape
    chunks = -(-length // chunk)
    padded = F.pad(values, (0, 0, 0, chunks * chunk - length))
    parts = padded.view(batch, heads, chunks, chunk, width).transpose(1, 2).flatten(0, 1)
    kernel = rem_kernel(decay, angle, sine, None, chunk)
    out = shared_product(toeplitz_matrix(kernel, None, chunk, chunk), parts)
    if chunks > 1:
        steps = torch.arange(chunk, device=values.device).unsqueeze(0)
        to_end = torch.stack(powers(decay, angle, chunk - steps), dim=1)  # (H, 2, chunk)
        ends = shared_product(to_end, parts).view(batch, chunks, heads, 2, width)
        state = carried_states(decay, angle, ends.transpose(1, 2), chunk)
        real, imaginary = powers(decay, angle, steps)  # row c reads z decayed by c
        cosine_part = torch.stack([real, -imaginary], dim=-1)
        sine_part = torch.stack([imaginary, real], dim=-1)
        reading = torch.where(sine.view(-1, 1, 1), sine_part, cosine_part)  # (H, chunk, 2)
        out = out + shared_product(reading, state.transpose(1, 2).flatten(0, 1))
    out = out.view(batch, chunks, heads, chunk, width).transpose(1, 2)
    return out.flatten(2, 3)[:, :, :length]


def carried_states(decay: Tensor, angle: Tensor, ends: Tensor, chunk: int) -> Tensor:
    """The state at the start of each chunk: the sum of the earlier chunks' decayed states z.

    Args:
        decay, angle: (H,)
        ends: (B, H, M, 2, D), real and imaginary part of each chunk's own z at its end
        chunk: rows per chunk

    Returns:
        (B, H, M, 2, D)
    """
    chunks = ends.size(2)
    # Between neighbours there is no chunk.
    between = torch.arange(-1, chunks - 1, device=ends.device).unsqueeze(0)
    real, imaginary = (
        toeplitz_matrix(table.masked_fill(between < 0, 0.0), None, chunks, chunks)
        for table in powers(decay, angle, between.clamp(min=0) * chunk)
    )  # (H, M, M)
    z_real, z_imaginary = ends.unbind(dim=3)
    return torch.stack(
        [
            shared_product(real, z_real) - shared_product(imaginary, z_imaginary),
            shared_product(imaginary, z_real) + shared_product(real, z_imaginary),
        ],
        dim=3,
    )
