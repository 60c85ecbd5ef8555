"""Validations: the metric of the best checkpoint, and what is counted over several of them."""

import sys
from typing import Any

from fairseq_recur.compat.checkpoints import PLATEAU
from fairseq_recur.compat.registry import Function, mend, wrap
from fairseq_recur.errors import ConfigError, first_items

COUNTED = ("best", "num_runs")
"""What fairseq counts for --patience: the best result, and the validations since."""


def counted_for_patience() -> dict[str, Any]:
    """Return the attributes of the function in which fairseq counts for --patience."""
    for name in ("__main__", "fairseq_cli.train"):  # this module may be the program itself
        function = getattr(sys.modules.get(name), "should_stop_early", None)
        if function is not None:
            return vars(function)
    return {}


patience = mend(
    "patience over a resume",
    reason="a checkpoint does not hold what --patience has counted, so a training that is resumed "
    "waits as long again; and a second training in one process inherits the first one's count",
    until="a fairseq that keeps the counts of should_stop_early in the checkpoint",
)


@patience.patch("fairseq.trainer:Trainer.save_checkpoint")
def save_training(save: Function, self: Any, filename: Any, extra_state: dict[str, Any]) -> Any:
    """Save also what is counted for --patience."""
    counted = {name: value for name, value in counted_for_patience().items() if name in COUNTED}
    return save(self, filename, {**extra_state, **({"early_stop": counted} if counted else {})})


@patience.patch("fairseq.trainer:Trainer.load_checkpoint")
def load_training(
    load: Function, self: Any, filename: Any, reset_optimizer: bool = False, *args: Any,
    reset_meters: bool = False, **kwargs: Any,
) -> Any:  # fmt: skip
    """Restore what is counted for --patience; forget what an earlier training has counted."""
    from fairseq import checkpoint_utils

    counted = counted_for_patience()
    for attributes in (counted, vars(checkpoint_utils.save_checkpoint)):
        for name in COUNTED:
            attributes.pop(name, None)
    extra_state = load(self, filename, reset_optimizer, *args, reset_meters=reset_meters, **kwargs)
    if extra_state is not None and not (reset_optimizer or reset_meters):
        counted.update(extra_state.get("early_stop", {}))
    return extra_state


plateau = mend(
    "plateau over a resume",
    reason="with --lr-scheduler reduce_lr_on_plateau a checkpoint does not hold how many "
    "validations in turn were not better, and one of an epoch's end was saved before the schedule "
    "saw that validation, so a training that is resumed lowers its rate later",
    until="a fairseq that keeps the count in the checkpoint, and saves after the schedule's step",
)


@plateau.patch(f"{PLATEAU}.state_dict")
def state_of_plateau(state: Function, self: Any) -> dict[str, Any]:
    """Add the number of validations in turn that were not better."""
    return {**state(self), "num_bad_epochs": self.lr_scheduler.num_bad_epochs}


@plateau.patch(f"{PLATEAU}.load_state_dict")
def restore_plateau(load: Function, self: Any, state: dict[str, Any]) -> None:
    """Restore it."""
    load(self, state)
    self.lr_scheduler.num_bad_epochs = state.get("num_bad_epochs", 0)


@plateau.patch("fairseq.trainer:Trainer.load_checkpoint")
def finish_epoch(
    load: Function, self: Any, filename: Any, reset_optimizer: bool = False,
    reset_lr_scheduler: bool = False, *args: Any, **kwargs: Any,
) -> Any:  # fmt: skip
    """Take the step of the schedule at the end of an epoch, which follows the checkpoint."""
    from fairseq.optim.lr_scheduler.reduce_lr_on_plateau import ReduceLROnPlateauLRSchedule

    extra_state = load(self, filename, reset_optimizer, reset_lr_scheduler, *args, **kwargs)
    if extra_state is None or reset_optimizer or reset_lr_scheduler:
        return extra_state
    position = extra_state["train_iterator"]
    between_epochs = position.get("iterations_in_epoch") == 0
    if between_epochs and isinstance(self.lr_scheduler, ReduceLROnPlateauLRSchedule):
        self.lr_step(position["epoch"] - 1, extra_state.get("val_loss"))
    return extra_state


best_metric = mend(
    "metric of the best checkpoint",
    reason="a --best-checkpoint-metric that no validation computes is a KeyError",
    until="a fairseq whose get_valid_stats names what the validation has computed",
)


@best_metric.patch("fairseq.trainer:Trainer.__init__")
def check_metric(construct: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    """Check the metric in each validation of this training.

    fairseq_cli.train is not imported for that: it sets up logging, which only a training wants.
    """
    construct(self, *args, **kwargs)
    if hasattr(sys.modules.get("fairseq_cli.train"), "get_valid_stats"):
        wrap("fairseq_cli.train:get_valid_stats", best_metric.name, get_valid_stats)


def get_valid_stats(
    get: Function, cfg: Any, trainer: Any, stats: dict[str, Any], *args: Any, **kwargs: Any
) -> dict[str, Any]:
    """Refuse a metric that this validation has not computed.

    Raises:
        ConfigError: naming those that it has
    """
    metric = cfg.checkpoint.best_checkpoint_metric
    if metric not in stats:
        raise ConfigError(
            f"--best-checkpoint-metric {metric}: the validation has no such value; it has "
            f"{first_items(sorted(stats), 20)}. Give one of them, or the flag that computes it, "
            "such as --eval-bleu or --report-accuracy"
        )
    return get(cfg, trainer, stats, *args, **kwargs)
