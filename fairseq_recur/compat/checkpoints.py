"""Checkpoints that fairseq loads: no code of theirs runs, and errors say what is wrong."""

import contextlib
import functools
import inspect
import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import torch

from fairseq_recur.compat.checkpoint_limits import Allowance, refuse_oversized
from fairseq_recur.compat.checkpoint_reading import (
    checkpoint_problem,
    refuse_damaged,
    refuse_foreign,
)
from fairseq_recur.compat.registry import Function, mend
from fairseq_recur.compat.safe_loading import check_loaded, load_weights_only
from fairseq_recur.errors import CheckpointError, ConfigError

_building: ContextVar[set[str] | None] = ContextVar("building", default=None)
"""While models are built from checkpoints: the options that the user has overridden."""

_allowance: ContextVar[Allowance | None] = ContextVar("allowance", default=None)
"""While models are built from checkpoints: how large the next one may be."""

_for_text: ContextVar[bool] = ContextVar("for_text", default=False)
"""Whether tokenizers and subwords are built from the checkpoint's configuration as well."""

errors = mend(
    "checkpoint errors",
    reason="torch's error for a refused file recommends weights_only=False, which would run its "
    "code",
    until="permanent",
    required=True,
)


@errors.patch("fairseq.checkpoint_utils:load_checkpoint_to_cpu")
def load_checkpoint_to_cpu(load: Function, path: str, *args: Any, **kwargs: Any) -> Any:
    """Load a checkpoint, with an error that says what is wrong and what to do."""
    state = _load_explained(load, path, *args, **kwargs)
    refuse_foreign(path, state)
    given = _building.get()
    if given is None:
        refuse_nan(path, state["model"])
    else:
        prepare(path, state, given)
    return state


def prepare(path: str, state: dict[str, Any], given: set[str]) -> None:
    """Make a loaded checkpoint safe to build a model from.

    Raises:
        CheckpointError: an option may not be used, or a weight is NaN
    """
    from fairseq_recur.compat.checkpoint_options import confine

    confine(path, state, given, _for_text.get())
    refuse_nan(path, state["model"])
    _allowance.set(Allowance(path, state))


def refuse_nan(path: str, weights: Mapping[str, Any]) -> None:
    """Refuse the weights of a training that has failed.

    Args:
        path: of their checkpoint
        weights: by their names

    Raises:
        CheckpointError: a weight is NaN
    """
    for name, weight in weights.items():
        if isinstance(weight, torch.Tensor) and weight.is_floating_point() and weight.isnan().any():
            raise CheckpointError(
                f"{path}: its weight {name} has NaN values, so its training has failed. Go back "
                "to an earlier checkpoint"
            )


@errors.patch("fairseq.models:build_model")
def build_model(build: Function, *args: Any, **kwargs: Any) -> Any:
    """Build a model, which may not be much larger than the checkpoint that names it."""
    with _allowance.get() or contextlib.nullcontext():
        return build(*args, **kwargs)


@errors.patch("fairseq.checkpoint_utils:_upgrade_state_dict")
def upgrade_state_dict(upgrade: Function, state: dict[str, Any]) -> Any:
    """Accept a checkpoint of a model and its configuration only, without a training's state."""
    if (state.get("cfg") is None) is (state.get("args") is None):
        return upgrade(state)  # not a checkpoint, which `refuse_foreign` explains
    if "optimizer_history" not in state and "best_loss" not in state:
        history = {"criterion_name": "none", "optimizer_name": "none", "lr_scheduler_state": {}}
        state["optimizer_history"] = [{**history, "num_updates": 0}]
        state["last_optimizer_state"] = None
    if "epoch" not in state:
        state.setdefault("extra_state", {})
    return upgrade(state)


@errors.patch("fairseq.checkpoint_utils:load_ema_from_checkpoint")
def load_ema_from_checkpoint(load: Function, path: str) -> Any:
    """Load the averaged weights of a checkpoint, with an error that explains their absence."""
    return _load_explained(load, path, ema=True)


def _load_explained(load: Function, path: str, *args: Any, ema: bool = False, **kwargs: Any) -> Any:
    """Call *load* with an error that explains a failure; *ema* if it needs averaged weights."""
    from fairseq.file_io import PathManager

    load_weights_only()
    local = PathManager.get_local_path(path)
    refuse_damaged(local)
    before = check_loaded.set(functools.partial(refuse_oversized, local))
    try:
        return load(path, *args, **kwargs)
    except CheckpointError:
        raise
    except Exception as error:
        problem = checkpoint_problem(local)
        if problem is None and ema:
            problem = f"{path}: it holds no EMA weights; train with --store-ema"
        if problem is None:
            raise
        raise CheckpointError(problem) from (error if isinstance(error, OSError) else None)
    finally:
        check_loaded.reset(before)


@errors.patch("fairseq.checkpoint_utils:load_model_ensemble_and_task")
def load_model_ensemble_and_task(
    load: Function, filenames: list[str], *args: Any, **kwargs: Any
) -> Any:
    """Load models from their weights, and from the options that `confine` leaves.

    Raises:
        CheckpointError: a file is missing, or would open others
        ConfigError: an option has a value that this installation does not know
    """
    from omegaconf.errors import OmegaConfBaseException

    call = inspect.signature(inspect.unwrap(load)).bind(filenames, *args, **kwargs).arguments
    given = set(call.get("arg_overrides") or {})
    if call.get("state") is not None and call["state"].get("cfg") is not None:
        prepare(filenames[0], call["state"], given)
    before = _building.set(given)
    try:
        return load(filenames, *args, **kwargs)
    except OSError as error:
        if "Model file not found" not in str(error):
            raise
        path = str(error).rpartition(": ")[2]
        problem = checkpoint_problem(path) or f"{error}; give the --path of an existing file"
        raise CheckpointError(problem) from None
    except OmegaConfBaseException as error:
        raise ConfigError(
            f"{', '.join(filenames)}: an option has a value that is unknown here; import the "
            "plug-in that has it (--user-dir), or use a newer fairseq_recur: "
            f"{' '.join(str(error).split())}"
        ) from error
    finally:
        _building.reset(before)
        _allowance.set(None)


@errors.patch("fairseq.hub_utils:from_pretrained")
def load_from_hub(load: Function, *args: Any, **kwargs: Any) -> Any:
    """Load models whose tokenizer and subwords are built next, by names in the checkpoint."""
    before = _for_text.set(True)
    try:
        return load(*args, **kwargs)
    finally:
        _for_text.reset(before)


OTHER = re.compile(r"(Criterion|Optimizer) does not match; .*\. (\S+) vs (\S+)")
"""What the trainer says of another criterion or optimizer."""

misfit = mend(
    "checkpoint that does not fit",
    reason="the trainer replaces the error that says what does not fit with one that does not, and "
    "ends in a traceback for another optimizer or schedule",
    until="a fairseq whose Trainer.load_checkpoint lets the error through",
)


@misfit.patch("fairseq.trainer:Trainer.load_checkpoint")
def load_checkpoint(load: Function, *args: Any, **kwargs: Any) -> Any:
    """Let a CheckpointError through that the trainer would replace.

    Raises:
        ConfigError: the checkpoint is of another criterion or optimizer
    """
    try:
        return load(*args, **kwargs)
    except AssertionError as error:
        found = OTHER.fullmatch(str(error))
        if found is None:
            raise
        what, before, now = found.groups()
        raise ConfigError(
            f"the checkpoint is of a training with another {what.lower()}, {before}, now {now}: "
            "give the former, or begin the optimizer anew with --reset-optimizer"
        ) from None
    except Exception as error:
        if isinstance(error.__context__, CheckpointError):
            raise error.__context__ from None
        raise


PLATEAU = "fairseq.optim.lr_scheduler.reduce_lr_on_plateau:ReduceLROnPlateauLRSchedule"


@misfit.patch("fairseq.optim.lr_scheduler:FairseqLRScheduler.load_state_dict")
@misfit.patch(f"{PLATEAU}.load_state_dict")
def load_schedule(load: Function, self: Any, state: dict[str, Any]) -> None:
    """Restore a schedule, with an error that explains the state of another one.

    Raises:
        ConfigError: the state is that of another schedule
    """
    try:
        load(self, state)
    except KeyError:
        raise ConfigError(
            "the checkpoint is of a training with another --lr-scheduler: give the former, or "
            "begin the schedule anew with --reset-lr-scheduler"
        ) from None
