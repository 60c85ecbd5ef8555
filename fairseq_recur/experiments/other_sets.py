"""Decoding the trained systems of an experiment on other test sets."""

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import torch
from fairseq.data import Dictionary, indexed_dataset

from fairseq_recur.experiments.runs import SystemRun
from fairseq_recur.experiments.settings import Experiment
from fairseq_recur.files import whole_file, write_text
from fairseq_recur.scoring.generation import read_lines


@dataclass(frozen=True)
class Decoding(SystemRun):
    """A trained system that translates another test set.

    Attributes:
        trained_as: the run of the experiment that trained the system
    """

    trained_as: SystemRun

    @property
    def training(self) -> SystemRun:
        """The run that trained the model."""
        return self.trained_as

    @property
    def model(self) -> Path:
        """The checkpoint that is decoded."""
        return self.trained_as.model

    @property
    def starts_from(self) -> None:
        """Nothing is trained, so nothing has to be trained before."""
        return

    @property
    def steps(self) -> list[str]:
        """Names of the steps."""
        return ["generate"]

    def key(self, step: str) -> list[str]:
        """Return what the step depends on: the command, the text, the model's last change."""
        text = Path(self.experiment.data).parent / f"test.{self.experiment.source}"
        model = self.model.stat().st_mtime_ns
        return [*self.relative(self.argv(step)), sha256(text.read_bytes()).hexdigest(), str(model)]


def make_data(
    experiment: Experiment,
    prefix: str,
    folder: Path,
    encode: Callable[[str], str],
    decode: Callable[[str], str],
) -> Experiment:
    """Convert PREFIX.SOURCE to binary data; return the experiment on this test set.

    It has no published values: those are of the experiment's own test set.

    Args:
        prefix: path of both files, without their languages
        encode: makes the pieces of a line of source text
        decode: makes the text that is scored, of a line
    """
    source, target, data = experiment.source, experiment.target, folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    for name, suffix, change in (
        ("test", source, encode), ("source", source, decode), ("test", target, decode)
    ):  # fmt: skip
        lines = [change(line) + "\n" for line in read_lines(f"{prefix}.{suffix}")]
        write_text(folder / f"{name}.{suffix}", "".join(lines))
    for language in (source, target):
        name = f"dict.{language}.txt"
        with whole_file(data / name) as file:
            file.write((Path(experiment.data) / name).read_bytes())
    words = Dictionary.load(str(data / f"dict.{source}.txt"))
    lines = read_lines(folder / f"test.{source}")
    write_binary(lines, words, data / f"test.{source}-{target}.{source}")
    score = replace(
        experiment.score,
        reference=[str(folder / f"test.{target}")],
        source=str(folder / f"source.{source}") if experiment.score.source else None,
        outputs={},
    )
    generate = {n: v for n, v in experiment.generate.items() if n.replace("_", "-") != "gen-subset"}
    systems = deepcopy(experiment.systems)
    for system in systems.values():
        system.published = {}
    return replace(
        experiment, data=str(data), score=score, generate=generate, speed=None, systems=systems,
        title=f"{experiment.title}: {folder.name}",
    )  # fmt: skip


def write_binary(lines: Iterable[str], words: Dictionary, file: Path) -> None:
    """Write lines as fairseq's binary data, FILE.bin and FILE.idx; `preprocess` keeps a log open.

    Args:
        lines: pieces, separated by blanks
        words: the dictionary; a piece that it lacks is the unknown word
        file: path without a suffix
    """
    builder = indexed_dataset.make_builder(f"{file}.bin", "mmap", len(words))
    for line in lines:
        # As `words.encode_line`, which takes several times as long.
        builder.add_item(torch.tensor([*map(words.index, line.split()), words.eos()]))
    builder.finalize(f"{file}.idx")
