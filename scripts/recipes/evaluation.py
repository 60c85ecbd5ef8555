"""Evaluation of a recipe's training: average, generate, score, compare."""

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_recur import cli
from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.runner import Runner
from fairseq_recur.experiments.settings import Flags
from fairseq_recur.experiments.steps import STATE, Run, read_steps
from fairseq_recur.files import write_text
from recipes.steps import KEY

GENERATED, TEXT, SCORES, COMPARED = "generate.out", "test.txt", "scores.json", "compared.json"
SCORED = "references.sha256"
"""File with the checksum of the references with which a training was scored."""

OF_MACHINE = {"--cpu": 1, "--fp16": 1, "--bf16": 1, "--num-workers": 2, "--max-tokens": 2}
"""Flags of a search that do not change what it finds, and how many words each has."""

SETTINGS = "settings"
"""File in which `train.sh` keeps the settings of a training."""


@dataclass(frozen=True)
class Evaluation(Run):
    """The steps after a training that `scripts/launch` has done.

    Attributes:
        trained_in: folder of the training
        average: flags of ``average``; without any, `checkpoint` is one of the training's
        checkpoint: file name of the model that is decoded
        generate: the data, and flags of ``generate``
    """

    trained_in: Path
    average: Sequence[str]
    checkpoint: str
    generate: Sequence[str]

    @property
    def name(self) -> str:
        """Name of the run in messages."""
        return "/".join(self.trained_in.parts[-2:])

    @property
    def folder(self) -> Path:
        """Folder of the run's files."""
        return self.trained_in

    @property
    def steps(self) -> Sequence[str]:
        """Names of the steps, in order."""
        return ["average", "generate"] if self.average else ["generate"]

    def argv(self, step: str) -> list[str]:
        """Return the arguments of a step's command."""
        model = str(self.folder / self.checkpoint)
        if step == "average":
            return ["average", "--inputs", str(self.folder), *self.average, "--output", model]
        return ["generate", *self.generate, "--path", model]

    def key(self, step: str) -> list[str]:
        """Return the command, the key of the data that it decodes, and the checkpoints with times.

        The folder of the data keeps its name when it is prepared anew, and training may go on.
        """
        files = sorted(self.folder.glob("checkpoint*.pt"))
        data = [Path(word, KEY) for word in self.generate[:1] if step == "generate"]
        return [
            *self.argv(step),
            *(f"data {file.read_text()}" for file in data if file.is_file()),
            *(f"{file.name} {file.stat().st_mtime_ns}" for file in files),
        ]

    def done(self, step: str) -> bool:
        """Return whether a step was done with its present settings, and has its output."""
        made = self.folder / (self.checkpoint if step == "average" else GENERATED)
        return super().done(step) and made.is_file()

    def train_flags(self) -> Flags:
        """Return no flags: nothing is trained here."""
        return {}


def decode(evaluation: Evaluation, baseline: Path | None = None) -> Path:
    """Do what is left of the steps; return the output of ``generate``.

    Args:
        evaluation: the steps
        baseline: folder of the training to compare with afterwards, or None

    Raises:
        ConfigError: another set is to be decoded, nothing is trained, or with other data, the
            baseline is not evaluated, or a step failed
    """
    if sum(word.split("=")[0] == "--gen-subset" for word in evaluation.generate) > 1:
        raise ConfigError(
            "--gen-subset is given, but the references are those of the test set; leave it out"
        )
    if baseline is not None and not (baseline / TEXT).is_file():
        raise ConfigError(f"BASELINE={baseline}: no {TEXT} there; evaluate that training first")
    folder = evaluation.folder
    if not folder.is_dir():
        raise ConfigError(f"{folder} does not exist: the model is not trained; run train.sh first")
    for trained in filter(None, (folder, baseline)):
        check_data(trained, Path(evaluation.generate[0]))
    if Runner([evaluation], jobs=1)():
        raise ConfigError(f"{evaluation.name} is not evaluated; correct the errors reported above")
    if baseline is not None and (note := other_search(evaluation, baseline)):
        print(note, file=sys.stderr)
    return folder / GENERATED


def other_search(evaluation: Evaluation, baseline: Path) -> str:
    """Return a warning if a baseline was decoded with other flags, or ""."""
    key = read_steps(baseline / STATE).get("generate", {}).get("key")
    here = search_flags(evaluation.argv("generate"))
    if key is None or (there := search_flags(key)) == here:
        return ""
    return (
        f"warning: BASELINE={baseline} was decoded with other flags, so the difference is not that "
        f"of the models alone: {' '.join(there)}; here {' '.join(here)}"
    )


def search_flags(words: Sequence[str]) -> list[str]:
    """Return the flags in a command of ``generate`` that decide what is found."""
    rest, found = list(words[2 : words.index("--path")]), []
    while rest:
        name, given, _ = rest[0].partition("=")
        found += [] if name in OF_MACHINE else rest[:1]
        del rest[: 1 if given else OF_MACHINE.get(name, 1)]
    return found


def check_data(folder: Path, data: Path) -> None:
    """Refuse a training whose data were replaced: its dictionary may have the same size.

    Args:
        folder: of the training; the first word of its settings is the key of its data
        data: as they are now

    Raises:
        ConfigError: they have another key
    """
    settings, key = folder / SETTINGS, data / KEY
    if not settings.is_file() or not key.is_file():
        return
    if settings.read_text().split(maxsplit=1)[:1] != [key.read_text()]:
        raise ConfigError(
            f"{folder} was trained with other data than are now in {data}; run prepare.sh with the "
            "variables of that training, or choose a training with RUN"
        )


def score(
    folder: Path, name: str, references: Path, metrics: Sequence[str], baseline: Path | None
) -> None:
    """Score test.txt of a folder, and compare it with that of a baseline.

    Args:
        folder: folder of the training
        name: name of the system in the tables
        references: file with one reference per line
        metrics: the options of ``score`` that name metrics
        baseline: folder of another training that is already evaluated, or None

    Raises:
        ConfigError: a file cannot be read, or the baseline was scored with other references
    """
    checksum = hashlib.sha256(references.read_bytes()).hexdigest()
    if baseline is not None and (baseline / SCORED).is_file():
        if (baseline / SCORED).read_text() != checksum:
            raise ConfigError(
                f"BASELINE={baseline} was evaluated with other references than {references}; "
                "evaluate that training again first"
            )
    words = ["--reference", str(references), "--system", f"{name}={folder / TEXT}", *metrics]
    commands = [["score", *words, "--json", str(folder / SCORES)]]
    if baseline is not None:
        other = f"baseline={baseline / TEXT}"
        words += ["--baseline", other, "--test", "both", "--json", str(folder / COMPARED)]
        commands.append(["compare", *words])
    for command in commands:
        if cli.main(command):
            raise ConfigError(
                f"{folder / TEXT} cannot be scored, see above; correct that, then run "
                "evaluate.sh again"
            )
    write_text(folder / SCORED, checksum)
