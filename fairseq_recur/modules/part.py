"""Mixins of the modules that a stock Transformer does not have."""

from collections.abc import Iterable, Mapping
from typing import ClassVar

import torch
from torch import Tensor


class FreshWeights:
    """A module whose weights a stock checkpoint does not have and need not have.

    Parts that only work together have the same ``slot``. If a checkpoint has none of the
    weights of a slot's parts, the model keeps its fresh weights and names the parts in the
    log. If it has some of them, it belongs to another architecture or is damaged, and
    loading it is an error.
    """

    slot: str


class MonitoredModule:
    """A module with numbers for the training log.

    `monitored` gives those of its parameters. Those of its activations are observed in the
    forward pass, only while the module is watched: at one update in ``--monitor-interval``. At
    all other updates, in evaluation, and when activation checkpointing recomputes a layer, the
    forward pass does what it would do without this class.
    """

    quantities: ClassVar[Mapping[str, str]] = {}
    """What the numbers are, by name, with their unit: the label of an axis."""

    means: tuple[str, ...] = ()
    """Names of the observed quantities; the log has the mean of each."""

    deviations: tuple[str, ...] = ()
    """Those of which the log also has the standard deviation, as ``NAME_sd``."""

    _moments: Tensor | None = None

    def monitored(self) -> dict[str, Tensor]:
        """Scalars of the parameters, by name."""
        return {}

    @property
    def watched(self) -> bool:
        """Whether the forward pass is to observe."""
        return self._moments is not None

    def watch(self, device: torch.device) -> None:
        """Start to observe, from zero."""
        self._moments = torch.zeros(len(self.means), 3, dtype=torch.float64, device=device)

    def unwatch(self) -> Tensor:
        """Stop, and return count, sum and sum of squares of each quantity: (means, 3)."""
        moments, self._moments = self._moments, None
        assert moments is not None
        return moments

    def observe(self, name: str, values: Tensor, padding: Tensor | None = None) -> None:
        """Add values to a quantity; only called while `watched`.

        Args:
            name: one of `means`
            values: any shape and dtype
            padding: bool, True at values that do not count; broadcast
        """
        assert self._moments is not None
        values = values.detach().to(torch.float64)
        count = torch.tensor(float(values.numel()), dtype=torch.float64, device=values.device)
        if padding is not None:
            values = values.masked_fill(padding, 0.0)
            count = (~padding).expand_as(values).sum()
        moments = torch.stack([count.to(values.dtype), values.sum(), values.square().sum()])
        self._moments[self.means.index(name)] += moments


def exempt_from_decay(*parameters: torch.nn.Parameter) -> None:
    """Exempt parameters from weight decay: zero, toward which it pulls, is no neutral value."""
    _ask_optimizer(parameters, "weight_decay", 0.0)


def scale_learning_rate(model: torch.nn.Module, slot: str, scale: float) -> None:
    """Multiply the learning rate of the weights of a slot's parts.

    Args:
        model: with the parts
        slot: of `FreshWeights`
        scale: of the learning rate that the scheduler sets
    """
    for module in model.modules():
        if isinstance(module, FreshWeights) and module.slot == slot and scale != 1.0:
            _ask_optimizer(module.parameters(), "lr_scale", scale)


def copy_requests(model: torch.nn.Module, copied: torch.nn.Module) -> None:
    """Ask the optimizer for the same for a copy's parameters: torch copies no such attributes.

    Args:
        model: the original
        copied: with parameters in the same order
    """
    for parameter, own in zip(model.parameters(), copied.parameters()):
        asked = getattr(parameter, "optim_overrides", {"optimizer": {}})["optimizer"]
        for name, value in asked.items():
            _ask_optimizer([own], name, value)


def _ask_optimizer(parameters: Iterable[torch.nn.Parameter], name: str, value: float) -> None:
    """Add an entry to the parameters' `optim_overrides`, fairseq's settings per parameter."""
    for parameter in parameters:
        asked = getattr(parameter, "optim_overrides", {"optimizer": {}})["optimizer"]
        parameter.optim_overrides = {"optimizer": {**asked, name: value}}  # type: ignore[attr-defined]
