"""The gated sum of two attention outputs, and its gate."""

import torch
from torch import Tensor


def gate(d: Tensor, r: Tensor, w_d: Tensor, w_r: Tensor, bias: Tensor) -> Tensor:
    """Lam = sigma(W_d D + W_r R + b) (Hao et al., eqs. 15 and 17): (..., G); as in `gated_sum`."""
    return torch.sigmoid(d @ w_d.t() + r @ w_r.t() + bias)


def gated_sum(d: Tensor, r: Tensor, w_d: Tensor, w_r: Tensor, bias: Tensor) -> Tensor:
    """Lam * D + (1 - lam) * R with the gate's lam.

    A gate of exactly one gives D to the last bit.

    Args:
        d: (..., C) output of the attention over the Transformer encoder
        r: (..., C) output of the attention over the recurrence encoder
        w_d, w_r: (G, C), G = C for a gate per channel, 1 for a scalar gate
        bias: (G,)

    Returns:
        (..., C)
    """
    lam = gate(d, r, w_d, w_r, bias)
    return lam * d + (1 - lam) * r
