"""Running a training step without its numbers, and writing down what it would cost.

Floating-point tensors are on torch's meta device: they have shapes and no memory, so that a
step of any model at any length takes a second. What is counted is what the model really calls:
no formula knows any part.
"""

import math
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torch.utils.flop_counter import flop_registry

from fairseq_recur.planning.building import Built, Sample
from fairseq_recur.planning.devices import on_one_device
from fairseq_recur.planning.parts import PartTracker

aten = torch.ops.aten


class Operation(NamedTuple):
    """One kernel: which part it belongs to, and its FLOPs and bytes of memory traffic."""

    part: str
    flops: int
    bytes: int


class Trace(NamedTuple):
    """What a forward and a backward pass cost.

    Attributes:
        operations: in their order, views left out
        forward: how many of them are the forward pass
        saved: bytes that the forward pass keeps for the backward pass, parameters aside
        peak: the most bytes alive at a time, parameters and their gradients aside
    """

    operations: list[Operation]
    forward: int
    saved: int
    peak: int

    @property
    def flops(self) -> int:
        """FLOPs of all operations."""
        return sum(operation.flops for operation in self.operations)


def _added_product(_: Any, left: tuple[int, ...], right: tuple[int, ...], **__: Any) -> int:
    """FLOPs of adding a product of (..., X, Y) and (..., Y, Z) in place."""
    return 2 * math.prod(left) * right[-1]


def flops_of(func: Any, args: tuple, kwargs: dict[str, Any], out: Any) -> int:
    """FLOPs by torch's own formulas; of those it lacks, the products in place."""
    packet = func._overloadpacket
    if packet in (aten.baddbmm_, aten.addmm_):
        return _added_product(*(x.shape for x in args[:3]))
    if packet not in flop_registry:
        return 0
    kwargs = {name: value for name, value in kwargs.items() if name != "out"}
    return flop_registry[packet](*args, **kwargs, out_val=out)


class _Recorder(TorchDispatchMode):
    """Writes down each operation, and keeps floats on meta and integers on the CPU."""

    def __init__(self, part: Callable[[], str]) -> None:
        super().__init__()
        self.part = part
        self.operations: list[Operation] = []
        self.events: list[tuple[int, int]] = []  # storage number, bytes; negative when freed
        self.numbers: dict[int, int] = {}  # of living storages, by their address
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        if func is aten._local_scalar_dense.default and tensors[0].is_meta:
            return 1.0  # a learned scalar that is read as a number
        args, kwargs = on_one_device(func, args, kwargs, tensors)
        out = func(*args, **kwargs)
        results = [x for x in tree_flatten(out)[0] if isinstance(x, Tensor)]
        if any(x.is_meta for x in results):
            self._write_down(func, args, kwargs, out, tensors, results)
        return out

    def _write_down(
        self, func: Any, args: Any, kwargs: Any, out: Any, tensors: list, results: list
    ) -> None:
        before = {x.untyped_storage()._cdata for x in tensors}
        for x in results:
            if x.is_meta and x.untyped_storage()._cdata not in before:
                self._allocated(x.untyped_storage())
        is_view = not func._schema.is_mutable and all(
            x.untyped_storage()._cdata in before for x in results
        )
        if is_view or "empty" in func._overloadpacket.__name__:
            return
        read = [] if func._overloadpacket is aten.embedding else tensors
        moved = sum(_bytes(x) for x in (*read, *results))
        self.operations.append(Operation(self.part(), flops_of(func, args, kwargs, out), moved))

    def _allocated(self, storage: torch.UntypedStorage) -> None:
        number, size, address = self.count, storage.nbytes(), storage._cdata
        self.count += 1
        self.numbers[address] = number
        self.events.append((number, size))

        def freed() -> None:
            self.events.append((number, -size))
            if self.numbers.get(address) == number:
                del self.numbers[address]

        weakref.finalize(storage, freed).atexit = False

    def peak(self, without: set[int]) -> int:
        """The most bytes alive, of all storages but some, by their numbers."""
        alive = most = 0
        for number, size in self.events:
            if number not in without:
                alive += size
                most = max(most, alive)
        return most


def _bytes(x: Tensor) -> int:
    """What an operation reads or writes of a tensor; of an expanded one its storage."""
    return min(x.numel() * x.element_size(), x.untyped_storage().nbytes())


class _Saved:
    """The storages that autograd keeps, parameters aside, each counted once while it lives."""

    def __init__(self, model: nn.Module) -> None:
        tensors = [*model.parameters(), *model.buffers()]
        self.parameters = {x.untyped_storage()._cdata for x in tensors}
        self.sizes: dict[int, int] = {}

    def pack(self, x: Tensor) -> Tensor:
        """Note what autograd is about to keep."""
        storage = x.untyped_storage()
        address = storage._cdata
        if address not in self.parameters and address not in self.sizes:
            self.sizes[address] = storage.nbytes()
            # What belongs to a result that nobody uses goes before the backward pass.
            weakref.finalize(storage, self.sizes.pop, address, None).atexit = False
        return x

    def loss(self, built: Built, batch: Sample) -> Tensor:
        """The loss of a batch, on the way to which tensors are noted."""
        with torch.autograd.graph.saved_tensors_hooks(self.pack, lambda x: x):
            return built.criterion(built.model, batch)[0]

    def bytes(self) -> int:
        """Of all that is kept now."""
        return sum(self.sizes.values())


def saved_bytes(built: Built, batch: Sample) -> int:
    """Bytes that a forward pass keeps for the backward pass; of a real model as well."""
    saved = _Saved(built.model)
    loss = saved.loss(built, batch)
    size = saved.bytes()
    del loss
    return size


def trace(built: Built, batch: Sample) -> Trace:
    """Compute the loss and its gradients without numbers, and return what that costs."""
    saved = _Saved(built.model)
    built.model.zero_grad(set_to_none=True)
    tracker = PartTracker(built.model)
    recorder = _Recorder(tracker.part)
    with tracker.follow(), recorder:
        loss = saved.loss(built, batch)
        forward, size = len(recorder.operations), saved.bytes()
        loss.backward()
    gradients = [p.grad for p in built.model.parameters() if p.grad is not None]
    kept = {recorder.numbers.get(g.untyped_storage()._cdata) for g in gradients}
    kept -= {None}
    built.model.zero_grad(set_to_none=True)
    return Trace(recorder.operations, forward, size, recorder.peak(kept))
