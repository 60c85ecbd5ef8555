"""Floating-point tensors without data together with real integers, because models read lengths and
positions.
"""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

aten = torch.ops.aten


class RealIntegers(TorchDispatchMode):
    """Gives integer buffers data while a model is built under ``torch.device("meta")``."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        args, kwargs = on_one_device(func, args, kwargs, tensors)
        return func(*args, **kwargs)


class RealNumbers(TorchFunctionMode):
    """Does the same for ``torch.tensor``, which bypasses the dispatcher.

    And gives ``torch.linspace`` its device, which ``torch.device`` may not do: on its first use in
    a process it lists the functions that make tensors, and while transformers loads a model another
    function has this one's place.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.linspace:
            kwargs.setdefault("device", "meta")
        if func is not torch.tensor or kwargs.get("device") is not None:
            return func(*args, **kwargs)
        made = func(*args, **{**kwargs, "device": "cpu"})
        return made.to(device="meta") if made.is_floating_point() else made


def on_one_device(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Adapt the arguments of an operation: integers have data, floats are on the meta device."""
    device = kwargs.get("device")
    if func is aten._to_copy.default and tensors[0].is_meta:
        kwargs["device"] = torch.device("meta")  # there is no data to move
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
