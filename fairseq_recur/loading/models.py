"""Loading trained models with their task and its dictionaries."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.dataclass.configs import GenerationConfig
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY, FairseqTask
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation import TranslationTask
from torch import nn

from fairseq_recur.errors import CheckpointError, ConfigError
from fairseq_recur.loading.folder import PathLike, find_checkpoints, find_dictionaries
from fairseq_recur.logs import quiet

SIDES = ("source_lang", "target_lang")

ONLY_IN_TRAINING: dict[str, Any] = {
    "eval_bleu": False,
    "eval_rouge": False,
    "load_alignments": False,
}
"""Options of training that need files or libraries, with the values that switch them off."""

MISFIT = ("size mismatch", "does not fit the model", "ask for a model of more than")
"""What torch or this package says if the weights may be those of other dictionaries."""


@dataclass(frozen=True)
class Loaded:
    """A model, or an ensemble, with what it was loaded from.

    Attributes:
        models: with their trained weights; several form an ensemble
        task: of the first model
        cfg: the configuration in the first checkpoint, with the changes that loading made
        home: folder of the checkpoint
        data: folder of the dictionaries; None for a task without
        languages: source and target language; none of a language model, or without dictionaries
    """

    models: list[nn.Module]
    task: FairseqTask
    cfg: Any
    home: Path
    data: Path | None
    languages: list[str]


@quiet("fairseq")
def load(
    folder: PathLike,
    checkpoint: PathLike | Sequence[PathLike] | None = None,
    data: PathLike | None = None,
    languages: tuple[str | None, str | None] = (None, None),
    *,
    kinds: tuple[type[FairseqTask], ...] = (TranslationTask, LanguageModelingTask),
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> Loaded:
    """Load a trained model, or an ensemble; each file is read once, without running code from it.

    Args:
        folder: the ``--save-dir`` of fairseq-train, or one checkpoint
        checkpoint: a file in the folder, several for an ensemble, or None for the usual one
        data: folder of the dictionaries; by default ``folder``, or the training's data
        languages: source and target; None for those of the training
        kinds: the tasks, with those derived from them, whose models the caller can use
        changes: options of the task that the user has given in place of the training's

    Raises:
        ConfigError: a file is missing, or the model is of another kind
        CheckpointError: a checkpoint is damaged or foreign, or does not fit
    """
    home, files = find_checkpoints(folder, checkpoint)
    state = read(files[0], kinds)
    cfg = state["cfg"]
    place, found = set_task(state, home, data, languages, changes)
    first, task = build(files[0], state, None, place, changes)
    rest = [build(file, read(file, kinds), task, place, changes)[0] for file in files[1:]]
    return Loaded([first, *rest], task, cfg, home, place, found)


def read(file: Path, kinds: tuple[type[FairseqTask], ...]) -> dict[str, Any]:
    """Read a checkpoint whose model and task can be built here.

    Raises:
        CheckpointError: the file is not a checkpoint, or is unsafe
        ConfigError: an unknown or unsuitable task or model
    """
    state = checkpoint_utils.load_checkpoint_to_cpu(str(file))
    state["args"] = None  # only in old checkpoints, and repeated in cfg
    task, model = option(state["cfg"], "task"), option(state["cfg"], "model")
    if task is None or model is None:
        raise CheckpointError(
            f"{file}: not a fairseq checkpoint: it has no options of its task or of its model; "
            "give one that fairseq-train saved"
        )
    if not issubclass(kind_of_task(task), kinds):
        known = " or ".join(name for name, kind in TASK_REGISTRY.items() if kind in kinds)
        raise ConfigError(
            f"{file}: found a model of --task {name_of_task(task)}, expected one of {known} or of "
            "a task derived from it; if it is one, first import the plug-in that has the task "
            "(--user-dir)"
        )
    name = option(model, "_name") or option(model, "arch")
    if name not in MODEL_REGISTRY and name not in ARCH_MODEL_REGISTRY:
        raise ConfigError(
            f"{file}: unknown architecture {name!r}; import the plug-in that has it (--user-dir), "
            "or a newer fairseq_recur"
        )
    return state


def name_of_task(cfg: Any) -> str | None:
    """Return the name of a checkpoint's task, which old ones have in another place."""
    return option(cfg, "_name") or option(cfg, "task")


def kind_of_task(cfg: Any) -> type[FairseqTask]:
    """Return the class of a checkpoint's task, FairseqTask for one that is not registered."""
    return TASK_REGISTRY.get(name_of_task(cfg), FairseqTask)


def option(cfg: Any, name: str) -> Any:
    """Return a value from a part of a checkpoint's configuration, or None."""
    if isinstance(cfg, Namespace):
        return getattr(cfg, name, None)
    return cfg[name] if cfg is not None and name in cfg else None


def set_task(
    state: dict[str, Any],
    home: Path,
    data: PathLike | None,
    languages: tuple[str | None, str | None],
    changes: Mapping[str, Any],
) -> tuple[Path | None, list[str]]:
    """Set the task's options in a checkpoint's configuration: dictionaries and no validation.

    Returns:
        the folder of the dictionaries, None for a task without; and both languages, none for a
        language model

    Raises:
        ConfigError: the dictionaries are missing
    """
    saved = state["cfg"]["task"]
    kind = kind_of_task(saved)
    options = {**ONLY_IN_TRAINING, **changes}
    place: Path | None = None
    found: list[str] = []
    if issubclass(kind, (TranslationTask, LanguageModelingTask)):
        wanted: list[str | None] = []
        if issubclass(kind, TranslationTask):
            wanted = [given or option(saved, side) for given, side in zip(languages, SIDES)]
        elif any(languages):
            raise ConfigError(
                "a language model has no source_lang or target_lang (-s, -t); leave them out"
            )
        place, found = find_dictionaries(home, data, option(saved, "data"), wanted)
        options.update(data=str(place), **dict(zip(SIDES, found)))
    for name, value in options.items():
        if name in saved:
            setattr(saved, name, value)
    return place, found


def build(
    file: Path,
    state: dict[str, Any],
    task: FairseqTask | None,
    place: Path | None,
    given: Mapping[str, Any],
) -> tuple[nn.Module, FairseqTask]:
    """Build a checkpoint's model, and its task unless it exists already.

    Args:
        file: of the checkpoint
        state: what `read` returned, changed by `set_task`
        task: of the first model of an ensemble, or None
        place: folder of the dictionaries, or None
        given: options that the user has given: they may name any file

    Raises:
        CheckpointError: the weights do not fit, or are not to be used
    """
    try:
        models, _, task = checkpoint_utils.load_model_ensemble_and_task(
            [str(file)], dict(given), state=state, task=task
        )
    except RuntimeError as error:
        if place is None or not any(part in str(error) for part in MISFIT):
            raise
        raise CheckpointError(
            f"{file} does not fit, perhaps because the dictionaries in {place} are not those of "
            f"its training (give data=FOLDER, --data): {error}"
        ) from error
    return models[0], task


def prepare(model: Any, device: str | torch.device | None, precision: str) -> None:
    """Prepare a model for decoding, as fairseq-generate does, and move it to its device.

    Args:
        model: of fairseq
        device: by default "cuda" if available
        precision: "fp32", "fp16" or "bf16"
    """
    if precision == "fp16":
        model.half()
    elif precision == "bf16":
        model.bfloat16()
    model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    # The precision of the training has no effect here.
    common = Namespace(fp16=False, bf16=False)
    model.prepare_for_inference_(Namespace(common=common, generation=GenerationConfig()))
    model.eval()
