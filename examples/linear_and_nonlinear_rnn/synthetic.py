"""The data of the experiment: a two-layer RNN between linear and nonlinear (eq. 9 of the paper)."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

WIDTH = 2
LAYERS = 2
# Spectral norm of W_h. No activation has a slope above 1, so with a norm below 1 the influence of
# the past decays for every alpha.
RECURRENT_NORM = 0.5

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
}


class Layer(NamedTuple):
    """Weights of one layer: W_h (2, 2), W_z (2, 2), b (2)."""

    recurrent: Tensor
    input: Tensor
    bias: Tensor


class Sequence(NamedTuple):
    """Inputs x, outputs without the error z^(2), and targets y = z^(2) + error: each (T, 2)."""

    inputs: Tensor
    clean: Tensor
    targets: Tensor


def draw(seed: int, length: int, input_scale: float) -> tuple[list[Layer], Tensor, Tensor]:
    """Draw layers, inputs and errors; they depend on the seed, not on activation or alpha."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    layers = []
    for _ in range(LAYERS):
        recurrent = normal(WIDTH, WIDTH)
        recurrent *= RECURRENT_NORM / torch.linalg.matrix_norm(recurrent, ord=2)
        layers.append(Layer(recurrent, input_scale * normal(WIDTH, WIDTH), normal(WIDTH) / 2))
    return layers, normal(length, WIDTH), normal(length, WIDTH)


def generate(
    activation: str, alpha: float, seed: int, length: int, input_scale: float = 1.0
) -> Sequence:
    """Generate one sequence of eq. 9 from z_0 = 0, in float64.

    Args:
        activation: "tanh", "sigmoid" or "relu"
        alpha: weight of the nonlinear part, 0 to 1
        seed: for weights, inputs and errors
        length: T
        input_scale: standard deviation of the entries of W_z
    """
    layers, inputs, errors = draw(seed, length, input_scale)
    below = inputs
    for layer in layers:
        state = torch.zeros(WIDTH, dtype=torch.float64)
        states = []
        for x in below @ layer.input.T + layer.bias:
            linear = layer.recurrent @ state + x
            state = alpha * ACTIVATIONS[activation](linear) + (1 - alpha) * linear
            states.append(state)
        below = torch.stack(states)
    return Sequence(inputs, below, below + errors)


def segments(sequence: Sequence, length: int) -> Sequence:
    """Cut into segments of *length* positions: each (T, 2) becomes (N, length, 2)."""
    return Sequence(*(part.view(-1, length, WIDTH) for part in sequence))
