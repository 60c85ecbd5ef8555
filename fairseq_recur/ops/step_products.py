"""The products of a recurrence's steps with its weight, whose gradient is one product.

By itself, autograd computes a gradient of the weight at each step, from few rows, and adds them up.
Here the inputs of all steps are multiplied at once with the gradients of all steps.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class CollectedGradient(torch.autograd.Function):
    """Zeros that are added to the products of all steps, and so receive their gradients."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, inputs: list[Tensor], steps: int, rows: int) -> Tensor:
        """Zeros, (N, R, B, O); arguments as in `step_products`, and the list to be filled."""
        ctx.inputs = inputs
        return weight.new_zeros(()).expand(weight.size(0), steps, rows, weight.size(1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """The gradient of the weight."""
        inputs = torch.stack(ctx.inputs, dim=1).flatten(1, 2)  # (N, R B, I)
        return torch.bmm(grad.flatten(1, 2).transpose(1, 2), inputs), None, None, None


def step_products(weight: Tensor, steps: int, rows: int) -> Callable[[Tensor], Tensor]:
    """The products x W^T of N units as a function of x, which is called at each step.

    Args:
        weight: W, (N, O, I)
        steps: R, the number of calls
        rows: B

    Returns:
        maps (N, B, I) to (N, B, O)
    """
    if torch.compiler.is_compiling():  # its graph has no place for a list that is filled later
        return lambda x: torch.bmm(x, weight.transpose(1, 2))
    inputs: list[Tensor] = []
    zeros = CollectedGradient.apply(weight, inputs, steps, rows)  # type: ignore[no-untyped-call]
    slots = iter(zeros.unbind(1))
    fixed = weight.detach().transpose(1, 2)

    def product(x: Tensor) -> Tensor:
        # Detached: the inputs' graph leads back to the list. Under autocast their dtypes differ.
        inputs.append(x.detach().to(weight.dtype))
        return torch.baddbmm(next(slots), x, fixed)

    return product
