"""Checks of a command's input before anything is loaded.

fairseq notices a missing file only when it opens it, possibly after it has built the model, and
then prints a traceback.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fairseq import options, utils
from fairseq.data import Dictionary
from fairseq.data.data_utils import infer_language_pair
from fairseq.data.indexed_dataset import dataset_exists
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation import TranslationTask

from fairseq_recur.cli import suggestion
from fairseq_recur.cli.binary_data import check_pair, check_set
from fairseq_recur.cli.option_check import check_options
from fairseq_recur.cli.text_check import check_text
from fairseq_recur.errors import ConfigError
from fairseq_recur.loading.folder import listing

PARSERS = {
    "train": options.get_training_parser,
    "validate": options.get_validation_parser,
    "generate": options.get_generation_parser,
    "interactive": options.get_interactive_generation_parser,
    "eval-lm": options.get_eval_lm_parser,
}

SEVERAL = ("data", "path", "finetune_from_model", "lm_path")
NAMES = (*SEVERAL, "save_dir", "restore_file", "log_file", "tensorboard_logdir", "results_path")
"""Options that name files or folders; fairseq splits `SEVERAL` at colons."""

PREPROCESS = "`fairseq-recur preprocess`"


def check(command: str, argv: Sequence[str]) -> None:
    """Check a command's arguments; sys.argv must be the command's, for fairseq's parsers read it.

    Raises:
        ConfigError: an unknown option, or input that is missing
        SystemExit: 2, with argparse's message, for a missing argument or an invalid value
    """
    if command == "preprocess":
        check_text(options.get_preprocessing_parser().parse_known_args()[0])
        return
    parser = PARSERS[command]()  # imports the user's plug-in, which may add architectures
    if command == "train":
        check_architecture(argv)
    if command == "generate":  # as the program itself adds it
        parser.add_argument("--arch", "-a", default="wav2vec2")
    # fairseq's usage message has 170 lines, in which an error is easily overlooked.
    parser.usage = "%(prog)s DATA [OPTION ...]   (--help lists the options)"
    args, unknown = options.parse_args_and_arch(parser, parse_known=True)
    if unknown:
        word = unknown[0].split("=")[0]
        hint = suggestion(word, parser._option_string_actions) or "; remove it, or see --help"
        raise ConfigError(f"{command}: unknown argument {word!r}{hint}")
    if command in ("train", "validate") and args.max_tokens is None and args.batch_size is None:
        raise ConfigError(f"{command} needs a batch size: give --max-tokens N or --batch-size N")
    check_options(command, args)
    check_names(args)
    check_data(command, args)
    check_checkpoints(command, args)
    text = getattr(args, "input", "-")
    if command == "interactive" and text == "-" and sys.stdin is None:
        raise ConfigError("standard input is closed; give the text there, or --input FILE")
    found = os.path.exists(text) and not os.path.isdir(text)  # it may be a pipe
    if command == "interactive" and text != "-" and not found:
        raise ConfigError(f"--input {text}: no such file; give a text file, or - for stdin")


def check_architecture(argv: Sequence[str]) -> None:
    """Raise ConfigError, suggesting similar names, if --arch is missing or unknown."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--arch", "-a", nargs="?")
    name = parser.parse_known_args(argv)[0].arch
    if name is None:
        raise ConfigError("train needs --arch NAME; see `fairseq-recur train --list`")
    if name not in ARCH_MODEL_REGISTRY:
        raise ConfigError(
            f"unknown architecture {name!r}{suggestion(name, ARCH_MODEL_REGISTRY)}; "
            "see `fairseq-recur train --list`"
        )


def check_names(args: argparse.Namespace) -> None:
    """Raise ConfigError for a name of a file or folder that fairseq would read as something else.

    In its configuration, ${x} stands for another option, and it takes a colon for the end of a
    name.
    """
    for name in NAMES:
        value = getattr(args, name, None)
        if not isinstance(value, str):
            continue
        option = "DATA" if name == "data" else f"--{name.replace('_', '-')}"
        if "${" in value:
            raise ConfigError(f"{option} {value}: ${{...}} stands for another option; rename it")
        if os.pathsep in value and os.path.exists(value) and name in SEVERAL:
            raise ConfigError(f"{option} {value}: fairseq splits it at {os.pathsep!r}; rename it")


def check_data(command: str, args: argparse.Namespace) -> None:
    """Raise ConfigError if DATA does not exist, or as `check_translation_data`.

    The contents of the folder are checked for translation and for language models; other tasks
    have other files.
    """
    translation = issubclass(TASK_REGISTRY[args.task], TranslationTask)
    data = getattr(args, "data", None)
    if translation and data is None:
        raise ConfigError(
            f"{command} needs DATA, the --destdir of {PREPROCESS}: "
            f"fairseq-recur {command} DATA --option ..."
        )
    if not isinstance(data, str) or "://" in data:
        return
    folders = utils.split_paths(data)
    for folder in folders:
        if not os.path.isdir(folder):
            raise ConfigError(
                f"no data folder {folder} ({os.path.abspath(folder)}); expected the --destdir "
                f"of {PREPROCESS}"
            )
    if translation and hasattr(args, "source_lang"):  # back-translation has other files
        check_translation_data(command, args, folders)
    if issubclass(TASK_REGISTRY[args.task], LanguageModelingTask):
        check_language_data(command, args, folders)


def check_language_data(command: str, args: argparse.Namespace, folders: list[str]) -> None:
    """Raise ConfigError if a set that the command reads is damaged, empty or does not fit.

    Args:
        command: of fairseq
        args: its options
        folders: of the data; the first has the dictionary
    """
    dictionary = os.path.join(folders[0], "dict.txt")
    if not os.path.isfile(dictionary):
        if command == "validate":  # the checkpoint may be of a task with other dictionaries
            return
        raise ConfigError(_incomplete(folders[0], "dict.txt"))
    known = len(Dictionary.load(dictionary))
    for split, of_split in _splits(command, args, folders).items():
        for folder in of_split:
            check_set(os.path.join(folder, split), known, args.dataset_impl)


def check_translation_data(command: str, args: argparse.Namespace, folders: list[str]) -> None:
    """Raise ConfigError if a file that the command reads is missing, damaged or does not fit.

    Args:
        command: of fairseq
        args: its options
        folders: of the data; the first has the dictionaries
    """
    source, target = args.source_lang, args.target_lang
    if source is None or target is None:
        source, target = infer_language_pair(folders[0])
    if source is None or target is None:
        raise ConfigError(_incomplete(folders[0], "train.SOURCE-TARGET.SOURCE.bin"))
    symbols: dict[str, int] = {}
    for language in (source, target):
        dictionary = os.path.join(folders[0], f"dict.{language}.txt")
        if not os.path.isfile(dictionary):
            raise ConfigError(_incomplete(folders[0], f"dict.{language}.txt"))
        symbols[language] = len(TASK_REGISTRY[args.task].load_dictionary(dictionary))
    if args.dataset_impl == "fasta":
        return
    for split, of_split in _splits(command, args, folders).items():
        for folder in of_split:
            pairs = (f"{source}-{target}", f"{target}-{source}")
            names = [os.path.join(folder, f"{split}.{pair}") for pair in pairs]
            found = [n for n in names if dataset_exists(f"{n}.{source}", args.dataset_impl)]
            if not found:
                wanted = f"{split}.{source}-{target}.{source}.bin and .idx"
                raise ConfigError(_incomplete(folder, wanted))
            check_pair(found[0], symbols, args.dataset_impl)


def _splits(command: str, args: argparse.Namespace, folders: list[str]) -> dict[str, list[str]]:
    """Return the splits that a command reads, and the folders that must contain each."""
    if command in ("generate", "eval-lm"):
        return {args.gen_subset: folders[:1]}
    splits: dict[str, list[str]] = {}
    if command == "validate" or (command == "train" and not args.disable_validation):
        splits = dict.fromkeys(args.valid_subset.split(","), folders[:1])
    if command == "train":
        splits[args.train_subset] = folders  # one shard per epoch
    return splits


def _incomplete(folder: str, wanted: str) -> str:
    """Say that a data folder lacks a file, and what the folder contains."""
    return (
        f"no {wanted} in {folder}; it contains {listing(Path(folder))}. Create it with "
        f"`fairseq-recur preprocess ... --destdir {folder}`, or check DATA, -s, -t and the names "
        "of the subsets"
    )


def check_checkpoints(command: str, args: argparse.Namespace) -> None:
    """Raise ConfigError if a checkpoint that the command reads does not exist."""
    named = {
        "--finetune-from-model": getattr(args, "finetune_from_model", None),
        "--restore-file": restored(args),
    }
    if command != "train":
        named = {"--path": args.path, "--lm-path": getattr(args, "lm_path", None)}
        if not args.path:
            raise ConfigError(f"{command} needs --path CHECKPOINT (several: a.pt:b.pt)")
    # Shards have other file names, which fairseq composes.
    if getattr(args, "checkpoint_suffix", "") or getattr(args, "checkpoint_shard_count", 1) > 1:
        return
    for option, paths in named.items():
        for path in map(Path, utils.split_paths(paths) if paths else []):
            if "://" in str(paths) or path.is_file():
                continue
            if path.is_dir():
                found = f"this is a folder; it contains {listing(path, '*.pt')}"
            elif path.parent.is_dir():
                there = listing(path.parent, "*.pt")
                found = f"no such file in {path.parent}; it contains {there}"
            else:
                found = f"no folder {path.parent}"
            raise ConfigError(f"{option} {path}: {found}; expected a checkpoint")


def restored(args: argparse.Namespace) -> str | None:
    """Return --restore-file if it names a file from which the training must start.

    Without that file fairseq would start from random weights. In --save-dir it is one to resume
    from, which does not exist at first. "none" asks for no file.
    """
    file = getattr(args, "restore_file", None)
    own = getattr(args, "save_dir", None) or "checkpoints"
    if not file or file in ("checkpoint_last.pt", "none"):
        return None
    return None if Path(file).absolute().parent == Path(own).absolute() else str(file)


def absolute_overrides(argv: Sequence[str]) -> list[str]:
    """Make task.data in hydra's overrides absolute, because hydra changes the current folder.

    Values with ${...} are left for hydra to resolve.

    Raises:
        ConfigError: the folder does not exist
    """
    return [_absolute(word) or word for word in argv]


def _absolute(word: str) -> str | None:
    key, _, value = word.partition("=")
    if key.lstrip("+") != "task.data" or not value or "$" in value or "://" in value:
        return None
    folders = utils.split_paths(value.strip("'\""))
    for folder in folders:
        if not os.path.isdir(folder):
            raise ConfigError(
                f"{key}={folder}: no such data folder ({os.path.abspath(folder)}); "
                f"expected the --destdir of {PREPROCESS}"
            )
    joined = os.pathsep.join(map(os.path.abspath, folders)).replace("'", "\\'")
    return f"{key}='{joined}'"
