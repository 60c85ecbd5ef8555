"""Rotated positions and the gate of a recurrent state, as loops."""

import math

import torch
from torch import Tensor


def rotary(vectors: list[Tensor], width: int) -> Tensor:
    """Each pair of channels as a complex number, multiplied by e^{i t w_k}: (T, D)."""
    half, outputs = width // 2, []
    for t, vector in enumerate(vectors):
        points = []
        for k in range(half):
            angle = t * 10000 ** (-2 * k / width)
            turn = torch.tensor(complex(math.cos(angle), math.sin(angle)), dtype=torch.complex128)
            points.append(torch.complex(vector[k], vector[half + k]) * turn)
        parts = [p.real for p in points] + [p.imag for p in points]
        outputs.append(torch.stack([*parts, *vector[width:]]))
    return torch.stack(outputs)


def state_gate(update: Tensor, write: Tensor, keep: Tensor, state: Tensor) -> Tensor:
    """The next state of one state vector, with each function written out: (C,)."""
    values = []
    for u, w, k, s in zip(update, write, keep, state):
        grown, shrunk = torch.exp(u), torch.exp(-u)
        let_in, kept = 1 / (1 + torch.exp(1 - w)), 1 / (1 + torch.exp(-1 - k))
        values.append((grown - shrunk) / (grown + shrunk) * let_in + s * kept)
    return torch.stack(values)
