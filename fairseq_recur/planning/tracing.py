"""Running a training step on tensors without data, and recording what it would cost.

Floating-point tensors are on torch's meta device. They have shapes but no memory, so a step of any
model at any length takes about a second. The operations counted are those that the model calls;
there are no formulas for its parts.
"""

import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torch.utils.flop_counter import flop_registry

from fairseq_recur.planning.building import Built, Sample
from fairseq_recur.planning.meta_tensors import on_one_device

aten = torch.ops.aten

PARTS: dict[str, tuple[str, ...]] = {
    "recurrence encoder": ("recurrence_encoder", "fusion", "columns"),
    "self-attention": ("self_attn",),
    "cross-attention": ("encoder_attn",),
    "feed-forward": ("fc1", "fc2"),
    "output": ("output_projection", "adaptive_softmax", "projection"),
}
"""Names of a plan's parts, and the module names that belong to them; the first match counts.

What stands elsewhere and is added to fairseq's Transformer, such as a block-recurrent layer, is a
part of its own, by the name of its slot.
"""

OTHER = "other"


class Operation(NamedTuple):
    """One kernel: the part of the model it belongs to, its FLOPs and bytes of memory traffic."""

    part: str
    flops: int
    bytes: int


class Trace(NamedTuple):
    """The cost of a forward and a backward pass.

    Attributes:
        operations: in order, without views
        forward: number of operations in the forward pass
        saved: bytes that the forward pass keeps for the backward pass, without parameters
        peak: largest number of bytes alive, without parameters and their gradients
    """

    operations: list[Operation]
    forward: int
    saved: int
    peak: int

    @property
    def flops(self) -> int:
        """FLOPs of all operations."""
        return sum(operation.flops for operation in self.operations)


def flops_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    """FLOPs by torch's formulas, and by our own for the in-place products that torch lacks."""
    packet = func._overloadpacket
    if packet in (aten.baddbmm_, aten.addmm_):  # add the product of (..., X, Y) and (..., Y, Z)
        return 2 * args[1].numel() * args[2].size(-1)
    if packet not in flop_registry:
        return 0
    kwargs = {name: value for name, value in kwargs.items() if name != "out"}
    return flop_registry[packet](*args, **kwargs, out_val=out)


class PartTracker:
    """Assigns operations to parts of the model, in the forward and in the backward pass.

    Autograd numbers its nodes in the order of the forward pass. In the backward pass the number of
    the current node therefore leads to the part that created it.
    """

    def __init__(self, model: nn.Module) -> None:
        self.of_module: dict[nn.Module, str] = {}
        for name, module in model.named_modules():
            words = set(name.split("."))
            part = next((p for p, names in PARTS.items() if not words.isdisjoint(names)), None)
            if part is not None:
                self.of_module[module] = part
            elif isinstance(slot := getattr(module, "slot", None), str):  # a `FreshWeights`
                self.of_module.update(dict.fromkeys(module.modules(), slot))
        self.running: list[str] = []
        self.numbers: list[int] = []  # ascending
        self.parts: list[str] = []  # one per number

    @contextmanager
    def follow(self) -> Iterator[None]:
        """Follow the modules while the model computes."""

        def enter(module: nn.Module, _: Any) -> None:
            if module in self.of_module:
                self.running.append(self.of_module[module])

        def leave(module: nn.Module, *_: Any) -> None:
            if module in self.of_module:
                self.running.pop()

        handles = [
            hooks.register_module_forward_pre_hook(enter),
            hooks.register_module_forward_hook(leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def part(self) -> str:
        """The part of the current operation."""
        node = torch._C._current_autograd_node()
        if node is not None and not self.running:
            after = bisect_right(self.numbers, node._sequence_nr())
            return self.parts[after] if after < len(self.parts) else OTHER
        part = self.running[-1] if self.running else OTHER
        number = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]  # not public
        self.numbers.append(number)
        self.parts.append(part)
        return part


class _Recorder(TorchDispatchMode):
    """Records each operation; keeps floats on the meta device and integers on the CPU."""

    def __init__(self, part: Callable[[], str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no type for it
        self.part = part
        self.operations: list[Operation] = []
        # (storage number, bytes), the bytes negative when freed
        self.events: list[tuple[int, int]] = []
        self.numbers: dict[int, int] = {}  # of live storages, by address
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        if func is aten._local_scalar_dense.default and tensors[0].is_meta:
            return 1.0  # a learned scalar read as a Python number
        args, kwargs = on_one_device(func, args, kwargs, tensors)
        out = func(*args, **kwargs)
        results = [x for x in tree_flatten(out)[0] if isinstance(x, Tensor)]
        if any(x.is_meta for x in results):
            self._record(func, args, kwargs, out, tensors, results)
        return out

    def _record(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        out: Any,
        tensors: list[Tensor],
        results: list[Tensor],
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
        moved = sum(  # of an expanded tensor, its storage
            min(x.numel() * x.element_size(), x.untyped_storage().nbytes())
            for x in (*read, *results)
        )
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
        """The largest number of bytes alive, without the storages of the given numbers."""
        alive = most = 0
        for number, size in self.events:
            if number not in without:
                alive += size
                most = max(most, alive)
        return most


class _Saved:
    """The storages that autograd keeps, without parameters, each counted once while alive."""

    def __init__(self, built: Built) -> None:
        # A memory's buffers are replaced, so that other tensors get their addresses.
        replaced = [] if built.memory is None else list(map(id, built.memory.buffers()))
        kept = [x for x in built.model.buffers() if id(x) not in replaced]
        self.built = built
        self.parameters = {x.untyped_storage()._cdata for x in [*built.model.parameters(), *kept]}
        self.sizes: dict[int, int] = {}

    def pack(self, x: Tensor) -> Tensor:
        """Record a tensor that autograd is about to keep."""
        storage = x.untyped_storage()
        address = storage._cdata
        if address not in self.parameters and address not in self.sizes:
            self.sizes[address] = storage.nbytes()
            # Tensors saved for an unused result are freed before the backward pass.
            weakref.finalize(storage, self.sizes.pop, address, None).atexit = False
        return x

    def loss(self, batch: Sample) -> Tensor:
        """Compute the loss of a batch while recording, with a full memory."""
        built = self.built
        if built.memory is not None:
            like = next(built.model.parameters())
            built.memory.fill(batch["net_input"]["starts"], like)
        with torch.autograd.graph.saved_tensors_hooks(self.pack, lambda x: x):
            return built.criterion(built.model, batch)[0]

    def bytes(self) -> int:
        """Bytes kept now."""
        return sum(self.sizes.values())


def trace(built: Built, batch: Sample) -> Trace:
    """Compute the loss and its gradients without data, and return the cost."""
    saved = _Saved(built)
    built.model.zero_grad(set_to_none=True)
    tracker = PartTracker(built.model)
    recorder = _Recorder(tracker.part)
    with tracker.follow(), recorder:
        loss = saved.loss(batch)
        forward, size = len(recorder.operations), saved.bytes()
        torch.autograd.backward(loss)
    gradients = [p.grad for p in built.model.parameters() if p.grad is not None]
    addresses = {g.untyped_storage()._cdata for g in gradients}
    kept = {number for address, number in recorder.numbers.items() if address in addresses}
    built.model.zero_grad(set_to_none=True)
    return Trace(recorder.operations, forward, size, recorder.peak(kept))
