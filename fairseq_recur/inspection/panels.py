"""Captured maps as labelled matrices: selecting them, and naming their rows and columns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_recur.errors import ConfigError
from fairseq_recur.inspection.capture import KINDS, Maps, places
from fairseq_recur.modules.biarn import BiARN

NAMES = {
    "encoder": "self-attention of the encoder",
    "decoder": "self-attention of the decoder",
    "cross": "cross-attention over the encoder",
    "steps": "steps of the recurrence encoder",
    "fusion": "attention over the recurrence encoder",
    "gate": "gate of the gated sum",
}

ABSENT = {
    "encoder": "its encoder has no self-attention",
    "decoder": "its decoder has no self-attention",
    "cross": "its decoder has no attention weights over the source",
    "steps": "it has no recurrence encoder that attends to the source (--recurrence biarn)",
    "fusion": "its decoder layers attend to no recurrence encoder (--recurrence biarn or birnn)",
    "gate": "it has no gated sum (--recurrence-fusion gated_sum)",
}

QUANTILES = (0.1, 0.9)
"""Quantiles of a gate's channels, which are shown with the mean."""


@dataclass(frozen=True)
class Labels:
    """The tokens of a sentence pair.

    Attributes:
        source: the encoder's input
        read: the decoder's input
        target: the decoder's output
    """

    source: list[str]
    read: list[str]
    target: list[str]


@dataclass(frozen=True)
class Panel:
    """One labelled matrix.

    Attributes:
        kind: one of `KINDS`
        layer: of the encoder, the decoder or the recurrence encoder, from 0
        head: from 0, "mean", or None where there are no heads
        title: describes the matrix
        row_title, column_title: describe the rows and columns
        rows, columns: their labels
        values: (rows, columns). The columns of a gate are the mean over the channels and two
            quantiles, or the value of a scalar gate
    """

    kind: str
    layer: int
    head: Any
    title: str
    row_title: str
    column_title: str
    rows: list[str]
    columns: list[str]
    values: Tensor

    def as_json(self) -> dict[str, Any]:
        """The fields, with the values as lists of rows."""
        return {**vars(self), "values": self.values.tolist()}


def panels(
    model: nn.Module,
    maps: Maps,
    labels: Labels,
    show: Sequence[str] | None = None,
    layer: str = "top",
    head: str = "mean",
) -> list[Panel]:
    """Select matrices, in the order of `KINDS`.

    Args:
        model: the model of the maps
        maps: from `look`
        labels: of the positions
        show: some of `KINDS`; None for all that the model has
        layer: "top" for the top layer of each kind, "all", or a number
        head: "mean", "all", or a number

    Raises:
        ConfigError: the model does not have the kind, layer or head; the message lists what it has
    """
    modules = {place: module for place, module in places(model).items() if place in maps}
    there = {kind: [i for k, i in modules if k == kind] for kind in KINDS}
    chosen: list[Panel] = []
    for kind in KINDS if show is None else sorted(set(show), key=KINDS.index):
        if not there[kind] and show is not None:
            has = ", ".join(k for k in KINDS if there[k]) or "none of the kinds"
            raise ConfigError(
                f"--show {kind}: {ABSENT[kind]}; this model has {has}; choose from these"
            )
        for index in choose_layers(kind, there[kind], layer, required=show is not None):
            place = Place(model, modules[kind, index], kind, index, labels)
            chosen += place.panels(maps[kind, index], head)
    if chosen and head.isdecimal() and all(panel.head is None for panel in chosen):
        kinds = ", ".join(dict.fromkeys(panel.kind for panel in chosen))
        raise ConfigError(f"--head {head}: no heads in {kinds} of this model; leave it out")
    if not chosen:
        has = "; ".join(f"{k} has {span(there[k])}" for k in KINDS if there[k])
        raise ConfigError(
            f"--layer {layer}: {has or 'the model is not a Transformer'}; choose another layer"
        )
    return chosen


def choose_layers(kind: str, there: list[int], layer: str, required: bool) -> list[int]:
    """Select among the layers that a kind has; ConfigError if a required layer is missing."""
    if layer == "all":
        return there
    if layer == "top":
        return there if kind == "gate" else there[-1:]
    if int(layer) in there:
        return [int(layer)]
    if required:
        raise ConfigError(f"--layer {layer}: {kind} has {span(there)}; choose from these")
    return []


def span(numbers: list[int]) -> str:
    """Describe layers: "layer 5" or "layers 0 to 5"."""
    if len(numbers) == 1:
        return f"layer {numbers[0]}"
    return f"layers {numbers[0]} to {numbers[-1]}"


@dataclass(frozen=True)
class Place:
    """One place of a model and a sentence."""

    model: Any
    module: nn.Module
    kind: str
    layer: int
    labels: Labels

    def panels(self, values: Tensor, head: str) -> Iterator[Panel]:
        """Make the panels of this place's map."""
        if self.kind == "gate":
            yield self.gate(values)
        elif self.kind == "steps":
            for name, chain in zip(("forward", "backward"), values):
                yield from self.heads(chain, head, f", {name}")
        else:
            yield from self.heads(values, head, "")

    def heads(self, values: Tensor, head: str, more: str) -> Iterator[Panel]:
        """Make the panels of the selected heads of (H, T, S)."""
        heads = len(values)
        if isinstance(self.module, BiARN) and heads == 1:  # additive attention has no heads
            yield self.panel(values[0], None, more)
        elif head == "mean":
            yield self.panel(values.mean(0), "mean", f"{more}, mean of {heads} heads")
        else:
            if head != "all" and not 0 <= int(head) < heads:
                raise ConfigError(
                    f"--head {head}: {self.kind} has heads 0 to {heads - 1}; choose from these"
                )
            for number in range(heads) if head == "all" else [int(head)]:
                yield self.panel(values[number], number, f"{more}, head {number}")

    def panel(self, values: Tensor, head: Any, more: str) -> Panel:
        """Label one matrix."""
        title = f"{NAMES[self.kind]}\nlayer {self.layer}{more}{note(self.module)}"
        row_title, rows = self.rows(len(values))
        column_title, columns = self.columns(values.size(1))
        return Panel(
            self.kind, self.layer, head, title, row_title, column_title, rows, columns, values
        )

    def gate(self, values: Tensor) -> Panel:
        """Summarize lambda over the target positions, (T, C) or (T, 1)."""
        if values.size(1) == 1:
            columns = ["lambda"]
        else:
            columns = ["mean", *(f"{q:.0%} of the channels are below" for q in QUANTILES)]
            ends = torch.quantile(values, torch.tensor(QUANTILES), dim=1)
            values = torch.stack([values.mean(1), *ends], dim=1)
        return Panel(
            self.kind, self.layer, None, NAMES[self.kind], "predicts", "lambda",
            self.labels.target, columns, values,
        )  # fmt: skip

    def rows(self, number: int) -> tuple[str, list[str]]:
        """Describe and label the rows."""
        if self.kind == "encoder":
            return "source", self.labels.source
        if self.kind == "steps":
            return "step", [str(step) for step in range(1, number + 1)]
        return "predicts", self.labels.target

    def columns(self, number: int) -> tuple[str, list[str]]:
        """Describe and label the columns."""
        positions = [str(position) for position in range(1, number + 1)]
        if self.kind == "decoder":
            return "input so far", self.labels.read
        if self.kind == "steps" and self.layer > 0 and not self.per_token():
            return f"state of the recurrence layer {self.layer - 1} below", positions
        if self.kind == "fusion" and not self.per_token():
            last = number + 1
            return f"state n: forward step n, backward step {last} \u2212 n", positions
        return "source", self.labels.source

    def per_token(self) -> bool:
        """Whether the recurrence encoder has an output per source token, not per step."""
        return bool(self.model.encoder.recurrence_encoder.keeps_length)


def note(module: nn.Module) -> str:
    """Explain an attention's weights if they are not its whole result."""
    if getattr(module, "mixture", None) is not None:
        return "\n(1 \u2212 g) softmax + g P"
    covers = getattr(module, "covers", "")  # fairseq's own modules cover all
    return f"\n{covers}" if covers else ""
