"""Limits on what a checkpoint may ask for, relative to its size, checked before it is granted.

Trusted: nothing in the file. torch stores tensors uncompressed and each once, so what a good file
holds is as large as the file, and the model that is built from it is not much larger.
"""

import os
import zipfile
from argparse import Namespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_recur.errors import CheckpointError

MOST_TIMES = 16
"""How many times larger than the file its tensors, or the model built from it, may be: a tied
matrix is in the file once and counted up to three times, and half precision becomes single."""

SPARE = 1 << 26
"""Bytes that any model may allocate, for tables of positions and the like."""

ADVICE = "Do not use the file; get the weights from a source that you trust"


def refuse_compressed(path: str, archive: zipfile.ZipFile) -> None:
    """Refuse a zip file whose content is larger than itself.

    Raises:
        CheckpointError: it has compressed or overlapping entries, which torch does not write
    """
    entries = archive.infolist()
    total = sum(entry.file_size for entry in entries)
    if any(e.compress_type != zipfile.ZIP_STORED for e in entries) or total > os.path.getsize(path):
        raise CheckpointError(
            f"{path}: refused, because its {len(entries)} entries hold {total:,} bytes: expected "
            f"uncompressed ones, as torch writes them. Nothing was loaded. {ADVICE}"
        )


def refuse_oversized(path: str, state: Any) -> None:
    """Refuse a state that is far larger than its file.

    Raises:
        CheckpointError: its tensors overlap, its options repeat each other, or it names more
            layers than it has weights
    """
    size = os.path.getsize(path)
    asked = tensor_bytes(state, set())
    if asked > MOST_TIMES * size:
        raise CheckpointError(
            f"{path}: refused, because {size:,} bytes ask for tensors of {asked:,}: expected no "
            f"more than the file holds. {ADVICE}"
        )
    if not isinstance(state, dict):
        return
    for name in ("args", "cfg"):
        if expanded(state.get(name), {}) > size:
            raise CheckpointError(
                f"{path}: refused, because its options repeat each other without end: expected "
                f"each once. {ADVICE}"
            )
    weights = len(state["model"]) if isinstance(state.get("model"), dict) else 0
    cfg = state.get("cfg")
    for options in (state.get("args"), cfg.get("model") if isinstance(cfg, dict) else None):
        for name, count in layers(options):
            if count > max(weights, 1):
                raise CheckpointError(
                    f"{path}: refused, because its option {name}={count} asks for more layers "
                    f"than its {weights} weights: expected the options of its training. {ADVICE}"
                )


def inner(value: Any) -> list[Any]:
    """Return what a container holds."""
    if isinstance(value, Namespace):
        value = vars(value)
    if isinstance(value, dict):
        return [*value, *value.values()]
    return list(value) if isinstance(value, (list, tuple, set)) else []


def tensor_bytes(value: Any, seen: set[int]) -> int:
    """Return the bytes that the tensors in a value take when each is copied once."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if id(value) in seen:
        return 0
    seen.add(id(value))
    return sum(tensor_bytes(item, seen) for item in inner(value))


def expanded(value: Any, known: dict[int, int]) -> int:
    """Return how many values there are when shared containers are copied; a cycle has no end."""
    if id(value) not in known:
        known[id(value)] = 1 << 62  # within itself
        known[id(value)] = 1 + sum(expanded(item, known) for item in inner(value))
    return known[id(value)]


def layers(options: Any) -> list[tuple[str, int]]:
    """Return the options that are numbers of layers."""
    if isinstance(options, Namespace):
        options = vars(options)
    if not isinstance(options, dict):
        return []
    found = [layers(value) for value in options.values()]
    own = [
        (k, v) for k, v in options.items()
        if type(k) is str and k.endswith("layers") and type(v) is int
    ]  # fmt: skip
    return sum(found, own)


class Allowance(TorchDispatchMode):
    """Within this context, tensors may be made up to the bytes that a checkpoint allows."""

    def __init__(self, path: str, state: dict[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # in torch
        self.path = path
        self.allowed = MOST_TIMES * tensor_bytes(state["model"], set()) + SPARE
        self.made = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Count what an operation makes; of one with a size, before it makes it.

        Raises:
            CheckpointError: it is too much
        """
        size = args[0] if args else None
        if function.namespace == "aten" and isinstance(size, (list, tuple)):
            if all(isinstance(n, int) for n in size):
                self.count(4 * torch.Size(size).numel())
        elif function.overloadpacket is torch.ops.aten.arange and isinstance(args[-1], int):
            self.count(8 * args[-1])
        return function(*args, **(kwargs or {}))

    def count(self, size: int) -> None:
        """Add what is made now."""
        self.made += size
        if self.made > self.allowed:
            raise CheckpointError(
                f"{self.path}: refused, because its options ask for a model of more than "
                f"{self.allowed:,} bytes, too many for its weights: expected the options of its "
                f"training. {ADVICE}"
            )
