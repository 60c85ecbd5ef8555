"""What a training reads besides its settings, described so that a later change shows."""

from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path

from fairseq_recur.experiments.settings import Experiment

BLOCK = 2**20


def describe_files(experiment: Experiment, start: str | None = None) -> dict[str, str]:
    """Return file -> size and digest, of the data and of the initial checkpoint *start*.

    Other words, or other labels, may have the same size. Files that are missing are left out.
    """
    data, pair = Path(experiment.data), (experiment.source, experiment.target)
    found = {}
    for file in (data / f"dict.{language}.txt" for language in pair):
        if file.is_file():
            found[file.name] = f"sha256 {digest(file)}"
    for file in binary_files(data, *pair):
        found[file.name] = f"{size(file)}, sha256 {digest(file)}"
    if start is not None and Path(start).is_file():
        found[start] = f"{size(Path(start))}, sha256 {digest(Path(start))}"
    return found


def is_same(before: str, now: str) -> bool:
    """Return whether descriptions may be of the same file; earlier versions stored only sizes."""
    return now.startswith(before)


def binary_files(data: Path, source: str, target: str) -> Iterator[Path]:
    """Yield the files of fairseq's binary data, which may be of the opposite direction."""
    pairs = (f".{source}-{target}.", f".{target}-{source}.")
    for file in sorted(data.iterdir()) if data.is_dir() else ():
        if file.suffix in (".bin", ".idx") and any(pair in file.name for pair in pairs):
            yield file


def size(file: Path) -> str:
    """Return the size of a file."""
    return f"{file.stat().st_size} bytes"


def digest(file: Path) -> str:
    """Return the beginning of a file's checksum; data of all systems are read once."""
    known = file.stat()
    return _digest(file, known.st_size, known.st_mtime_ns)


@cache
def _digest(file: Path, *_: int) -> str:
    checksum = sha256()
    with open(file, "rb") as content:
        while block := content.read(BLOCK):
            checksum.update(block)
    return checksum.hexdigest()[:16]
