"""One run of an experiment, a system with a seed: its folder, its commands, what is done."""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.settings import Experiment, Flags, System, arguments
from fairseq_recur.files import whole_file

LAST = "checkpoint_last.pt"
# What may be changed in the settings of a training that has begun.
PROLONGS = {"max-update", "max-epoch", "stop-time-hours"}
REPORTS = {"log-interval", "log-format", "tensorboard-logdir", "wandb-project", "no-progress-bar"}


@dataclass(frozen=True)
class Run:
    """A system with a seed.

    Attributes:
        experiment: that it belongs to
        system: which row
        seed: of the training
        work: folder of the experiment; the run's own is SYSTEM/seedN in it
    """

    experiment: Experiment
    system: System
    seed: int
    work: Path

    @property
    def name(self) -> str:
        """How it is called in messages."""
        return f"{self.system.name} seed {self.seed}"

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self.work / self.system.name / f"seed{self.seed}"

    @property
    def model(self) -> Path:
        """The checkpoint that is decoded."""
        names = {"best": "checkpoint_best.pt", "last": LAST}
        return self.folder / names.get(self.experiment.checkpoint, "average.pt")

    @property
    def steps(self) -> list[str]:
        """What is to be done, in order."""
        averaged = isinstance(self.experiment.checkpoint, int)
        return ["train", *(["average"] if averaged else []), "generate"]

    def train_flags(self) -> Flags:
        """The flags of all systems, with the system's own instead of or beside them."""
        flags = normal(self.experiment.train)
        if isinstance(self.experiment.checkpoint, int):
            kept = "keep-interval-updates" if by_updates(flags) else "keep-last-epochs"
            flags.setdefault(kept, self.experiment.checkpoint)
        return {**flags, **normal(self.system.flags), "seed": self.seed}

    def train_argv(self) -> list[str]:
        """The arguments of ``fairseq-recur train``."""
        words = ["train", self.experiment.data, *self.languages(), *arguments(self.train_flags())]
        if self.system.start_from is not None:
            words += ["--finetune-from-model", str(self.of(self.system.start_from).model)]
        return [
            *words,
            "--save-dir",
            str(self.folder),
            "--log-file",
            str(self.folder / "train.log"),
        ]

    def average_argv(self) -> list[str]:
        """The arguments of ``fairseq-recur average``; with fewer checkpoints, of all."""
        updates = by_updates(self.train_flags())
        pattern = r"checkpoint_\d+_\d+\.pt" if updates else r"checkpoint\d+\.pt"
        there = [p for p in os.listdir(self.folder) if re.fullmatch(pattern, p)]
        count = min(len(there), int(self.experiment.checkpoint))
        words = ["average", "--inputs", str(self.folder), "--last", str(count)]
        return [*words, *(["--updates"] if updates else []), "--output", str(self.model)]

    def generate_argv(self) -> list[str]:
        """The arguments of ``fairseq-recur generate``."""
        flags = arguments(normal(self.experiment.generate))
        return [
            "generate", self.experiment.data, *self.languages(), "--path", str(self.model), *flags
        ]  # fmt: skip

    def argv(self, step: str) -> list[str]:
        """The arguments of a step's command."""
        return {
            "train": self.train_argv, "average": self.average_argv, "generate": self.generate_argv
        }[step]()  # fmt: skip

    def key(self, step: str) -> list[str]:
        """What a step depends on besides the earlier ones; if it changes, it is done again."""
        if step == "average":
            return [str(self.experiment.checkpoint)]
        return self.argv(step)

    def languages(self) -> list[str]:
        """The flags for them."""
        return ["-s", self.experiment.source, "-t", self.experiment.target]

    def of(self, name: str) -> "Run":
        """The run of another system with the same seed."""
        return Run(self.experiment, self.experiment.system(name), self.seed, self.work)

    def state(self) -> dict[str, Any]:
        """What is known of its steps: {"train": {"key": [...], "seconds": 12.3, ...}, ...}."""
        return read_json(self.folder / "state.json") or {}

    def write_state(self, state: dict[str, Any]) -> None:
        """Keep what is known; never half a file."""
        write_json(self.folder / "state.json", state)

    def done(self, step: str) -> bool:
        """Whether a step has been done, with the settings that it would have now."""
        found = self.state().get(step, {})
        return found.get("done", False) and found.get("key") == self.key(step)

    def finished(self) -> bool:
        """Whether there are translations."""
        return all(map(self.done, self.steps))

    def trained(self) -> bool:
        """Whether there is a model."""
        return all(map(self.done, self.steps[:-1]))

    def check_unchanged(self) -> list[str]:
        """How the settings differ from those with which its training began, one line each."""
        before = self.state().get("train", {}).get("key")
        if before is None:
            return []
        old, new = (pairs(words) for words in (before, self.key("train")))
        names = sorted(n for n in {*old, *new} if old.get(n) != new.get(n))
        return [
            f"{self.name}: --{name} was {old.get(name, 'not given')}, is {new.get(name, 'not given')}"
            for name in names
            if name not in PROLONGS | REPORTS
        ]


def normal(flags: Flags) -> Flags:
    """Flags with their names written as on a command line."""
    return {name.replace("_", "-"): value for name, value in flags.items()}


def by_updates(flags: Flags) -> bool:
    """Whether checkpoints are kept by updates, not by epochs."""
    return bool(flags.get("save-interval-updates"))


def pairs(words: list[str]) -> dict[str, str]:
    """A command line as {flag: value}; what stands alone is named by its place."""
    found: dict[str, str] = {}
    name = ""
    for number, word in enumerate(words):
        if word.startswith("-") and not re.fullmatch(r"-[\d.]+", word):
            name = word.lstrip("-")
            found[name] = "given"
        elif name:
            found[name] = word if found[name] == "given" else f"{found[name]} {word}"
        else:
            found[f"argument {number}"] = word
    return found


def runs_of(
    experiment: Experiment, work: Path, only: tuple[str, ...] = (), seeds: tuple[int, ...] = ()
) -> list[Run]:
    """The runs of an experiment, the first seed of all systems first.

    Args:
        experiment: the table
        work: its folder
        only: names of systems; empty for all
        seeds: empty for all

    Raises:
        ConfigError: a system that is not in the table
    """
    unknown = [name for name in only if name not in {s.name for s in experiment.systems}]
    if unknown:
        there = ", ".join(s.name for s in experiment.systems)
        raise ConfigError(f"no system {', '.join(unknown)} in the table; choose of {there}")
    systems = [s for s in experiment.systems if not only or s.name in only]
    return [Run(experiment, s, seed, work) for seed in seeds or experiment.seeds for s in systems]


def read_json(path: Path) -> Any:
    """What `write_json` has written; None if there is no file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def write_json(path: Path, content: Any) -> None:
    """Write a file as a whole or not at all."""
    with whole_file(path) as file:
        file.write((json.dumps(content, indent=2) + "\n").encode())
