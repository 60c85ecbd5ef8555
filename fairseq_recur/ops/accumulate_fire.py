"""The recurrent accumulate-and-fire neuron (Long et al. 2023, section 3.3, appendix A.2).

    mem = leak mem + x;   y = mem / thr - 1;   out = relu(y);   mem = mem - thr [y > 0]

Letters: R rows, one per head of a sentence; N steps of the neuron.

`scan_` leaves the division by thr to its caller: it computes thr out = relu(mem - thr).
"""

from typing import Any

import torch
from torch import Tensor

SMALLEST_THRESHOLD = 1e-3
"""Lower bound of the learned threshold, which keeps its sign."""

SURROGATE_HEIGHT = 0.3
"""Height of the triangle that replaces the step's derivative."""


def scan_(
    inputs: Tensor, leak: Tensor, threshold: Tensor, out: Tensor | None = None
) -> Tensor | None:
    """All steps, without gradients; replaces *inputs* by the memory before each step's reset.

    Args:
        inputs: x, (R, N, D, D)
        leak, threshold: scalars or (R, 1, 1), the threshold positive; tensors, so that a GPU
            does not wait
        out: receives thr out = relu(mem - thr), in the same shape; None if it is not needed

    Returns:
        *out*
    """
    memory, signs = torch.zeros_like(inputs[:, 0]), torch.empty_like(inputs[:, 0])
    for step in range(inputs.size(1)):
        state = inputs[:, step].add_(memory.mul_(leak))
        fired = signs if out is None else out[:, step]
        torch.sub(state, threshold, out=fired).relu_()
        # torch.sign is several times as fast as a comparison.
        torch.sub(state, torch.sign(fired, out=signs).mul_(threshold), out=memory)
    return out


class _AtLeast(torch.autograd.Function):
    """The form of `at_least` with its own gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bound: float) -> Tensor:
        """Return max(x, bound)."""
        ctx.save_for_backward(x)
        ctx.bound = bound
        return x.clamp(min=bound)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Stop what would lower an *x* that is below the bound."""
        (x,) = ctx.saved_tensors
        return gradient.masked_fill((x < ctx.bound) & (gradient > 0), 0.0), None


def at_least(x: Tensor, bound: float) -> Tensor:
    """max(x, bound), from whose lower side gradient descent can return.

    Below the bound `clamp` has no gradient, so a learned value that falls there stays there. This
    has one where it raises *x*.

    Args:
        x: of any shape
        bound: the lower bound

    Returns:
        the same shape
    """
    return _AtLeast.apply(x, bound)  # type: ignore[no-untyped-call]


def accumulate_fire(
    x: Tensor, memory: Tensor, leak: Tensor, threshold: Tensor, surrogate: bool = False
) -> tuple[Tensor, Tensor]:
    """One differentiable step.

    Args:
        x: input, of any shape
        memory: in the shape of *x*
        leak, threshold: scalars, or broadcastable to *x*; the threshold positive
        surrogate: give the step [y > 0] the derivative 0.3 max(0, 1 - |y|) instead of 0

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


def of_heads(scalar: Tensor) -> Tensor:
    """A value of all heads () as it is, or one of each (H,) as (H, 1, 1)."""
    return scalar[:, None, None] if scalar.dim() else scalar


def neuron_inputs(partial: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x_i = P_i W^T + b, along the channels of the values.

    Args:
        partial: P_i, (B, H, N, D, D)
        weight: W, (D, D), or (H, D, D) for neurons of each head
        bias: b, (D,) or (H, D), as in appendix A.2; None as in the published code

    Returns:
        (B, H, N, D, D)
    """
    if weight.dim() == 3:
        weight = weight.unsqueeze(1)
    inputs = torch.matmul(partial, weight.transpose(-1, -2))
    if bias is None:
        return inputs
    return inputs + (bias if bias.dim() == 1 else bias[:, None, None, :])


def recurrent_accumulate_fire(
    inputs: Tensor, leak: Tensor, threshold: Tensor, surrogate: bool = False
) -> Tensor:
    """The neurons' outputs at all steps.

    Args:
        inputs: x_i, (B, H, N, D, D)
        leak, threshold: scalars, or (H,) for neurons of each head, the threshold positive
        surrogate: as in `accumulate_fire`

    Returns:
        (B, H, N, D, D)
    """
    leak, threshold = of_heads(leak), of_heads(threshold)
    memory, outputs = torch.zeros_like(inputs[:, :, 0]), []
    for x in inputs.unbind(2):
        out, memory = accumulate_fire(x, memory, leak, threshold, surrogate)
        outputs.append(out)
    return torch.stack(outputs, dim=2)
