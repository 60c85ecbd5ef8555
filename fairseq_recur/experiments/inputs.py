"""What a training reads besides its settings, described so that a later change shows."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from fairseq_recur.experiments.settings import Experiment


def describe_files(experiment: Experiment, start: str | None = None) -> dict[str, str]:
    """Return file -> size or digest: of the data and of the initial checkpoint *start*.

    A dictionary has a digest, because another order of its words has the same size. The other
    files may be large, so their size has to do. Files that are missing are left out.
    """
    data, pair = Path(experiment.data), (experiment.source, experiment.target)
    found = {}
    for file in (data / f"dict.{language}.txt" for language in pair):
        if file.is_file():
            found[file.name] = f"sha256 {sha256(file.read_bytes()).hexdigest()[:16]}"
    for file in binary_files(data, *pair):
        found[file.name] = size(file)
    if start is not None and Path(start).is_file():
        found[start] = size(Path(start))
    return found


def binary_files(data: Path, source: str, target: str) -> Iterator[Path]:
    """Yield the files of fairseq's binary data, which may be of the opposite direction."""
    pairs = (f".{source}-{target}.", f".{target}-{source}.")
    for file in sorted(data.iterdir()) if data.is_dir() else ():
        if file.suffix in (".bin", ".idx") and any(pair in file.name for pair in pairs):
            yield file


def size(file: Path) -> str:
    """Return the size of a file."""
    return f"{file.stat().st_size} bytes"
