"""The gradients of a recurrence whose weight has one product for all steps, however it is used.

`test_ops.py` compares the products with loops; here they are compared with autograd's own.
"""

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from fairseq_recur.ops.step_products import step_products

UNITS, STEPS, ROWS, WIDTH = 2, 3, 4, 5

Form = Callable[[Tensor, int, int], Callable[[Tensor], Tensor]]
States = Callable[[Tensor, Tensor], Tensor]


def by_autograd(weight: Tensor, steps: int, rows: int) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.bmm(x, weight.transpose(1, 2))


def states_of(form: Form) -> States:
    """A recurrence h_t = tanh(W h_{t-1}), as a function of W and h_0: its R states."""

    def states(weight: Tensor, h: Tensor) -> Tensor:
        product, found = form(weight, STEPS, ROWS), []
        for _ in range(STEPS):
            h = torch.tanh(product(h))
            found.append(h)
        return torch.stack(found)

    return states


WAYS: dict[str, Callable[[States, Tensor, Tensor], Tensor]] = {
    "once": lambda states, weight, h: states(weight, h),
    "twice": lambda states, weight, h: states(weight, h) * states(weight, 2 * h),
    "in a row": lambda states, weight, h: states(weight, states(weight, h)[-1]),
    "first state": lambda states, weight, h: states(weight, h)[0],
    "checkpointed": lambda states, weight, h: checkpoint(states, weight, h, use_reentrant=False),
    "computed weight": lambda states, weight, h: states(weight.tanh(), h),
}


def inputs(dtype: torch.dtype, asked: tuple[bool, bool]) -> tuple[Tensor, Tensor]:
    shapes = (UNITS, WIDTH, WIDTH), (UNITS, ROWS, WIDTH)
    weight, h = (torch.randn(s).to(dtype).requires_grad_(a) for s, a in zip(shapes, asked))
    return weight, h


@pytest.mark.parametrize("asked", [(True, True), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_autograds(way: str, asked: tuple[bool, bool]) -> None:
    """Also when they are asked for twice."""
    given = inputs(torch.float64, asked)
    wanted = [x for x in given if x.requires_grad]
    found = []
    for form in (step_products, by_autograd):
        out = WAYS[way](states_of(form), *given)
        loss = (out * torch.arange(1.0, 1 + WIDTH)).sum()
        once, again = (torch.autograd.grad(loss, wanted, retain_graph=True) for _ in range(2))
        assert all(map(torch.equal, once, again))
        found.append([out, *once])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_precisions(dtype: torch.dtype, autocast: bool) -> None:
    given, found = inputs(dtype, (True, True)), []
    for form in (step_products, by_autograd):
        with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
            out = states_of(form)(*given)
        found.append([out, *torch.autograd.grad(out.float().sum(), given)])
        assert {x.dtype for x in found[-1][1:]} == {dtype}
    close = {} if dtype == out.dtype == torch.float32 else {"rtol": 0.05, "atol": 0.05}
    torch.testing.assert_close(*found, **close)


def test_without_gradients() -> None:
    given = inputs(torch.float64, (True, True))
    with torch.no_grad():
        found, expected = (states_of(form)(*given) for form in (step_products, by_autograd))
    assert not found.requires_grad
    torch.testing.assert_close(found, expected)


class Products(TorchDispatchMode):
    """Counts the matrix products with a result as large as the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func._overloadpacket is torch.ops.aten.bmm:
            self.count += out.size() == (UNITS, WIDTH, WIDTH)
        return out


@pytest.mark.parametrize("form, count", [(step_products, 1), (by_autograd, STEPS)])
def test_one_product_for_all_steps(form: Form, count: int) -> None:
    out = states_of(form)(*inputs(torch.float64, (True, True)))
    with Products() as products:
        out.sum().backward()
    assert products.count == count


def test_a_graph_is_freed_with_its_result() -> None:
    """No input that the backward pass keeps leads back to it."""
    weight, h = inputs(torch.float64, (True, True))
    product = step_products(weight, 2, ROWS)
    state = torch.tanh(product(h))
    kept, out = weakref.ref(state), product(state)
    del state, product, out
    assert kept() is None
