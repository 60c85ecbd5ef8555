"""Which part of a model an operation belongs to, in the forward and in the backward pass."""

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks

PARTS: dict[str, tuple[str, ...]] = {
    "recurrence encoder": ("recurrence_encoder", "fusion", "columns"),
    "self-attention": ("self_attn",),
    "cross-attention": ("encoder_attn",),
    "feed-forward": ("fc1", "fc2"),
    "output": ("output_projection",),
}
"""What a plan calls the modules with such a name on their way; the first that fits."""

OTHER = "other"


class PartTracker:
    """Follows the modules of a model while they compute.

    Autograd numbers its nodes in the order of the forward pass, so that the number of the
    node that is being computed backward leads to the part that made it.
    """

    def __init__(self, model: nn.Module) -> None:
        self.of_module: dict[nn.Module, str] = {}
        for name, module in model.named_modules():
            words = set(name.split("."))
            part = next((p for p, names in PARTS.items() if not words.isdisjoint(names)), None)
            if part is not None:
                self.of_module[module] = part
        self.running: list[str] = []
        self.numbers: list[int] = []  # ascending, with the part of each
        self.parts: list[str] = []

    @contextmanager
    def follow(self) -> Iterator[None]:
        """While the model computes."""

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
        """The part of the operation that is being computed."""
        node = torch._C._current_autograd_node()
        if node is not None and not self.running:
            after = bisect_right(self.numbers, node._sequence_nr())
            return self.parts[after] if after < len(self.parts) else OTHER
        part = self.running[-1] if self.running else OTHER
        self.numbers.append(torch.autograd._get_sequence_nr())
        self.parts.append(part)
        return part
