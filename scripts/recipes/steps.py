"""Steps of a preparation: each makes a folder completely or not at all."""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fairseq_recur.cli.fairseq_commands import run
from fairseq_recur.errors import ConfigError
from fairseq_recur.locks import hold

KEY = ".key"


@dataclass(frozen=True)
class Made:
    """A finished step.

    Attributes:
        folder: its output
        key: checksum of everything that the output depends on
    """

    folder: Path
    key: str


def step(
    work: Path,
    name: str,
    inputs: Sequence[object],
    make: Callable[[Path], None],
    trainings: Iterable[Path] = (),
) -> Made:
    """Make a folder, unless it already exists and was made from the same inputs.

    A killed step leaves only a folder that ends in .partial, which the next start removes. If
    inputs change, this step and the steps that depend on it are repeated. What was made before is
    removed when its successor is complete.

    Args:
        work: folder of all steps
        name: name of this step's folder
        inputs: everything that the output depends on: earlier steps, and what JSON can represent
        make: called with an empty folder to fill
        trainings: folders of trainings that read the output

    Raises:
        ConfigError: the inputs have changed and one of the trainings exists, or no step has made
            what is in the folder
    """
    key, before = key_of(name, inputs), made_in(work / name)
    # With the process's number: children of a killed process may still write to its folder.
    folder, partial = work / name, work / f"{name}.{os.getpid()}.partial"
    if before == Made(folder, key):
        print(f"== {name}: already done", flush=True)
        return before
    trained = [str(path) for path in trainings if path.is_dir()]
    if trained and before is not None:
        raise ConfigError(
            f"{folder} was made from other files, which {' and '.join(trained)} was trained on; "
            "set WORK to another folder, or remove the trainings"
        )
    if folder.exists() and before is None:
        raise ConfigError(
            f"{folder} was not made by this preparation, which would replace it; set WORK to "
            "another folder, or move this one away"
        )
    print(f"== {name}", flush=True)
    for old in work.glob(f"{name}.*.partial"):
        shutil.rmtree(old, ignore_errors=True)
    partial.mkdir(parents=True)
    make(partial)
    (partial / KEY).write_text(key)
    os.sync()  # the content must be on the disk before the name says that it is complete
    replaced = work / f"{name}.{os.getpid()}.replaced.partial"
    if before is not None:
        folder.rename(replaced)
    partial.rename(folder)
    shutil.rmtree(replaced, ignore_errors=True)
    return Made(folder, key)


def key_of(name: str, inputs: Sequence[object]) -> str:
    """Return the key of a step with these inputs, see `step`."""
    content = [name, *(i.key if isinstance(i, Made) else i for i in inputs)]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def made_in(folder: Path) -> Made | None:
    """Return what a step has made in a folder, or None."""
    key = folder / KEY
    return Made(folder, key.read_text()) if key.is_file() else None


@contextmanager
def exclusive(work: Path) -> Iterator[None]:
    """Lock a folder: two preparations would make the same steps, and remove each other's.

    Child processes do not inherit the lock, so the children of a killed preparation do not
    block the next one.

    Args:
        work: the folder; it is created if needed

    Raises:
        ConfigError: another process has the lock
    """
    lock = hold(work / ".lock", inherited=False)
    if lock is None:
        raise ConfigError(
            f"another preparation works in {work}; wait until it ends, or choose another folder"
        )
    with lock:
        yield


def need_space(folder: Path, size: int, what: str) -> None:
    """Check the free space of a disk.

    Args:
        folder: a folder on that disk, which need not exist yet
        size: bytes that are still to be written
        what: what is written, for the message

    Raises:
        ConfigError: there is not enough space
    """
    there = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(there).free
    if free < size:
        raise ConfigError(
            f"{what} needs {size / 1e9:.1f} GB and the disk of {folder} has {free / 1e9:.1f} GB"
            " left; free some space, or choose another folder"
        )


def binarize(
    folder: Path,
    sides: Sequence[str],
    prefixes: Sequence[str],
    workers: int,
    dictionary: Sequence[str],
) -> None:
    """Run fairseq-recur preprocess in this process, so that a kill ends both.

    Args:
        folder: output
        sides: source and target, the suffixes of the texts; empty for one text without a suffix
        prefixes: flags with the prefixes of the texts
        workers: number of processes
        dictionary: flags of the dictionaries
    """
    languages = ["-s", sides[0], "-t", sides[1]] if sides else ["--only-source"]
    words = [*languages, "--destdir", str(folder), "--workers", str(workers)]
    run("preprocess", [*words, *prefixes, *dictionary])
    # preprocess leaves its log open; with times and paths in it, no two logs are equal.
    logger = logging.getLogger("fairseq_cli.preprocess")
    for handler in list(logger.handlers):
        if isinstance(handler, logging.FileHandler):
            logger.removeHandler(handler)
            handler.close()
    (folder / "preprocess.log").unlink()
