"""The recurrent accumulate-and-fire neuron (Long et al. 2023, section 3.3, appendix A.2).

    mem = leak mem + x;   y = mem / thr - 1;   out = relu(y);   mem = mem - thr [y > 0]

`scan_` leaves the division by thr to its caller: it gives thr out = relu(mem - thr).
"""

import torch
from torch import Tensor

SMALLEST_THRESHOLD = 1e-3
"""What the learned threshold is kept above, so that its sign cannot flip."""

SURROGATE_HEIGHT = 0.3
"""Of the triangle that stands for the step's derivative."""


def scan_(
    inputs: Tensor, leak: float, threshold: float, out: Tensor | None = None
) -> Tensor | None:
    """All steps, without gradients; leaves each step's memory before its reset in *inputs*.

    Args:
        inputs: x (R, N, D, D)
        out: where to put thr out = relu(mem - thr), of the same shape; None if it is not needed

    Returns:
        *out*
    """
    memory, signs = torch.zeros_like(inputs[:, 0]), torch.empty_like(inputs[:, 0])
    for step in range(inputs.size(1)):
        state = inputs[:, step].add_(memory, alpha=leak)
        fired = signs if out is None else out[:, step]
        torch.sub(state, threshold, out=fired).relu_()
        # A sign is several times as fast as a comparison.
        torch.sub(state, torch.sign(fired, out=signs), alpha=threshold, out=memory)
    return out


def accumulate_fire(
    x: Tensor, memory: Tensor, leak: Tensor, threshold: Tensor, surrogate: bool = False
) -> tuple[Tensor, Tensor]:
    """One step, differentiable.

    Args:
        x: the input, of any shape
        memory: of the same shape
        leak, threshold: scalars, the threshold positive
        surrogate: give the step [y > 0] the derivative 0.3 max(0, 1 - |y|); without, it has
            none

    Returns:
        out, and the new memory
    """
    memory = leak * memory + x
    y = memory / threshold - 1
    spike = (y > 0).to(y.dtype)
    if surrogate:
        slope = SURROGATE_HEIGHT * (1 - y.detach().abs()).clamp(min=0)
        spike = spike + slope * (y - y.detach())
    return torch.relu(y), memory - threshold * spike
