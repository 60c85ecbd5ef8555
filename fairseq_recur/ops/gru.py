"""One step of several gated recurrent units at once."""

import torch
from torch import Tensor


def gru_step(x: Tensor, h: Tensor, w_x: Tensor, w_h: Tensor, bias: Tensor) -> Tensor:
    """H' = (1 - z) * n + z * h for N independent units (Cho et al. 2014, torch's gate order).

    ``r, z = sigma(W x + U h)`` and ``n = tanh(W_n x + b + r * (U_n h))``: as in the
    THUMT cell that the paper's parameter counts point to, only the candidate has a bias;
    as in torch, the reset gate acts after the product with U_n.

    Args:
        x: (N, B, I) inputs
        h: (N, B, C) states
        w_x: (N, 3C, I) input weights, gates in the order r, z, n
        w_h: (N, 3C, C) recurrent weights, the same order
        bias: (N, C) of the candidate

    Returns:
        (N, B, C) new states
    """
    x_r, x_z, x_n = torch.bmm(x, w_x.transpose(1, 2)).chunk(3, dim=-1)
    h_r, h_z, h_n = torch.bmm(h, w_h.transpose(1, 2)).chunk(3, dim=-1)
    r = torch.sigmoid(x_r + h_r)
    z = torch.sigmoid(x_z + h_z)
    n = torch.tanh(x_n + bias.unsqueeze(1) + r * h_n)
    return n + z * (h - n)
