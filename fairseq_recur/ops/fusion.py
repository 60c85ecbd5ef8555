"""The gated sum of two attention outputs."""

import torch
from torch import Tensor


def gated_sum(d: Tensor, r: Tensor, w_d: Tensor, w_r: Tensor, bias: Tensor) -> Tensor:
    """lam * D + (1 - lam) * R with lam = sigma(W_d D + W_r R + b) (Hao et al., eqs. 15 and 17).

    A gate of exactly one gives D to the last bit.

    Args:
        d: (..., C) output of the attention over the Transformer encoder
        r: (..., C) output of the attention over the recurrence encoder
        w_d, w_r: (G, C), G = C for a gate per channel, 1 for a scalar gate
        bias: (G,)

    Returns:
        (..., C)
    """
    gate = torch.sigmoid(d @ w_d.t() + r @ w_r.t() + bias)
    return gate * d + (1 - gate) * r
