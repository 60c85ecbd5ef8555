"""A checkpoint read with checks, and an error that says why it cannot be used."""

import os
import re
import zipfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from fairseq_recur.compat.checkpoint_limits import refuse_compressed, refuse_oversized
from fairseq_recur.errors import CheckpointError

NOTHING_LOADED = "Nothing in it was executed and nothing was loaded."
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
    wrong = next(_of_wrong_type(state), None)
    if wrong is not None:
        raise CheckpointError(f"{path}: not a fairseq checkpoint: {wrong}. {advice}")
    cfg = _settings(state.get("cfg")) or {}  # omegaconf 2.0 has no .get() for a missing key
    model = _settings(cfg["model"]) if "model" in cfg else {}
    part = model["recurrence"] if "recurrence" in model else None
    if part not in (None, "none") and not any("recurrence_encoder." in k for k in state["model"]):
        raise CheckpointError(
            f"{path}: its configuration says recurrence={part}, but its weights have no "
            "recurrence encoder: it was changed after it was saved. Use the original checkpoint"
        )


def _of_wrong_type(state: dict[str, Any]) -> Iterator[str]:
    """Yield what is not of the type that fairseq saves: options, and weights."""
    parts = {name: state[name] for name in ("cfg", "args") if state.get(name) is not None}
    cfg = _settings(parts.get("cfg"))
    if isinstance(cfg, Mapping):
        parts |= {f"cfg.{name}": cfg[name] for name in ("model", "task") if name in cfg}
    for name, options in parts.items():
        if not isinstance(_settings(options), Mapping):
            yield f"its {name} is of type {type(options).__name__}, expected options"
    weights = state["model"]
    if not isinstance(weights, dict):
        yield f"its model is of type {type(weights).__name__}, expected weights with names"
        return
    for name, weight in weights.items():
        if not isinstance(name, str) or not isinstance(weight, torch.Tensor):
            kind = type(weight).__name__
            yield f"its weight {name!r} is of type {kind}, expected a tensor with a name"
        elif weight.layout != torch.strided:
            yield f"its weight {name} is sparse, expected a dense tensor"


def _settings(options: Any) -> Any:
    """Return the options in a part of a configuration, which may be a Namespace, by their names."""
    return vars(options) if isinstance(options, Namespace) else options
