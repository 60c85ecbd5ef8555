"""Loading trained models with their task, dictionaries and subwords from a folder."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.dataclass.configs import GenerationConfig
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY, FairseqTask
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation import TranslationTask
from torch import nn

from fairseq_recur.compat.checkpoint_options import DOWNLOADING
from fairseq_recur.errors import CheckpointError, ConfigError
from fairseq_recur.logs import quiet
from fairseq_recur.pretrained.folder import PathLike, find_checkpoints, find_dictionaries
from fairseq_recur.pretrained.model import Pretrained
from fairseq_recur.pretrained.text import FILES, Settings, build_text, check_options

PRECISIONS = ("fp32", "fp16", "bf16")

SIDES = ("source_lang", "target_lang")

ONLY_IN_TRAINING: dict[str, Any] = {
    "eval_bleu": False,
    "eval_rouge": False,
    "load_alignments": False,
}
"""Options of training that need files, with the values that switch them off."""


@quiet("fairseq")
def from_pretrained(
    folder: PathLike,
    checkpoint: PathLike | Sequence[PathLike] | None = None,
    data: PathLike | None = None,
    *,
    source_lang: str | None = None,
    target_lang: str | None = None,
    tokenizer: str | None = None,
    bpe: str | None = None,
    device: str | torch.device | None = None,
    precision: str = "fp32",
    **options: Any,
) -> Pretrained:
    """Load a trained model, or an ensemble, to translate, summarize and score text.

    Checkpoints are read without running code from them.

    Args:
        folder: the ``--save-dir`` of fairseq-train, or one checkpoint.
        checkpoint: a file in the folder, several for an ensemble. The default is ``average.pt``,
            ``checkpoint_best.pt``, ``checkpoint_last.pt``, or the only checkpoint.
        data: folder with the dictionaries. The default is ``folder``, or the training's data.
        source_lang: source language; by default that of the training.
        target_lang: target language; by default that of the training.
        tokenizer: such as "moses", or "none"; by default that of the training, if any.
        bpe: such as "sentencepiece" or "subword_nmt", or "none" for text that is already split
            into subwords. The default is that of the training, or follows from the dictionary.
        device: by default "cuda" if available.
        precision: "fp32", "fp16" or "bf16".
        options: options of the tokenizer and BPE by fairseq's names, such as
            ``sentencepiece_model`` and ``bpe_codes``. By default such files are searched for in
            ``folder``, in the folder of the dictionaries, and in its parent.

    Raises:
        ConfigError: a file is missing or malformed, or options conflict.
        CheckpointError: the checkpoint is damaged, foreign, or does not fit.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"from_pretrained: precision={precision!r}: expected one of {PRECISIONS}")
    home, files = find_checkpoints(folder, checkpoint)
    state = read(files[0])
    asked = state["cfg"]
    place, languages = set_task(state, home, data, (source_lang, target_lang))
    first, task = build(files[0], state, None, place)
    models = [first, *(build(file, read(file), task, place)[0] for file in files[1:])]
    settings = text_settings(asked, tokenizer, bpe, options, (home, place, place.parent))
    dictionaries = [task.source_dictionary, task.target_dictionary]
    check_options(settings, dictionaries)
    # A language model has one side.
    sides = [
        build_text(words, settings, language, [x for x in languages if x != language])
        for words, language in zip(dictionaries, languages or ["", ""])
    ]
    for model in models:
        prepare(model, device, precision)
    return Pretrained(models, task, sides[0], sides[1])


def read(file: Path) -> dict[str, Any]:
    """Read a checkpoint whose model and task can be built here.

    Raises:
        CheckpointError: the file is not a checkpoint, or is unsafe.
        ConfigError: an unknown or unsuitable task or model.
    """
    state = checkpoint_utils.load_checkpoint_to_cpu(str(file))
    state["args"] = None  # only in old checkpoints, and repeated in cfg
    task, model = state["cfg"]["task"], state["cfg"]["model"]
    if not issubclass(kind_of_task(task), (TranslationTask, LanguageModelingTask)):
        raise ConfigError(
            f"{file}: found a model of --task {option(task, '_name')}, expected translation, "
            "summarization, language_modeling or a task derived from these; first import the "
            "plug-in that has the task"
        )
    name = option(model, "_name") or option(model, "arch")
    if name not in MODEL_REGISTRY and name not in ARCH_MODEL_REGISTRY:
        raise ConfigError(
            f"{file}: unknown architecture {name!r}; import the plug-in that has it, "
            "or a newer fairseq_recur"
        )
    return state


def kind_of_task(cfg: Any) -> type[FairseqTask]:
    """Return the class of a checkpoint's task, FairseqTask for one that is not registered."""
    return TASK_REGISTRY.get(option(cfg, "_name") or option(cfg, "task"), FairseqTask)


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
) -> tuple[Path, list[str]]:
    """Set the folder of the dictionaries in a checkpoint's configuration, without validation.

    Returns:
        The folder of the dictionaries, and both languages; no languages for a language model.

    Raises:
        ConfigError: the dictionaries are missing.
    """
    saved = state["cfg"]["task"]
    wanted: list[str | None] = []
    if issubclass(kind_of_task(saved), TranslationTask):
        wanted = [given or option(saved, side) for given, side in zip(languages, SIDES)]
    elif any(languages):
        raise ConfigError(
            "from_pretrained: a language model has no source_lang or target_lang; leave them out"
        )
    place, found = find_dictionaries(home, data, option(saved, "data"), wanted)
    for name, value in {**ONLY_IN_TRAINING, "data": str(place), **dict(zip(SIDES, found))}.items():
        if name in saved:
            setattr(saved, name, value)
    return place, found


def build(
    file: Path, state: dict[str, Any], task: FairseqTask | None, place: Path
) -> tuple[nn.Module, FairseqTask]:
    """Build a checkpoint's model, and its task unless it exists already.

    Raises:
        CheckpointError: the weights do not fit.
    """
    try:
        models, _, task = checkpoint_utils.load_model_ensemble_and_task(
            [str(file)], state=state, task=task
        )
    except (RuntimeError, CheckpointError) as error:
        if "size mismatch" not in str(error) and not isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"{file} does not fit, perhaps because the dictionaries in {place} are not those of "
            f"its training (give data=FOLDER): {error}"
        ) from error
    return models[0], task


def text_settings(
    cfg: Any,
    tokenizer: str | None,
    bpe: str | None,
    options: dict[str, Any],
    places: Sequence[Path],
) -> Settings:
    """Return how text becomes tokens: the user's choice, otherwise that of the training."""
    names, kept = {"tokenizer": tokenizer, "bpe": bpe}, {}
    for group, given in names.items():
        saved = option(cfg, group)
        if saved is not None and given in (None, option(saved, "_name")):
            names[group] = option(saved, "_name")
            if given is None and names[group] in DOWNLOADING and names[group] not in FILES:
                raise ConfigError(
                    f"from_pretrained: the checkpoint asks for {group}={names[group]!r}, which "
                    f"downloads files; give {group}={names[group]!r} to allow it"
                )
            kept.update({name: saved[name] for name in saved if name in saved})  # not missing
    return Settings(
        tokenizer=names["tokenizer"],
        bpe=names["bpe"],
        options={**kept, **options},
        given=tuple(options),
        places=tuple(dict.fromkeys(path.absolute() for path in places)),
    )


def prepare(model: Any, device: str | torch.device | None, precision: str) -> None:
    """Prepare a model for decoding, as fairseq-generate does, and move it to its device."""
    if precision == "fp16":
        model.half()
    elif precision == "bf16":
        model.bfloat16()
    model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    # The precision of the training has no effect here.
    common = Namespace(fp16=False, bf16=False)
    model.prepare_for_inference_(Namespace(common=common, generation=GenerationConfig()))
    model.eval()
