"""Looking for what a command will need, before anything is loaded.

fairseq finds out that a file is missing when it comes to it, which may be after the model
is built, and then says so with a traceback.
"""

import argparse
import difflib
import os
from collections.abc import Sequence
from pathlib import Path

from fairseq import options, utils
from fairseq.data.data_utils import infer_language_pair
from fairseq.data.indexed_dataset import dataset_exists
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
from fairseq.tasks.translation import TranslationTask

from fairseq_recur.cli.text import check_parallel
from fairseq_recur.errors import ConfigError

PARSERS = {
    "train": options.get_training_parser,
    "validate": options.get_validation_parser,
    "generate": options.get_generation_parser,
    "interactive": options.get_interactive_generation_parser,
    "eval-lm": options.get_eval_lm_parser,
}

SHOWN = 12  # files listed in an error


def check(command: str, argv: Sequence[str]) -> None:
    """Raise ConfigError if what a command was given to read is not there.

    sys.argv must be that of the command: fairseq's parsers read it.
    """
    if command == "preprocess":
        check_text(options.get_preprocessing_parser().parse_known_args()[0])
        return
    parser = PARSERS[command]()  # imports the user's plug-in, which may add architectures
    if command == "train":
        check_architecture(argv)
    if command == "generate":  # as the program itself adds it
        parser.add_argument("--arch", "-a", default="wav2vec2")
    # fairseq's usage message is 170 lines, in which an error is easily overlooked.
    parser.usage = "%(prog)s DATA [OPTION ...]   (--help lists the options)"
    args = options.parse_args_and_arch(parser)
    if command in ("train", "validate") and args.max_tokens is None and args.batch_size is None:
        raise ConfigError(f"{command} needs the size of a batch: --max-tokens N or --batch-size N")
    check_data(command, args)
    check_checkpoints(command, args)
    text = getattr(args, "input", "-")
    if command == "interactive" and text != "-" and not os.path.isfile(text):
        raise ConfigError(f"--input {text}: no such file; give one, or - for what is typed")


def check_architecture(argv: Sequence[str]) -> None:
    """Raise ConfigError, with the names that come close, if --arch is absent or unknown."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--arch", "-a", nargs="?")
    name = parser.parse_known_args(argv)[0].arch
    where = (
        "see `fairseq-recur check` for those of this plug-in, `fairseq-recur train --help` for all"
    )
    if name is None:
        raise ConfigError(f"train needs --arch NAME; {where}")
    if name not in ARCH_MODEL_REGISTRY:
        close = difflib.get_close_matches(name, ARCH_MODEL_REGISTRY, n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise ConfigError(f"unknown architecture {name!r}; {hint}{where}")


def check_data(command: str, args: argparse.Namespace) -> None:
    """Raise ConfigError if DATA is not there or lacks what the command reads from it.

    What is in the folder is looked at for translation only; other tasks keep other files.
    """
    translation = issubclass(TASK_REGISTRY[args.task], TranslationTask)
    data = getattr(args, "data", None)
    if translation and data is None:
        raise ConfigError(
            f"{command} needs DATA, the --destdir of `fairseq-recur preprocess`: "
            f"fairseq-recur {command} DATA --option ..."
        )
    if not isinstance(data, str) or "://" in data:
        return
    folders = utils.split_paths(data)
    for folder in folders:
        if not os.path.isdir(folder):
            raise ConfigError(
                f"no data folder {folder} ({os.path.abspath(folder)}); expected the --destdir "
                "of `fairseq-recur preprocess`"
            )
    if not translation:
        return
    source, target = args.source_lang, args.target_lang
    if source is None or target is None:
        source, target = infer_language_pair(folders[0])
    if source is None or target is None:
        _data_error(folders[0], "train.SOURCE-TARGET.SOURCE.bin")
    for language in (source, target):
        if not os.path.isfile(os.path.join(folders[0], f"dict.{language}.txt")):
            _data_error(folders[0], f"dict.{language}.txt")
    if args.dataset_impl == "fasta":
        return
    for split, of_split in _splits(command, args, folders).items():
        for folder in of_split:
            pairs = (f"{source}-{target}", f"{target}-{source}")
            names = [os.path.join(folder, f"{split}.{pair}.{source}") for pair in pairs]
            if not any(dataset_exists(name, args.dataset_impl) for name in names):
                _data_error(folder, f"{split}.{source}-{target}.{source}.bin and .idx")


def _splits(command: str, args: argparse.Namespace, folders: list[str]) -> dict[str, list[str]]:
    """Return the splits that a command reads, and the folders in which each must be."""
    if command == "generate":
        return {args.gen_subset: folders[:1]}
    splits: dict[str, list[str]] = {}
    if command == "validate" or (command == "train" and not args.disable_validation):
        splits = dict.fromkeys(args.valid_subset.split(","), folders[:1])
    if command == "train":
        splits[args.train_subset] = folders  # shards, an epoch each
    return splits


def _data_error(folder: str, wanted: str) -> None:
    """Say what a data folder lacks and what it has instead."""
    raise ConfigError(
        f"no {wanted} in {folder}; {_listing(folder)}. Make it with `fairseq-recur preprocess "
        f"... --destdir {folder}`, or check DATA, -s, -t and the names of the subsets"
    )


def _listing(folder: str, suffix: str = "") -> str:
    """List some of a folder."""
    names = sorted(name for name in os.listdir(folder) if name.endswith(suffix))
    if not names:
        return f"there is no {suffix or 'file'} in it" if suffix else "the folder is empty"
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"there are {', '.join(names[:SHOWN])}{more}"


def check_checkpoints(command: str, args: argparse.Namespace) -> None:
    """Raise ConfigError if a checkpoint that a command was given is not there."""
    given = {"--finetune-from-model": getattr(args, "finetune_from_model", None)}
    if command != "train":
        given = {"--path": args.path, "--lm-path": getattr(args, "lm_path", None)}
        if not args.path:
            raise ConfigError(f"{command} needs --path CHECKPOINT (several: a.pt:b.pt)")
    # Shards have other file names, which fairseq composes.
    if getattr(args, "checkpoint_suffix", "") or getattr(args, "checkpoint_shard_count", 1) > 1:
        return
    for option, paths in given.items():
        for path in utils.split_paths(paths) if paths else []:
            if "://" not in path and not os.path.isfile(path):
                _checkpoint_error(option, Path(path))


def _checkpoint_error(option: str, path: Path) -> None:
    """Say which checkpoint is missing and which are near it."""
    if path.is_dir():
        found = f"it is a folder; {_listing(str(path), '.pt')}"
    elif path.parent.is_dir():
        found = f"no such file; in {path.parent} {_listing(str(path.parent), '.pt')}"
    else:
        found = f"no such file, and no folder {path.parent}"
    raise ConfigError(f"{option} {path}: {found}; expected a checkpoint")


def check_text(args: argparse.Namespace) -> None:
    """Raise ConfigError if preprocess lacks a file, or would stop at a dictionary."""
    languages = [args.source_lang] + ([] if args.only_source else [args.target_lang])
    for option in ("trainpref", "validpref", "testpref"):
        for prefix in (getattr(args, option) or "").split(","):
            names = [f"{prefix}.{lang}" if lang else prefix for lang in languages]
            for name in names if prefix else []:
                if not os.path.isfile(name):
                    hint = "" if all(languages) else " (name the languages with -s and -t)"
                    raise ConfigError(
                        f"--{option} {prefix}: no file {name}{hint}; expected "
                        f"{' and '.join(names)}, one sentence a line"
                    )
            if prefix:
                check_parallel(names)
    for option in ("srcdict", "tgtdict", "alignfile"):
        name = getattr(args, option)
        if name and not os.path.isfile(name):
            raise ConfigError(
                f"--{option} {name}: no such file; give one that is there, or leave it out"
            )
    if not args.trainpref and not (args.srcdict and (args.tgtdict or args.only_source)):
        if not (args.joined_dictionary and (args.srcdict or args.tgtdict)):
            raise ConfigError(
                "no text to make dictionaries from: give --trainpref PREFIX (files PREFIX.SOURCE "
                "and PREFIX.TARGET), or dictionaries with --srcdict and --tgtdict"
            )
    for lang, option in zip(languages, ("srcdict", "tgtdict")):
        name = os.path.join(args.destdir, f"dict.{lang}.txt" if lang else "dict.txt")
        if os.path.exists(name) and not getattr(args, option):
            raise ConfigError(
                f"{name} is there already; give another --destdir, remove that folder, or use "
                f"the dictionary with --{option} {name}"
            )


def absolute_overrides(argv: Sequence[str]) -> list[str]:
    """Make task.data in hydra's overrides absolute, for hydra changes the current folder.

    Raises ConfigError if there is no such folder. Values with ${...} are hydra's to resolve.
    """
    return [_absolute(word) or word for word in argv]


def _absolute(word: str) -> str | None:
    key, equals, value = word.partition("=")
    if key.lstrip("+") != "task.data" or not value or "$" in value or "://" in value:
        return None
    folders = utils.split_paths(value.strip("'\""))
    for folder in folders:
        if not os.path.isdir(folder):
            raise ConfigError(
                f"{key}={folder}: no such data folder ({os.path.abspath(folder)}); "
                "expected the --destdir of `fairseq-recur preprocess`"
            )
    joined = os.pathsep.join(map(os.path.abspath, folders)).replace("'", "\\'")
    return f"{key}='{joined}'"
