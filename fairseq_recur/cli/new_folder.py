"""A folder that a command writes: it does not exist before, and appears when it is complete."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairseq_recur.compat.checkpoint_writing import explained
from fairseq_recur.errors import ConfigError


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
