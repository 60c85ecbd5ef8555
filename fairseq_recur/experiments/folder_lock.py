"""The lock of an experiment's folder: only one process works in it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.steps import LOCK
from fairseq_recur.locks import hold, is_locked

HELD = "FAIRSEQ_RECUR_LOCK"
"""The variable with the descriptor of the folder's lock, which `run --background` hands over."""


def exclusive(work: Path) -> IO[str]:
    """Lock the experiment's folder, or take over the lock that `run --background` has.

    Raises:
        ConfigError: another process has the lock, or the disk has no locks
    """
    held = os.environ.pop(HELD, None)
    lock = os.fdopen(int(held), "a+", encoding="utf-8") if held else lock_of(work)
    if lock is None:
        raise ConfigError(
            f"an experiment runs in {work} (process {process_of(work)}); wait, or stop it "
            f"with `fairseq-recur experiment stop {work}`"
        )
    return lock


def lock_of(folder: Path) -> IO[str] | None:
    """Lock a folder; return None if another process has the lock.

    Raises:
        ConfigError: the disk has no locks
    """
    with needing_locks(folder):
        return hold(folder / LOCK)


def is_held(folder: Path) -> bool:
    """Return whether a process works in a folder of an experiment, which is only read."""
    with needing_locks(folder):
        return is_locked(folder / LOCK)


@contextmanager
def needing_locks(folder: Path) -> Iterator[None]:
    """Say what to do if the disk of a folder has no locks."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:  # the file itself cannot be opened
            raise
        raise ConfigError(
            f"{folder}: its disk has no locks ({error.strerror}); choose another --work-dir"
        ) from error


def process_of(work: Path) -> str:
    """Return the number and the machine of the process that holds the folder's lock."""
    return (work / LOCK).read_text(encoding="utf-8").strip() or "unknown"
