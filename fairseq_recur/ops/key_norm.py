"""norm(K), which stands for the softmax's divisor (Long et al. 2023, eq. 13)."""

import torch
from torch import Tensor

NORMS = ("key", "frobenius", "none")
SMALLEST_NORM = 1e-6


def key_norm(keys: Tensor, kind: str) -> Tensor | None:
    """The L2 norm of the keys.

    Args:
        keys: (..., S, D) in float32 or more, zero at padding
        kind: "key": over the positions, for each key channel, as in the published code;
            "frobenius": over positions and channels; "none": the ablation II of Table 3

    Returns:
        (..., 1, D), (..., 1, 1) or None; at least 1e-6
    """
    if kind == "none":
        return None
    return norm_of_squares(torch.linalg.vecdot(keys, keys, dim=-2).unsqueeze(-2), kind)


def norm_of_squares(squares: Tensor, kind: str) -> Tensor | None:
    """As `key_norm`, from the sums of K^2 over the positions, (..., D)."""
    if kind == "none":
        return None
    if kind == "frobenius":
        squares = squares.sum(-1, keepdim=True)
    return squares.sqrt().clamp_min(SMALLEST_NORM)
