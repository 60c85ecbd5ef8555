"""Gates, kernels, neurons and states in the training log, and with it in TensorBoard."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from fairseq.distributed import utils as distributed
from fairseq.logging import metrics
from fairseq.logging.meters import MetersDict
from torch import Tensor, nn

from fairseq_recur.modules.options import option
from fairseq_recur.modules.part import MonitoredModule

logger = logging.getLogger(__name__)

LARGEST_ROW = 100.0
"""Sum of a row of a matrix above which a warning is logged; 1 / (1 - |lambda|) at lambda = 0.99."""

PLACE = re.compile(r"(?:^|\.)(encoder|decoder|recurrence)(?:_encoder)?\.(?:_\w+\.)*layers\.(\d+)\.")
"""Finds the layer in a module's name, also between names of wrappers such as _orig_mod."""


@dataclass
class MonitoringOptions:
    """The option of the statistics in the training log."""

    monitor_interval: int = option(
        10,
        "updates between two observations of the recurrent parts: gates, spikes, norms and the "
        "time of an update in the training log and TensorBoard; 0: none",
    )


class Shown(NamedTuple):
    """A number for the log, and how much it counts in a mean."""

    value: float
    weight: float


def place(name: str) -> str:
    """The layer that a module is in, by its name: "encoder_0", "decoder_5", "recurrence_0".

    The mixture of a cross-attention is at "cross_5", as that of the self-attention is in the
    same layer.
    """
    found = PLACE.search(name)
    if not found:
        return name.replace(".", "_")
    cross = name.endswith("encoder_attn.mixture")
    return f"{'cross' if cross else found[1]}_{found[2]}"


def observed(model: nn.Module) -> list[tuple[str, MonitoredModule]]:
    """The modules that have statistics, each with its `place`."""
    modules = model.named_modules()
    return [
        (place(name), module) for name, module in modules if isinstance(module, MonitoredModule)
    ]


def of_parameters(model: nn.Module) -> dict[str, Shown]:
    """Values of the monitored parameters, as {"gate_encoder_0": (0.27, 1), ...}."""
    with torch.no_grad():
        values = {
            f"{name}_{layer}": value
            for layer, module in observed(model)
            for name, value in module.monitored().items()
        }
        if not values:
            return {}
        numbers = torch.stack(list(values.values())).tolist()
    return {name: Shown(number, 1.0) for name, number in zip(values, numbers)}


def of_activations(model: nn.Module, moments: list[Tensor]) -> dict[str, Shown]:
    """Statistics of one pass, summed over all workers, as {"spike_decoder_0": (0.4, n), ...}.

    Args:
        model: whose modules have observed it
        moments: what `MonitoredModule.unwatch` of each gave; layers that were dropped have nothing
    """
    if not any(len(rows) for rows in moments):
        return {}
    total = torch.cat(moments)
    if distributed.get_data_parallel_world_size() > 1:
        total = distributed.all_reduce(total, distributed.get_data_parallel_group())
    rows = iter(total.tolist())
    shown = {}
    for layer, module in observed(model):
        for name, (count, sum_, squares) in zip(module.means, rows):
            if not count:
                continue
            mean = sum_ / count
            shown[f"{name}_{layer}"] = Shown(mean, count)
            if name in module.deviations:
                variance = max(0.0, squares / count - mean**2)
                shown[f"{name}_sd_{layer}"] = Shown(variance**0.5, count)
    return shown


def step_time(meters: MetersDict) -> float:
    """Milliseconds of an update, data loading and validation aside.

    fairseq's own clock stops for them, but does not count updates. The meter of the gradient's
    norm does: it has one value per update.
    """
    if "train_wall" not in meters or "gnorm" not in meters or not meters["gnorm"].count:
        return float("nan")
    return round(1000 * float(meters["train_wall"].sum / meters["gnorm"].count), 1)


class Monitor:
    """Adds the statistics of a model's parts to fairseq's meters.

    An observation covers one update, with ``--update-freq`` each of its batches. A line of the log
    has the mean over the observations since the line before or, if there were none, the latest
    values.

    Args:
        interval: updates from one observation to the next, at least 1
    """

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.seen: dict[str, float] = {}
        self.first: int | None = None
        self.looking = False
        self.warned: set[str] = set()

    def before(self, model: nn.Module, num_updates: int) -> None:
        """Call this before each forward pass of training."""
        self.first = num_updates if self.first is None else self.first
        self.looking = num_updates == self.first or num_updates % self.interval == 0
        metrics.log_derived("step_time", step_time, priority=899)
        for name, value in self.seen.items():
            # fairseq's meters use a value of weight zero only if they have no other.
            metrics.log_scalar(name, value, weight=0, priority=900, round=4)
        if self.looking:
            self.show(of_parameters(model))
            self.warn()

    @contextmanager
    def look(self, model: nn.Module) -> Iterator[None]:
        """Observe one forward pass: the first of a batch. Further ones are not observed."""
        self.looking = False
        modules = [module for _, module in observed(model)]
        device = next(model.parameters()).device
        for module in modules:
            module.watch(device)
        try:
            yield
        finally:
            moments = [module.unwatch() for module in modules]
        self.show(of_activations(model, moments))

    def show(self, values: dict[str, Shown]) -> None:
        """Log the values, and keep them for updates that are not observed."""
        for name, (value, weight) in values.items():
            self.seen[name] = value
            metrics.log_scalar(name, value, weight=weight, priority=900, round=4)

    def warn(self) -> None:
        """Warn of matrices whose rows have become too large."""
        for name, value in self.seen.items():
            if name.startswith("rem_") and value > LARGEST_ROW and name not in self.warned:
                self.warned.add(name)
                logger.warning(
                    f"{name}: the absolute values of a row of a recurrence encoding matrix add "
                    f"up to {value:.0f} (a decay close to 1), so that its product can outgrow "
                    "the attention beside it; --rsa-normalize bounds the rows, a smaller "
                    "--rsa-max-power or --lr helps as well"
                )
