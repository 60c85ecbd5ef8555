"""A folder that a command writes: it does not exist before, and appears when it is complete."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
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

    What a kill leaves, the next call removes. Of several processes that write the same folder, the
    first to finish gives it its name.

    Raises:
        ConfigError: another process has made a folder of the final name
        CheckpointError: the folder could not be written
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_left(target)
    with _new_unfinished(target) as unfinished:
        try:
            with explained(target):
                yield unfinished
            _rename(unfinished, target)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _remove_left(target: Path) -> None:
    """Remove what a kill has left: an unfinished folder that no process has locked."""
    for left in left_behind(target):
        with suppress(OSError), _opened(left) as number:  # also where there are no locks
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left)


@contextmanager
def _new_unfinished(target: Path) -> Iterator[Path]:
    """Make a folder with a temporary name, and lock it until the end of the block."""
    with ExitStack() as stack:
        while True:
            unfinished = unfinished_name(target)
            unfinished.mkdir()
            # Without a lock yet, another process may take it for a leftover and remove it.
            with suppress(FileNotFoundError):
                number = stack.enter_context(_opened(unfinished))
                with suppress(OSError):  # the file system has no locks
                    fcntl.flock(number, fcntl.LOCK_EX)
                if unfinished.exists():
                    break
        yield unfinished


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
def _opened(folder: Path) -> Iterator[int]:
    """Open a folder until the end of the block; yield the number by which it can be locked."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield number
    finally:
        os.close(number)
