"""What a block-recurrent layer has beside attention: rotated positions, and the gate of its state.

The equations are those of the public code from which Huang et al. 2023 built their models.
"""

import torch
from torch import Tensor

from fairseq_recur.ops.precision import at_least_float32


def rotary(x: Tensor, width: int) -> Tensor:
    """Vectors turned by angles that grow with their positions (Su et al. 2021).

    Channels k and k + width / 2 are the two coordinates of a point, which position t turns by
    t 10000^(-2k / width). So the product of two vectors depends on the distance of their positions.

    Args:
        x: (B, H, T, D)
        width: even number of channels that are turned; the others stay as they are

    Returns:
        (B, H, T, D) in the dtype of *x*
    """
    half = width // 2
    numbers = torch.arange(x.size(2), device=x.device, dtype=at_least_float32(x).dtype)
    channels = torch.arange(0, width, 2, device=x.device, dtype=numbers.dtype)
    angles = torch.outer(numbers, 10000 ** (-channels / width))
    cosine, sine = angles.cos(), angles.sin()
    first, second = x[..., :half], x[..., half:width]
    turned = [first * cosine - second * sine, second * cosine + first * sine]
    return torch.cat([*turned, x[..., width:]], dim=-1).to(x.dtype)


def state_gate(update: Tensor, write: Tensor, keep: Tensor, state: Tensor) -> Tensor:
    """tanh(update) sigma(write - 1) + state sigma(keep + 1), the next state; all are (B, N, C)."""
    return torch.tanh(update) * torch.sigmoid(write - 1) + state * torch.sigmoid(keep + 1)
