"""Loading trained models that read and write text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fairseq_recur.compat.checkpoint_options import DOWNLOADING
from fairseq_recur.errors import ConfigError
from fairseq_recur.loading.folder import PathLike
from fairseq_recur.loading.models import load, option, prepare
from fairseq_recur.pretrained.model import Pretrained
from fairseq_recur.pretrained.subwords import FILES, TextSettings, build_text, check_options

PRECISIONS = ("fp32", "fp16", "bf16")


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
    found = load(folder, checkpoint, data, (source_lang, target_lang))
    task, place = found.task, found.data or found.home
    settings = text_settings(found.cfg, tokenizer, bpe, options, (found.home, place, place.parent))
    dictionaries = [task.source_dictionary, task.target_dictionary]
    check_options(settings, dictionaries)
    # A language model has one side.
    sides = [
        build_text(words, settings, language, [x for x in found.languages if x != language])
        for words, language in zip(dictionaries, found.languages or ["", ""])
    ]
    for model in found.models:
        prepare(model, device, precision)
    return Pretrained(found.models, task, sides[0], sides[1])


def text_settings(
    cfg: Any,
    tokenizer: str | None,
    bpe: str | None,
    options: dict[str, Any],
    places: Sequence[Path],
) -> TextSettings:
    """Return how text becomes tokens: the user's choice, otherwise that of the training."""
    names, kept = {"tokenizer": tokenizer, "bpe": bpe}, {}
    for group, given in names.items():
        saved = option(cfg, group)
        if saved is not None and given in (None, option(saved, "_name")):
            names[group] = option(saved, "_name")
            if given is None and names[group] in DOWNLOADING and names[group] not in FILES:
                raise ConfigError(
                    f"the checkpoint asks for {group}={names[group]!r}, which "
                    f"downloads files; give {group}={names[group]!r} to allow it"
                )
            kept.update({name: saved[name] for name in saved if name in saved})  # not missing
    return TextSettings(
        tokenizer=names["tokenizer"],
        bpe=names["bpe"],
        options={**kept, **options},
        given=tuple(options),
        places=tuple(dict.fromkeys(path.absolute() for path in places)),
    )
