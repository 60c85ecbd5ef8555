"""Training many small models at once, each until its own loss stops falling."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Parameters = dict[str, Tensor]


class Training(NamedTuple):
    """Adam's learning rate, and the stopping rule."""

    lr: float = 0.05
    tolerance: float = 1e-5
    patience: int = 10
    max_epochs: int = 1000


class Fit(NamedTuple):
    """Results of N models: predictions of the last position (N, S, 2), epochs and loss (N)."""

    predictions: Tensor
    epochs: Tensor
    losses: Tensor

    def best_of(self, starts: int) -> "Fit":
        """Select for each model the start with the least training loss: (starts * N) to (N).

        A start that diverged counts as the worst.
        """
        losses = self.losses.view(starts, -1)
        best = losses.nan_to_num(float("inf")).argmin(0)
        models = best * losses.size(1) + torch.arange(losses.size(1))
        return Fit(*(values[models] for values in self))


class Stopping:
    """Stops after *patience* epochs in a row that lower the least loss by less than *tolerance*."""

    def __init__(self, count: int, tolerance: float, patience: int) -> None:
        self.tolerance, self.patience = tolerance, patience
        self.least = torch.full((count,), float("inf"))
        self.stale = torch.zeros(count, dtype=torch.int64)

    def update(self, losses: Tensor) -> Tensor:
        """Take the losses (N) of an epoch and return which models are done, (N) bool.

        A loss that is not a number does not count as a fall, so a diverged model also stops.
        """
        fell = losses <= self.least - self.tolerance
        self.stale = torch.where(fell, 0, self.stale + 1)
        self.least = torch.fmin(self.least, losses)
        return self.stale >= self.patience

    def keep(self, models: Tensor) -> None:
        """Continue only with the given models, (N) bool."""
        self.least, self.stale = self.least[models], self.stale[models]


def fit(
    predict: Callable[[Parameters, Tensor], Tensor],
    parameters: Parameters,
    inputs: Tensor,
    targets: Tensor,
    training: Training,
    progress: Callable[[int, int], None] | None = None,
) -> Fit:
    """Fit N models by full-batch Adam to all positions but the last, and predict the last.

    The sum of the N losses is differentiated. No parameter belongs to two models, and Adam is
    element-wise, so each model takes the same steps as if it were trained separately. A model that
    is done leaves the batch.

    Args:
        predict: parameters and inputs (N S, T, 2) to predictions (N S, T, 2)
        parameters: with leading axis N; not modified
        inputs: (N, S, T, 2), the S segments that each model is fitted to
        targets: (N, S, T, 2); the last target is not read
        training: learning rate and stopping rule
        progress: called with the epoch and the number of models still training
    """
    parameters = {name: values.clone().requires_grad_() for name, values in parameters.items()}
    optimizer = torch.optim.Adam(parameters.values(), lr=training.lr)
    stopping = Stopping(len(inputs), training.tolerance, training.patience)
    active = torch.arange(len(inputs))
    result = Fit(
        targets[:, :, -1].clone(),
        torch.zeros(len(inputs), dtype=torch.int64),
        targets.new_empty(len(inputs)),
    )
    for epoch in range(1, training.max_epochs + 1):
        own = {name: x.repeat_interleave(inputs.size(1), 0) for name, x in parameters.items()}
        predictions = predict(own, inputs.flatten(0, 1)).view_as(inputs)
        losses = (predictions - targets)[:, :, :-1].square().mean(dim=(1, 2, 3))
        done = stopping.update(losses.detach())
        if epoch == training.max_epochs:
            done = torch.ones_like(done)
        result.predictions[active[done]] = predictions[done, :, -1].detach()
        result.epochs[active[done]] = epoch
        result.losses[active[done]] = losses[done].detach()
        if done.all():
            break
        optimizer.zero_grad()
        losses.sum().backward()
        optimizer.step()
        if done.any():
            active, inputs, targets = active[~done], inputs[~done], targets[~done]
            stopping.keep(~done)
            parameters = keep(parameters, optimizer, ~done)
        if progress is not None:
            progress(epoch, len(active))
    return result


def keep(parameters: Parameters, optimizer: torch.optim.Adam, models: Tensor) -> Parameters:
    """Select models, (N) bool: return their parameters, and keep only their state in Adam."""
    kept = {name: values.detach()[models].requires_grad_() for name, values in parameters.items()}
    for old, new in zip(parameters.values(), kept.values()):
        state = optimizer.state.pop(old)
        averages = {name: state[name][models] for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[new] = {**state, **averages}
    optimizer.param_groups[0]["params"] = list(kept.values())
    return kept
