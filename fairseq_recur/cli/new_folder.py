"""A folder that a command writes: it does not exist before, and appears when it is complete."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fairseq_recur.compat.checkpoint_writing import explained
from fairseq_recur.errors import ConfigError
from fairseq_recur.files import left_behind, unfinished_name


def new_folder(name: str) -> Path:
    """Return the path of a folder to write, behind a symbolic link if it is one.

    Raises:
        ConfigError: it exists and is not empty, or no folder can be made there
    """
    target = Path(name)
    if not target.name:
        raise ConfigError(f"--output {name!r}: expected the name of a new folder")
    if target.is_symlink():
        target = Path(os.path.realpath(target))
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ConfigError(f"--output {target} exists already; give another name")
    above = next(place for place in target.absolute().parents if place.exists())
    if not (above.is_dir() and os.access(above, os.W_OK)):
        raise ConfigError(
            f"--output {target}: {above} is not a folder with write permission; give another name"
        )
    return target


@contextmanager
def whole_or_nothing(target: Path) -> Iterator[Path]:
    """Yield a folder that gets its final name at the end, and is removed after an error.

    What a kill leaves, the next call removes.

    Raises:
        ConfigError: another process has made a folder of the final name
        CheckpointError: the folder could not be written
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in left_behind(target):
        with suppress(OSError), _locked(left) as is_mine:
            if is_mine:
                shutil.rmtree(left)
    unfinished = unfinished_name(target)
    unfinished.mkdir()
    try:
        with _locked(unfinished):
            with explained(target):
                yield unfinished
            _rename(unfinished, target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _rename(unfinished: Path, target: Path) -> None:
    """Give a folder its final name; ConfigError if another process has made one of this name."""
    try:
        os.replace(unfinished, target)
    except OSError as error:
        if not target.exists():
            raise
        raise ConfigError(
            f"--output {target} was made by another process in the meantime; give another name"
        ) from error


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder until the end of the block; yield False if another process has locked it.

    The same is yielded where the file system has no locks.
    """
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    is_mine = False
    try:
        with suppress(OSError):
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_mine = True
        yield is_mine
    finally:
        os.close(number)
