"""What Informer's encoder and decoder read (Zhou et al. 2021), as loops over the rows of a window.

A row holds the variables of a series at one time; the features of the time are another row.
"""

import torch
from torch import Tensor

from fairseq_recur.ops.naive.attention import sinusoid


def series_embedding(
    values: list[Tensor],
    features: list[Tensor],
    kernel: Tensor,
    kernel_bias: Tensor,
    w_times: Tensor,
    times_bias: Tensor,
    positions: bool,
) -> list[Tensor]:
    """Values, positions and times of each row, summed (Zhou et al. 2021, appendix B): L of (C,).

    Args:
        values: L of (V,)
        features: L of (F,), of the times
        kernel, kernel_bias: (C, V, 3) and (C,) of a convolution; the row before the first one is
            the last one, and the row after the last one is the first one
        w_times, times_bias: (C, F) and (C,)
        positions: whether each row has the sinusoids of its number
    """
    rows = []
    for t, times in enumerate(features):
        around = values[t - 1], values[t], values[(t + 1) % len(values)]
        row = kernel_bias + w_times.mv(times) + times_bias
        for k, value in enumerate(around):
            row = row + kernel[:, :, k].mv(value)
        if positions:
            row = row + row.new_tensor(sinusoid(t, row.numel()))
        rows.append(row)
    return rows


def decoder_rows(
    past: list[Tensor], past_times: list[Tensor], future_times: list[Tensor], label: int
) -> tuple[list[Tensor], list[Tensor]]:
    """X_de = [X_token, X_0] (Zhou et al. 2021, eq. 6): values and features of label + T rows.

    X_token is the end of the window, *label* rows right before those to forecast. X_0 stands for
    these, zeros in place of their values. All rows have the features of their own times.

    Args:
        past: L of (V,), the window
        past_times: L of (F,), of its times
        future_times: T of (F,), of the times to forecast
        label: rows of X_token
    """
    values, times = [], []
    for t in range(len(past) - label, len(past)):
        values.append(past[t])
        times.append(past_times[t])
    for of_row in future_times:
        values.append(torch.zeros_like(past[0]))
        times.append(of_row)
    return values, times
