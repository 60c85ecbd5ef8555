"""Convert a T5 or a BART from Hugging Face's format to fairseq's, or back.

Nothing is downloaded, and no code from the files is run. A folder becomes model.pt,
dict.source.txt, dict.target.txt and the files for --bpe; a checkpoint becomes config.json and
model.safetensors, and with --like the tokenizer of the model it came from.
"""

import argparse
import os
import shutil
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
from fairseq_recur.cli.average import SHOWN, shown
from fairseq_recur.compat.checkpoints import explained
from fairseq_recur.conversion import bart, huggingface, t5
from fairseq_recur.conversion.settings import MOST_WORDS, Settings, Value, check_sizes
from fairseq_recur.errors import CheckpointError, ConfigError
from fairseq_recur.experiments.settings import arguments
from fairseq_recur.files import whole_file
from fairseq_recur.loading.states import read_state, saved_options
from fairseq_recur.planning.building import words as placeholders

KINDS: dict[str, ModuleType] = {"t5": t5, "mt5": t5, "bart": bart}
SLOTS = ("encoder_self_attention", "decoder_self_attention", "cross_attention")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `convert`."""
    parser.add_argument(
        "--input",
        required=True,
        metavar="PATH",
        help="folder with config.json, weights and tokenizer, or a checkpoint of fairseq",
    )
    parser.add_argument(
        "--output", required=True, metavar="FOLDER", help="folder to write; must not exist yet"
    )
    parser.add_argument(
        "--like",
        metavar="FOLDER",
        help="with a checkpoint: the folder in Hugging Face's format that it was converted from. "
        "It gives the tokenizer, the order of its words, and settings that fairseq does not have",
    )


def run(args: argparse.Namespace) -> int:
    """Convert in the direction that the input implies."""
    source, target = Path(args.input), new_folder(args.output)
    if source.is_dir():
        if args.like:
            raise ConfigError(
                "--like works with a checkpoint, but --input is a folder; leave out --like"
            )
        to_fairseq(source, target)
    elif source.is_file():
        to_huggingface(source, target, Path(args.like) if args.like else None)
    else:
        raise ConfigError(
            f"--input {source}: no such file or folder; "
            "expected a model's folder in Hugging Face's format, or fairseq's checkpoint"
        )
    return 0


def new_folder(name: str) -> Path:
    """Return the path of a folder to write; ConfigError if it exists."""
    target = Path(name)
    if not target.name:
        raise ConfigError(f"--output {name!r}: expected the name of a new folder")
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ConfigError(f"--output {target} exists already; give another name")
    return target


@contextmanager
def whole_or_nothing(target: Path) -> Iterator[Path]:
    """Yield a folder that gets its final name at the end, and is removed after an error."""
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    unfinished.mkdir()
    try:
        with explained(target):
            yield unfinished
        try:
            os.replace(unfinished, target)
        except OSError as error:
            if not target.exists():
                raise
            raise ConfigError(
                f"--output {target} was made by another process in the meantime; give another name"
            ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def kind_of(config: dict[str, Any], folder: Path) -> ModuleType:
    """Return the module for a configuration.

    Raises:
        ConfigError: a model that cannot be converted.
    """
    return KINDS[Settings(config, f"{folder / 'config.json'}").choice("model_type", KINDS)]


def to_fairseq(source: Path, target: Path) -> None:
    """Convert a folder of Hugging Face's format."""
    raw = huggingface.read_json(source / "config.json")
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
            f"{source} has weights that fairseq's {kind.NAME} has no place for: {shown(weights)}; "
            f"expected a plain {kind.NAME}"
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
        more = [f"and {len(wrong) - SHOWN} more"] if len(wrong) > SHOWN else []
        head = "the weights do not fit; give config.json and weights of one model"
        raise CheckpointError("\n- ".join([head, *wrong[:SHOWN], *more]))


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


def to_huggingface(source: Path, target: Path, like: Path | None) -> None:
    """Convert a checkpoint of fairseq."""
    huggingface.safetensors_torch()  # before any work
    loaded = read_state(source)
    options, state = model_options(loaded, source), dict(loaded["model"])
    compat.drop_stale_encoder_keys(state, "encoder")
    kind = t5 if options.values.get("host") == "t5" else bart
    must_be_plain(options.values, source, kind.NAME)
    like_config: dict[str, Any] = {}
    rows = None
    try:
        table = len(state["encoder.embed_tokens.weight"])
        if like is not None:
            like_config = huggingface.read_json(like / "config.json")
            rows = rows_like(kind, like, like_config, source, table)
        config, weights = kind.to_huggingface(options, state, like_config, rows)
    except KeyError as error:
        raise CheckpointError(
            f"{source} lacks {error.args[0]}: not a {kind.NAME}; give a checkpoint of one"
        ) from error
    rest = [name for name in state if not name.endswith(".version")]
    if rest:
        raise ConfigError(
            f"Hugging Face's {kind.NAME} has no place for {shown(rest)}; "
            "give a checkpoint of a plain one"
        )
    with whole_or_nothing(target) as folder:
        huggingface.write_model(folder, config, weights)
        copied = huggingface.copy_tokenizer(like, folder) if like else []
    print(f"{target}: config.json and model.safetensors of a {kind.NAME}")
    print(f"  tokenizer: {', '.join(copied)}" if copied else "  no tokenizer: --like gives one")


def rows_like(
    kind: ModuleType, like: Path, config: dict[str, Any], source: Path, words: int
) -> list[int]:
    """Return the rows of fairseq's words in the matrices of ``--like``.

    Raises:
        ConfigError: a folder that a checkpoint of so many words was not converted from.
    """
    if kind_of(config, like) is not kind:
        raise ConfigError(
            f"--like {like} is a {config['model_type']}, but {source} is not; "
            "give the folder that it was converted from"
        )
    settings = Settings(config, f"--like {like}: config.json")
    # fairseq's <s> may be one row more; no vocabulary is built for any other size.
    size = settings.integer("vocab_size", high=MOST_WORDS)
    rows: list[int] = kind.vocabulary(like, settings).rows if abs(words - size) < 2 else []
    if len(rows) != words:
        raise ConfigError(
            f"the checkpoint has {words} words, but the tokenizer of --like {like} needs "
            f"{len(rows) or size}; give the folder that the checkpoint was converted from"
        )
    return rows


def model_options(loaded: dict[str, Any], source: Path) -> Settings:
    """Return the flat options of a checkpoint's model.

    Raises:
        CheckpointError: it has none, or more layers than weights.
    """
    options = saved_options(loaded)
    if "encoder_embed_dim" not in options:
        raise CheckpointError(
            f"{source} does not contain the sizes of its model; give one that fairseq-train saved"
        )
    settings = Settings(options, str(source))
    layers = settings.integer("encoder_layers") + settings.integer("decoder_layers")
    if layers > len(loaded["model"]):
        raise CheckpointError(
            f"{source} asks for {layers} layers, but it has only {len(loaded['model'])} weights; "
            "give one that fairseq-train saved"
        )
    return settings


def must_be_plain(options: Mapping[str, Any], source: Path, name: str) -> None:
    """Raise ConfigError, naming the parts of a model that the other format lacks."""
    mixtures = (f"{slot}_mixture" for slot in SLOTS)
    plain = {**dict.fromkeys(SLOTS, "dot"), **dict.fromkeys(mixtures, "none"), "recurrence": "none"}
    parts = [
        f"--{key.replace('_', '-')} {options[key]}"
        for key, value in plain.items()
        if options.get(key, value) != value
    ]
    if parts:
        raise ConfigError(
            f"{source} has parts that Hugging Face's {name} cannot represent: {', '.join(parts)}; "
            "give a model without them"
        )
