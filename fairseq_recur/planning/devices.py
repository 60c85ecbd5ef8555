"""Floats without numbers beside real integers, which models ask for lengths and positions."""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

aten = torch.ops.aten


class RealIntegers(TorchDispatchMode):
    """While a model is built under ``torch.device("meta")``: its integer buffers are real."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        args, kwargs = on_one_device(func, args, kwargs, tensors)
        return func(*args, **kwargs)


class RealNumbers(TorchFunctionMode):
    """The same for ``torch.tensor``, which makes its tensors beside the dispatcher."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is not torch.tensor or kwargs.get("device") is not None:
            return func(*args, **kwargs)
        made = func(*args, **kwargs, device="cpu")
        return made.to(device="meta") if made.is_floating_point() else made


def on_one_device(
    func: Any, args: tuple, kwargs: dict[str, Any], tensors: list[Tensor]
) -> tuple[tuple, dict[str, Any]]:
    """The arguments of an operation, such that integers are real and floats are on meta.

    Args:
        func: the operation
        args, kwargs: its arguments
        tensors: all tensors among them
    """
    device = kwargs.get("device")
    if func is aten._to_copy.default and tensors[0].is_meta:
        kwargs["device"] = torch.device("meta")  # there are no numbers to take elsewhere
    elif device is not None and torch.device(device).type == "meta":
        dtype = kwargs.get("dtype") or (tensors[0].dtype if tensors else None)
        if dtype is None and func._overloadpacket is aten.arange:
            numbers = all(isinstance(x, int) for x in args)
            dtype = torch.int64 if numbers else torch.float32
        whole = dtype is not None and not dtype.is_floating_point
        if whole and not any(x.is_meta for x in tensors):
            kwargs["device"] = torch.device("cpu")
    elif any(x.is_meta for x in tensors):
        args, kwargs = tree_map(_to_meta, (args, kwargs))
    return args, kwargs


def _to_meta(x: Any) -> Any:
    if isinstance(x, Tensor) and not x.is_meta:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
    return x
