"""Texts to fairseq's binary data."""

import logging
from collections.abc import Sequence
from pathlib import Path

from fairseq_recur.cli.fairseq_commands import run


def binarize(
    folder: Path,
    sides: Sequence[str],
    prefixes: Sequence[str],
    workers: int,
    dictionary: Sequence[str],
) -> None:
    """Run fairseq-recur preprocess in this process, which a kill then ends with it.

    Args:
        folder: for the data
        sides: source and target, the endings of the texts
        prefixes: of the texts, with the flags that say what they are for
        workers: processes
        dictionary: the flags of the dictionaries
    """
    source, target = sides
    words = ["-s", source, "-t", target, "--destdir", str(folder), "--workers", str(workers)]
    run("preprocess", [*words, *prefixes, *dictionary])
    _close_log(folder / "preprocess.log")


def _close_log(file: Path) -> None:
    """Remove the log that preprocess leaves open, with times and paths: no two are the same."""
    logger = logging.getLogger("fairseq_cli.preprocess")
    for handler in list(logger.handlers):
        if isinstance(handler, logging.FileHandler):
            logger.removeHandler(handler)
            handler.close()
    file.unlink()
