"""Which options of a checkpoint reach the code that builds its model, its task and its criterion.

Trusted: the flags and overrides of the user. Not trusted: the configuration in a file. It refers to
its own options only (``${task.data}``), its model opens no file, its task opens only ordinary files
and folders of this machine, its criterion gets no text, and its subwords are not downloaded.
"""

import inspect
import logging
import os
import re
import stat
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import Field, fields
from enum import Enum
from typing import Any

from fairseq.registry import REGISTRIES
from omegaconf import DictConfig, OmegaConf, _utils, open_dict

from fairseq_recur.compat.checkpoint_limits import inner
from fairseq_recur.errors import CheckpointError

logger = logging.getLogger(__name__)

OWN_OPTION = re.compile(r"\$\{\w+(\.\w+)*\}")
"""A reference to one other option of the same configuration, which fairseq saves as text."""

EMBEDDING_FILES = ("encoder_embed_path", "decoder_embed_path")
"""Options that name initial embeddings, which the checkpoint's weights replace."""

MODEL_FILES = (
    "load_pretrained_aux_decoder_from",
    "load_pretrained_decoder_from",
    "load_pretrained_encoder_from",
    "multires_hubert_path",
    "pretrained_checkpoint",
    "pretrained_mlm_checkpoint",
    "pretrained_xlm_checkpoint",
    "seq2seq_path",
    "w2v_path",
)
"""Options that name a file without which fairseq's models cannot be built."""

TASK_FILES = (
    "baseline_model", "config_yaml", "data", "fixed_dictionary", "label_dir", "lang_dict",
    "lm_path", "multitask_config_yaml", "sampling_weights_from_file", "series_file",
    "source_dict", "target_dict", "target_dictionary",
)  # fmt: skip
"""Options of fairseq's tasks that name files or folders to read."""

DOWNLOADING = ("bert", "gpt2")
"""Subwords that fetch files from a host: only the user may choose them, not a checkpoint."""

ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def refuse_references(path: str, options: Any) -> None:
    """Check that no text in a configuration refers to anything outside it.

    Raises:
        CheckpointError: a value reads the environment, or is made of other values
    """
    for text in _texts(options, {}):
        if "${" in text and not OWN_OPTION.fullmatch(text):
            raise CheckpointError(
                f"{path}: refused, because its configuration has the value {text[:80]!r}: expected "
                "plain values, or references such as ${task.data}. Nothing of it was used. Do not "
                "use the file; get the weights from a source that you trust"
            )


def _texts(value: Any, seen: dict[int, Any]) -> Iterator[str]:
    """Yield every text in nested options once; *seen* keeps objects, so that no id is reused."""
    if isinstance(value, str):
        yield value
    elif id(value) not in seen:
        seen[id(value)] = value
        if OmegaConf.is_config(value):
            value = OmegaConf.to_container(value, resolve=False)
        for item in inner(value):
            yield from _texts(item, seen)


HAS_FLAG = "flags" in inspect.signature(OmegaConf.create).parameters
"""Whether a configuration can allow any object as a value, from omegaconf 2.1 on."""


@contextmanager
def any_object() -> Iterator[None]:
    """Accept a Namespace as a value where omegaconf has no flag for it, as fairseq 0.12.2 does."""
    if HAS_FLAG:
        yield
        return
    functions = vars(_utils)
    before = functions["is_primitive_type"]
    functions["is_primitive_type"] = lambda _: True
    try:
        yield
    finally:
        functions["is_primitive_type"] = before


def with_objects(options: Any) -> Any:
    """Return options as OmegaConf has them, though one of them may be a Namespace."""
    flags: dict[str, Any] = {"flags": {"allow_objects": True}} if HAS_FLAG else {}
    with any_object():
        return OmegaConf.create(options, **flags)


def confine(path: str, state: dict[str, Any], given: set[str], text: bool = False) -> None:
    """Make the configuration of a loaded checkpoint safe to build from, in place.

    Args:
        path: of the file, for messages
        state: what `load_checkpoint_to_cpu` returned
        given: options that the user has overridden, which are trusted
        text: whether a tokenizer and subwords will be built from it, too

    Raises:
        CheckpointError: an option names something to open that it may not
    """
    cfg = state["cfg"]
    state["args"] = None  # only in old checkpoints; fairseq has put its values into cfg
    with open_dict(cfg), any_object():
        if cfg.get("model") is not None:
            _close_files(path, cfg["model"], given)
        if cfg.get("task") is not None:
            _refuse_special(path, cfg["task"], {*TASK_FILES} - given)
        for name in ("tokenizer", "bpe") if text else ():
            if cfg.get(name) is not None:
                _refuse_downloads(path, name, cfg[name], given)
        if cfg.get("criterion") is not None:
            cfg["criterion"] = _without_text(path, cfg["criterion"], given)


def _close_files(path: str, model: Any, given: set[str]) -> None:
    """Clear the embeddings' files among a model's options, and refuse any other file."""
    options = _values(model)
    for name in {*EMBEDDING_FILES, *MODEL_FILES} - given:
        value = options.get(name)
        unused = name == "w2v_path" and options.get("w2v_args") is not None
        if not value or unused:
            continue
        if name in MODEL_FILES or not _is_ordinary(value):
            raise CheckpointError(
                f"{path}: refused, because its option {name}={str(value)[:80]!r} would open this "
                "file: expected a model that needs its weights only. Nothing was opened. If you "
                f"trust the file, give it yourself: --model-overrides \"{{'{name}': FILE}}\""
            )
        options[name] = None


def _values(section: Any) -> Any:
    """Return the options of a part of a configuration, which may be a Namespace, as a mapping."""
    return vars(section) if isinstance(section, Namespace) else section


def _refuse_special(path: str, section: Any, names: set[str]) -> None:
    """Refuse options that name a device, a pipe or an address, where files are read."""
    options = _values(section)
    for name in sorted(names):
        value = options.get(name)
        places = value.split(os.pathsep) if isinstance(value, str) else []
        if places and (ADDRESS.match(value) or not all(map(_is_ordinary, places))):
            raise CheckpointError(
                f"{path}: refused, because its option {name}={value[:80]!r} would be opened: "
                f"expected a file or folder. Nothing was opened. If you trust it, give {name} "
                "yourself"
            )


def _refuse_downloads(path: str, group: str, section: Any, given: set[str]) -> None:
    """Refuse a tokenizer or subwords that would be fetched from a host that a file names."""
    name = section.get("_name")
    if name in DOWNLOADING and group not in given:
        raise CheckpointError(
            f"{path}: refused, because its {group}={name!r} downloads files. Nothing was opened. "
            f"Give {group}={name!r} yourself to allow it"
        )
    default = {field.name: field.default for field in _fields(group, section)}
    changed = {k for k in section if k != "_name" and section[k] != default.get(k)}
    _refuse_special(path, section, changed - given)


def _is_ordinary(value: Any) -> bool:
    """Return whether a name is that of a regular file or of a folder, or of nothing."""
    try:
        mode = os.stat(value).st_mode
        return stat.S_ISREG(mode) or stat.S_ISDIR(mode)
    except (OSError, ValueError, TypeError):
        return isinstance(value, str)


def _fields(group: str, section: Any) -> Sequence[Field[Any]]:
    """Return the fields of a registered component's dataclass, given its options; or none."""
    known = REGISTRIES[group]["dataclass_registry"].get(section.get("_name"))
    return fields(known) if known else ()


def _without_text(path: str, criterion: Any, given: set[str]) -> Any:
    """Return a criterion's options without those that hold text, such as files to write to.

    One of the choices of its field is kept.
    """
    kept = {"_name", "criterion", *given}
    if isinstance(criterion, Namespace):
        values = vars(criterion).items()
        return Namespace(**{k: v if k in kept or _is_number(v) else None for k, v in values})
    if not isinstance(criterion, DictConfig):
        return criterion
    known = {field.name: field for field in _fields("criterion", criterion)}
    changed = []
    with open_dict(criterion):
        for key in [k for k in criterion if k not in kept and not _is_number(criterion[k])]:
            if key in known and _is_choice(criterion[key], known[key].type):
                continue
            value = criterion.pop(key)
            if key not in known or value != known[key].default:
                changed.append(f"{key!s}={str(value)[:80]!r}")
    if changed:
        logger.warning(
            "%s: text in the options of its criterion is not used, because it could name a file to "
            "write to. A criterion that is built from them has its defaults in place of %s; give "
            "fairseq-validate those that you trust as flags",
            path, ", ".join(changed),
        )  # fmt: skip
    return criterion


def _is_choice(value: Any, kind: Any) -> bool:
    """Return whether a value is one of the choices of a field's type, which the code defines."""
    choices = kind if isinstance(kind, type) and issubclass(kind, Enum) else ()
    return any(value in (choice, choice.value) for choice in choices)


def _is_number(value: Any) -> bool:
    """Return whether a value is a number, a switch, absent, or a list or mapping of these."""
    if isinstance(value, dict) or OmegaConf.is_dict(value):
        return all(map(_is_number, value.values()))
    if isinstance(value, (list, tuple)) or OmegaConf.is_list(value):
        return all(map(_is_number, value))
    return value is None or isinstance(value, (bool, int, float))
