"""fairseq's own commands, with this plug-in loaded and the input looked at first."""

import importlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from fairseq_recur.cli import inputs, stopping, user_dir

COMMANDS = {
    "preprocess": "fairseq-preprocess: text to binary data and dictionaries",
    "train": "fairseq-train",
    "hydra-train": "fairseq-hydra-train: training from configuration files",
    "validate": "fairseq-validate: the loss on a data set",
    "generate": "fairseq-generate: translate binary data",
    "interactive": "fairseq-interactive: translate text as it comes",
    "eval-lm": "fairseq-eval-lm: perplexity of a language model",
}

# What these write to stdout is their result, so their log goes to stderr.
LOG_TO_STDERR = ("generate", "interactive")

TRAINING = ("train", "hydra-train")

logger = logging.getLogger(__name__)


def run(command: str, argv: Sequence[str]) -> int:
    """Run one of COMMANDS as fairseq's program of that name would, and return its exit status.

    That is 0, or `stopping.STOPPED` if a signal ended a training, which is saved.

    Args:
        command: a key of COMMANDS.
        argv: what the user wrote after the command.

    Raises ConfigError if something is wrong that can be seen before anything is loaded:
    the plug-in folder, the architecture's name, data, checkpoints or text that are not there.
    """
    set_up_logging(sys.stderr if command in LOG_TO_STDERR else sys.stdout)
    argv = list(argv)
    if command == "hydra-train":
        argv, foreign = user_dir.add_override(argv)
        argv = inputs.absolute_overrides(argv)
        user_dir.load_before_hydra(foreign)
    else:
        argv, foreign = user_dir.add_option(argv)
    if foreign is not None:
        logger.info("--user-dir %s is loaded beside fairseq_recur", foreign)
    with program(f"fairseq-recur {command}", argv):
        if command != "hydra-train" and not {"-h", "--help"} & set(argv):
            inputs.check(command, argv)
        module = importlib.import_module("fairseq_cli." + command.replace("-", "_"))
        if command not in TRAINING:
            module.cli_main()
            return 0
        with stopping.on_signals(importlib.import_module("fairseq_cli.train")) as stop:
            module.cli_main()
        return stop.status


@contextmanager
def program(name: str, argv: list[str]) -> Iterator[None]:
    """Set sys.argv, from which fairseq's programs and their usage messages read, for a while."""
    before = sys.argv
    sys.argv = [name, *argv]
    try:
        yield
    finally:
        sys.argv = before


def set_up_logging(stream: TextIO) -> None:
    """Log as fairseq's programs do, to a stream.

    They set this up before they import fairseq, because a module of fairseq sets up
    another format at import. Here that import has been done, so its handler is replaced;
    handlers that others installed stay.
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
    root.setLevel(os.environ.get("LOGLEVEL", "INFO").upper())
