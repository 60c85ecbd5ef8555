"""fairseq's own commands, with this plug-in loaded and their input checked first."""

import importlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from fairseq_recur.errors import INPUT_ERRORS, ConfigError, ProcessError

COMMANDS = {
    "preprocess": "fairseq-preprocess: convert text to binary data and dictionaries",
    "train": "fairseq-train; --list shows all architectures and parts",
    "hydra-train": "fairseq-hydra-train: train from configuration files",
    "validate": "fairseq-validate: compute the loss on a data set",
    "generate": "fairseq-generate: translate binary data",
    "interactive": "fairseq-interactive: translate text line by line",
    "eval-lm": "fairseq-eval-lm: compute the perplexity of a language model",
}

# These write their results to stdout, so their log goes to stderr.
LOG_TO_STDERR = ("generate", "interactive")

TRAINING = ("train", "hydra-train")

logger = logging.getLogger(__name__)


def run(command: str, argv: Sequence[str]) -> int:
    """Run one of `COMMANDS` as fairseq's program of that name would.

    Everything must be registered with fairseq already.

    Args:
        command: a key of COMMANDS
        argv: the arguments after the command

    Returns:
        the exit status: 0, or `graceful_stop.STOPPED` if a signal stopped a training, which is
        saved

    Raises:
        ConfigError: for what can be seen before anything is loaded: an invalid plug-in folder,
            an unknown architecture or option, missing data, checkpoints or text
    """
    from fairseq_recur.cli import fairseq_refusals, preflight, training_help

    set_up_logging(sys.stderr if command in LOG_TO_STDERR else sys.stdout)
    argv = with_plugins(command, argv)
    with program(f"fairseq-recur {command}", argv):
        wants_help = bool({"-h", "--help"} & set(argv))
        if command == "train" and (wants_help or "--list" in argv):
            print(training_help.help_text(argv) if wants_help else training_help.list_text())
            return 0
        if command != "hydra-train" and not wants_help:
            preflight.check(command, argv)
        module = importlib.import_module("fairseq_cli." + command.replace("-", "_"))
        if command in TRAINING:
            return train(command, module, argv)
        with fairseq_refusals.told():
            module.cli_main()
        return 0


def with_plugins(command: str, argv: Sequence[str]) -> list[str]:
    """Return the arguments with which fairseq loads this plug-in; check and name another one."""
    from fairseq_recur.cli import plugin_loading, preflight

    words = list(argv)
    if command == "hydra-train":
        words, other_plugin = plugin_loading.add_override(words)
        words = preflight.absolute_overrides(words)
        plugin_loading.load_before_hydra(other_plugin)
    else:
        words, other_plugin = plugin_loading.add_option(words)
    if other_plugin is not None:
        logger.info("--user-dir %s is loaded in addition to fairseq_recur", other_plugin)
    return words


def train(command: str, module: Any, argv: Sequence[str]) -> int:
    """Run fairseq's module of a training; return the exit status, see `run`."""
    import torch

    from fairseq_recur.cli import allocator, fairseq_refusals, graceful_stop

    if "--cpu" in argv or not torch.cuda.is_available():
        allocator.keep_freed_memory()
    with graceful_stop.on_signals(importlib.import_module("fairseq_cli.train")) as stop:
        with around_hydra(module) if command == "hydra-train" else fairseq_refusals.told():
            module.cli_main()
    return stop.status


class _Passed(BaseException):
    """Passes through hydra, which handles each `Exception` itself; its context is the error."""


@contextmanager
def around_hydra(module: Any) -> Iterator[None]:
    """Let errors of a training's input leave fairseq's module *module* as they leave `train`.

    hydra would print them with a traceback, and end the program with status 1.
    """
    from fairseq_recur.cli import fairseq_refusals

    train = module._hydra_main

    def run_training(*args: Any, **kwargs: Any) -> Any:
        try:
            with fairseq_refusals.told():
                return train(*args, **kwargs)
        except (*INPUT_ERRORS, ProcessError, OSError):
            raise _Passed from None

    module._hydra_main = run_training
    try:
        yield
    except _Passed as passed:
        assert passed.__context__ is not None
        raise passed.__context__ from passed.__context__.__cause__
    finally:
        module._hydra_main = train


@contextmanager
def program(name: str, argv: list[str]) -> Iterator[None]:
    """Replace sys.argv, which fairseq's programs and their usage messages read, for a while."""
    before = sys.argv
    sys.argv = [name, *argv]
    try:
        yield
    finally:
        sys.argv = before


def set_up_logging(stream: TextIO) -> None:
    """Log to a stream in the format of fairseq's programs.

    Those programs set up logging before they import fairseq, because a module of fairseq installs
    a handler with another format. Here fairseq may have been imported, so its handler is replaced.
    Handlers that others installed stay.
    """
    root = logging.getLogger()
    for handler in list(root.handlers):
        if type(handler) is logging.StreamHandler:
            root.removeHandler(handler)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        logging.Formatter(
            "%(asctime)s | %(levelname)s | %(name)s | %(message)s", "%Y-%m-%d %H:%M:%S"
        )
    )
    root.addHandler(handler)
    root.setLevel(log_level())


def log_level() -> int:
    """Return the level of the log: INFO, or what the variable LOGLEVEL names.

    Raises:
        ConfigError: it names none
    """
    name = os.environ.get("LOGLEVEL", "INFO")
    level = logging.getLevelName(name.upper())
    if not isinstance(level, int):
        raise ConfigError(
            f"LOGLEVEL={name}: expected DEBUG, INFO, WARNING, ERROR or CRITICAL; set the variable "
            "to one of them, or unset it"
        )
    return level
