"""`convert` of a model in Hugging Face's format to a checkpoint of fairseq and its dictionaries."""

from argparse import Namespace
from copy import deepcopy
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from fairseq import options as fairseq_options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from fairseq_recur import compat
from fairseq_recur.cli.new_folder import whole_or_nothing
from fairseq_recur.conversion import huggingface
from fairseq_recur.conversion.kinds import kind_of
from fairseq_recur.conversion.settings import Settings, Value, check_sizes
from fairseq_recur.errors import CheckpointError, ConfigError, first_items, first_lines
from fairseq_recur.experiments.settings import arguments
from fairseq_recur.files import whole_file
from fairseq_recur.planning.building import words as placeholders


def to_fairseq(source: Path, target: Path) -> None:
    """Convert a folder of Hugging Face's format."""
    raw = huggingface.read_object(source / "config.json")
    kind, config = kind_of(raw, source), Settings(raw)
    options = kind.model_options(config)
    weights = huggingface.read_weights(source)
    try:
        check_sizes(config, weights, sum(kind.stack_heights(config)))
        vocabulary = kind.vocabulary(source, config)
        state = kind.to_fairseq(config, weights, vocabulary.rows)
    except KeyError as error:
        raise CheckpointError(
            f"{source} lacks the weight {error.args[0]}; expected a complete model"
        ) from error
    if weights:
        raise ConfigError(
            f"{source} has weights that fairseq's {kind.NAME} has no place for: "
            f"{first_items(sorted(weights))}; expected a plain {kind.NAME}"
        )
    cfg = training_config(kind.ARCH, options)
    must_fit(kind, cfg, state, len(vocabulary.rows))
    with whole_or_nothing(target) as folder:
        with whole_file(folder / "model.pt") as file:
            torch.save(checkpoint(cfg, state), file)
        vocabulary.write(folder)
        bpe = kind.tokenizer_files(source, folder)
    print(f"{target}: {kind.NAME} with {len(vocabulary.rows):,} words as model.pt")
    print(f"  options of its model: --arch {kind.ARCH} {' '.join(arguments(options))}")
    print("  dictionaries: dict.source.txt, dict.target.txt (for --srcdict and --tgtdict)")
    if bpe:
        print(f"  text: {' '.join(bpe)}, with these files' paths")
    else:
        print("  text: the folder has no spiece.model; encode with the tokenizer's own library")


def training_config(arch: str, options: dict[str, Value]) -> DictConfig:
    """Return the configuration that fairseq-train would make of a model's options.

    Only constants pass through fairseq's parsers; the options are assigned as data.
    """
    cfg = deepcopy(default_config(arch))
    width = options["encoder_embed_dim"]
    implied = {f"decoder_{name}_dim": width for name in ("embed", "input", "output")}
    implied["decoder_ffn_embed_dim"] = options["encoder_ffn_embed_dim"]
    for name, value in {**implied, **options}.items():
        if name in options or name in cfg.model:
            setattr(cfg.model, name, value)
        if name in cfg.task:
            setattr(cfg.task, name, value)
    return cfg


@cache
def default_config(arch: str) -> DictConfig:
    """Return fairseq's configuration of a translation with an architecture as it is."""
    parser = fairseq_options.get_training_parser("translation")
    words = [".", "--source-lang", "source", "--target-lang", "target", "--arch", arch]
    return convert_namespace_to_omegaconf(fairseq_options.parse_args_and_arch(parser, words))


def must_fit(kind: ModuleType, cfg: DictConfig, state: dict[str, Tensor], words: int) -> None:
    """Raise CheckpointError, naming the weights, unless the model takes them as they are."""
    dictionary = placeholders(words)
    task = Namespace(source_dictionary=dictionary, target_dictionary=dictionary)
    with torch.device("meta"):
        expected = dict(kind.build(cfg.model, task).state_dict())
    compat.drop_stale_encoder_keys(expected, "encoder")
    wrong = [
        f"{name} is {tuple(state[name].shape) if name in state else 'missing'}, config.json asks "
        f"for {tuple(weight.shape)}"
        for name, weight in expected.items()
        if name not in state or state[name].shape != weight.shape
    ]
    wrong += [f"{name} has no place" for name in state if name not in expected]
    if wrong:
        head = "the weights do not fit; give config.json and weights of one model"
        raise CheckpointError("\n- ".join([head, *first_lines(wrong)]))


def checkpoint(cfg: DictConfig, state: dict[str, Tensor]) -> dict[str, Any]:
    """Return what fairseq expects in a file: settings and weights of a training at its start."""
    start = {"epoch": 1, "iterations_in_epoch": 0, "shuffle": True, "version": 2}
    history = {
        "criterion_name": "none",
        "optimizer_name": "none",
        "lr_scheduler_state": {},
        "num_updates": 0,
    }
    return {
        "args": None,
        "cfg": OmegaConf.to_container(cfg, resolve=True, enum_to_str=True),
        "model": state,
        "criterion": None,
        "optimizer_history": [history],
        "task_state": {},
        "extra_state": {"train_iterator": start, "val_loss": None},
        "last_optimizer_state": None,
    }
