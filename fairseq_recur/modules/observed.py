"""What a module shows of itself while it trains."""

import torch
from torch import Tensor


class Observed:
    """Mixin: a module with numbers for the training log.

    Those of its parameters are given by `monitored`. Those of what it computes are observed in
    the forward pass, and only while somebody watches: at one update in `--monitor-interval`. At
    all others, in evaluation, and when activation checkpointing computes a layer again, nobody
    does, and the forward pass is what it would be without this class.
    """

    means: tuple[str, ...] = ()
    """Names of what the forward pass observes; the log has the mean of each."""

    deviations: tuple[str, ...] = ()
    """Those of which the log has the standard deviation too, as ``NAME_sd``."""

    _moments: Tensor | None = None

    def monitored(self) -> dict[str, Tensor]:
        """Scalars of the parameters, by name."""
        return {}

    @property
    def watched(self) -> bool:
        """Whether the forward pass is to observe."""
        return self._moments is not None

    def watch(self, device: torch.device) -> None:
        """Observe from now on, from zero."""
        self._moments = torch.zeros(len(self.means), 3, dtype=torch.float64, device=device)

    def unwatch(self) -> Tensor:
        """Observe no more: number, sum and sum of squares of what was observed, (means, 3)."""
        moments, self._moments = self._moments, None
        return moments

    def observe(self, name: str, values: Tensor, padding: Tensor | None = None) -> None:
        """Count values in; to be called while `watched` alone.

        Args:
            name: one of `means`
            values: any shape and dtype
            padding: bool, True at values that do not count; broadcast
        """
        values = values.detach().to(torch.float64)
        count = torch.tensor(float(values.numel()), dtype=torch.float64, device=values.device)
        if padding is not None:
            values = values.masked_fill(padding, 0.0)
            count = (~padding).expand_as(values).sum()
        moments = torch.stack([count.to(values.dtype), values.sum(), values.square().sum()])
        self._moments[self.means.index(name)] += moments
