"""Checkpoints: read with checks, explained when they cannot be used, and written atomically."""

import contextlib
import functools
import inspect
import os
import re
import shutil
import zipfile
from argparse import Namespace
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO

import torch

from fairseq_recur.compat.checkpoint_limits import Allowance, refuse_compressed, refuse_oversized
from fairseq_recur.compat.registry import Function, mend
from fairseq_recur.compat.safe_loading import check_loaded, load_weights_only
from fairseq_recur.errors import CheckpointError
from fairseq_recur.files import whole_file

NOTHING_LOADED = "Nothing in it was executed and nothing was loaded."
_building: ContextVar[set[str] | None] = ContextVar("building", default=None)
"""While models are built from checkpoints: the options that the user has overridden."""

_allowance: ContextVar[Allowance | None] = ContextVar("allowance", default=None)
"""While models are built from checkpoints: how large the next one may be."""

_for_text: ContextVar[bool] = ContextVar("for_text", default=False)
"""Whether tokenizers and subwords are built from the checkpoint's configuration as well."""

REMEDY = "Copy or download it again, or go back to an earlier checkpoint"


def read_checkpoint(path: str) -> dict[str, Any]:
    """Load a fairseq checkpoint without running code from it.

    Raises:
        CheckpointError: the file is missing, damaged, unsafe or not a fairseq checkpoint
    """
    if not os.path.exists(path):
        problem = "no such file. Give a file that fairseq-train wrote to --save-dir"
    elif os.path.isdir(path):
        problem = "this is a folder. Give a file in it, such as checkpoint_best.pt"
    else:
        refuse_damaged(path)
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            refuse_oversized(path, state)
        except CheckpointError:
            raise
        except PermissionError:
            problem = "cannot be read. Check the file's permissions"
        except Exception as error:  # damaged bytes raise errors of any type
            problem = _loading_problem(path, error)
        else:
            refuse_foreign(path, state)
            return state
    raise CheckpointError(f"{path}: {problem}")


def checkpoint_problem(path: str) -> str | None:
    """Return why fairseq cannot use the checkpoint *path*, or None if it can."""
    try:
        read_checkpoint(path)
    except CheckpointError as error:
        return str(error)
    return None


def refuse_damaged(path: str) -> None:
    """Compare the checksums in a checkpoint's zip file, which torch does not do.

    Raises:
        CheckpointError: a checksum is wrong, or the content is compressed
    """
    damaged = None
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                refuse_compressed(path, archive)
                damaged = archive.testzip()
    except CheckpointError:
        raise
    except PermissionError:
        return  # the error of loading it explains this
    except Exception:  # damaged bytes raise errors of any type
        damaged = "its index"
    if damaged is not None:
        raise CheckpointError(
            f"{path}: damaged: {damaged} is not what was saved. {NOTHING_LOADED} {REMEDY}"
        )


def _loading_problem(path: str, error: Exception) -> str:
    """Explain why torch could not load a file."""
    refused = re.search(r"GLOBAL ([\w.]+) (?:was not|whose)", str(error))
    if refused:
        return (
            f"refused, because it asks for {refused[1]}, which no fairseq checkpoint needs: it "
            f"would run code. {NOTHING_LOADED} Do not use the file; get the weights from a source "
            "that you trust"
        )
    size = os.path.getsize(path)
    return (
        f"{size} bytes that are not a PyTorch checkpoint, or a truncated or damaged one. "
        f"{NOTHING_LOADED} {REMEDY}"
    )


def refuse_foreign(path: str, state: Any) -> None:
    """Check that a loaded *state* is one that fairseq saved.

    Raises:
        CheckpointError: it is not
    """
    from fairseq_recur.compat.checkpoint_options import refuse_references

    wanted = 'a dictionary with "model" and one of "cfg" and "args"'
    advice = "Give a checkpoint that fairseq-train saved"
    if not isinstance(state, dict):
        raise CheckpointError(
            f"{path}: it holds a {type(state).__name__}, expected {wanted}. {advice}"
        )
    if "model" not in state or (state.get("cfg") is None and state.get("args") is None):
        keys = ", ".join(sorted(map(str, state))[:8])
        raise CheckpointError(
            f"{path}: not a fairseq checkpoint: it holds [{keys}], expected {wanted}. {advice}"
        )
    refuse_references(path, state.get("args"))
    refuse_references(path, state.get("cfg"))
    cfg = state.get("cfg") or {}  # omegaconf 2.0 has no .get() for a missing key
    model = cfg["model"] if "model" in cfg else None
    settings = vars(model) if isinstance(model, Namespace) else model or {}
    part = settings["recurrence"] if "recurrence" in settings else None
    if part not in (None, "none") and not any("recurrence_encoder." in k for k in state["model"]):
        raise CheckpointError(
            f"{path}: its configuration says recurrence={part}, but its weights have no "
            "recurrence encoder: it was changed after it was saved. Use the original checkpoint"
        )


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
    if given is not None:
        prepare(path, state, given)
    return state


def prepare(path: str, state: dict[str, Any], given: set[str]) -> None:
    """Make a loaded checkpoint safe to build a model from.

    Raises:
        CheckpointError: an option may not be used, or a weight is NaN
    """
    from fairseq_recur.compat.checkpoint_options import confine

    confine(path, state, given, _for_text.get())
    for name, weight in state["model"].items():
        if isinstance(weight, torch.Tensor) and weight.is_floating_point() and weight.isnan().any():
            raise CheckpointError(
                f"{path}: its weight {name} has NaN values, so its training has failed. Go back "
                "to an earlier checkpoint"
            )
    _allowance.set(Allowance(path, state))


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
    """
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


misfit = mend(
    "checkpoint that does not fit",
    reason="the trainer replaces the error that says what does not fit with one that does not",
    until="a fairseq whose Trainer.load_checkpoint lets the error through",
)


@misfit.patch("fairseq.trainer:Trainer.load_checkpoint")
def load_checkpoint(load: Function, *args: Any, **kwargs: Any) -> Any:
    """Let a CheckpointError through that the trainer would replace."""
    try:
        return load(*args, **kwargs)
    except Exception as error:
        if isinstance(error.__context__, CheckpointError):
            raise error.__context__ from None
        raise


@contextlib.contextmanager
def whole_checkpoint(path: str) -> Iterator[BinaryIO]:
    """Write a file as `whole_file` does, with an error that says what is left and what to do."""
    with explained(Path(path)), whole_file(Path(path)) as file:
        yield file


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Replace an error of writing a file or folder: torch hides a full disk in a RuntimeError.

    Raises:
        CheckpointError: it could not be written
    """
    try:
        yield
    except CheckpointError:
        raise
    except (OSError, RuntimeError) as error:
        folder = path.parent
        free = shutil.disk_usage(folder if folder.is_dir() else ".").free
        raise CheckpointError(
            f"{path} could not be written ({type(error).__name__}: {error}); the disk of {folder} "
            f"has {free / 1e9:.2f} GB left. Earlier files are intact: free some space and run the "
            "same command again"
        ) from error


whole = mend(
    "whole checkpoints",
    reason="checkpoint_last.pt is overwritten in place, so a kill leaves half of it; and after a "
    "failed write fairseq appends a second attempt to the same file",
    until="permanent",
)


@whole.patch("fairseq.checkpoint_utils:torch_persistent_save")
def torch_persistent_save(
    save: Function, obj: Any, filename: str, async_write: bool = False
) -> None:
    """Save to a temporary file and rename it when it is complete."""
    from fairseq.file_io import PathManager

    if async_write or PathManager.path_requires_pathmanager(filename):
        save(obj, filename, async_write=async_write)
        return
    with whole_checkpoint(filename) as file:
        torch.save(obj, file)


@whole.patch("fairseq.file_io:PathManager.copy")
def copy(original: Function, src_path: str, dst_path: str, overwrite: bool = False) -> Any:
    """Copy to a temporary file and rename it when it is complete."""
    from fairseq.file_io import PathManager

    remote = PathManager.path_requires_pathmanager
    if not overwrite or remote(src_path) or remote(dst_path):
        return original(src_path, dst_path, overwrite=overwrite)
    with open(src_path, "rb") as source, whole_checkpoint(dst_path) as file:
        shutil.copyfileobj(source, file)
    return True
