"""Steps of a preparation: each makes a folder, as a whole or not at all."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_recur.errors import ConfigError

KEY = ".key"


@dataclass(frozen=True)
class Made:
    """A finished step: its folder, and what it was made from."""

    folder: Path
    key: str


def step(work: Path, name: str, inputs: Sequence[object], make: Callable[[Path], None]) -> Made:
    """Make a folder, unless it is there and was made from the same inputs.

    A step that was killed leaves nothing but a folder that ends in .partial, which the next
    start removes. When inputs change, this step and those that were made from it are made anew.

    Args:
        work: where the steps' folders are
        name: the folder's name
        inputs: all that the content depends on: steps before this one, and what JSON can hold
        make: called with an empty folder to fill
    """
    content = [name, *(i.key if isinstance(i, Made) else i for i in inputs)]
    key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    # With the process's number: what a killed one started may still write into its own folder.
    folder, partial = work / name, work / f"{name}.{os.getpid()}.partial"
    if (folder / KEY).is_file() and (folder / KEY).read_text() == key:
        print(f"== {name}: there already", flush=True)
        return Made(folder, key)
    print(f"== {name}", flush=True)
    for old in (folder, *work.glob(f"{name}.*.partial")):
        shutil.rmtree(old, ignore_errors=True)
    partial.mkdir(parents=True)
    make(partial)
    (partial / KEY).write_text(key)
    os.sync()  # the content is on the disk before the name says that it is there
    partial.rename(folder)
    return Made(folder, key)


def need_space(folder: Path, size: int, what: str) -> None:
    """Look whether a disk has room.

    Args:
        folder: on that disk; it need not exist yet
        size: in bytes, of what is still to be written
        what: that is written there, for the message

    Raises:
        ConfigError: it has not
    """
    there = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(there).free
    if free < size:
        raise ConfigError(
            f"{what} needs {size / 1e9:.1f} GB and the disk of {folder} has {free / 1e9:.1f} GB"
            " left; make room, or choose another folder"
        )
