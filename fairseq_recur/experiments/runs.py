"""The runs of an experiment: each row of its table with each seed."""

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.inputs import describe_files, is_same
from fairseq_recur.experiments.settings import Experiment, Flags, System, arguments, normal
from fairseq_recur.experiments.steps import Run, same_command
from fairseq_recur.experiments.training_log import log_in
from fairseq_recur.scoring.generation import read_hypotheses, read_lines

LAST = "checkpoint_last.pt"
# Settings that may change after a training has begun.
PROLONGS = {"max-update", "max-epoch", "stop-time-hours"}
REPORTS = {"log-interval", "log-format", "tensorboard-logdir", "wandb-project", "no-progress-bar"}
KEEPS = ("keep-last-epochs", "keep-interval-updates")
"""Flags that follow from `checkpoint`, unless they are given."""
AVERAGED = re.compile(r"^  (.+), update (\d+)$", re.MULTILINE)
"""A line that `average` prints for each of its checkpoints."""


@dataclass(frozen=True)
class SystemRun(Run):
    """A row of a table with one seed: trains, averages checkpoints, translates the test set.

    Attributes:
        work: folder of the experiment; the run's own folder is SYSTEM/seedN below it
    """

    experiment: Experiment
    system: System
    seed: int
    work: Path

    @property
    def name(self) -> str:
        """Name of the run in messages."""
        return f"{self.system.name} seed {self.seed}"

    @property
    def folder(self) -> Path:
        """Folder of the run's files."""
        return self.work / self.own

    @property
    def own(self) -> str:
        """Where the run's folder is in that of the experiment."""
        return f"{self.system.name}/seed{self.seed}"

    @property
    def training(self) -> "SystemRun":
        """The run that trained the model: this one."""
        return self

    @property
    def model(self) -> Path:
        """The checkpoint that is decoded."""
        names = {"best": "checkpoint_best.pt", "last": LAST}
        return self.folder / names.get(self.experiment.checkpoint, "average.pt")

    @property
    def steps(self) -> Sequence[str]:
        """Names of the steps, in order."""
        averaged = isinstance(self.experiment.checkpoint, int)
        return ["train", *(["average"] if averaged else []), "generate"]

    @property
    def starts_from(self) -> Optional["SystemRun"]:
        """The run of the system that initialises this one, with the same seed."""
        name = self.system.start_from
        if name is None:
            return None
        return replace(self, system=self.experiment.systems[name])

    @property
    def start(self) -> str | None:
        """The checkpoint that initialises this run."""
        if (first := self.starts_from) is not None:
            return str(first.model)
        return self.system.start or self.experiment.start

    def given_flags(self) -> Flags:
        """Return the flags of all systems, overridden by the system's own."""
        return {**normal(self.experiment.train), **normal(self.system.flags)}

    def train_flags(self) -> Flags:
        """Return the flags that are given, and those that the experiment adds."""
        flags = self.given_flags()
        if isinstance(self.experiment.checkpoint, int):
            kept = "keep-interval-updates" if by_updates(flags) else "keep-last-epochs"
            flags.setdefault(kept, self.experiment.checkpoint)
        return {**flags, "seed": self.seed}

    def train_argv(self) -> list[str]:
        """Return the arguments of ``fairseq-recur train``."""
        words = ["train", self.experiment.data, *self.common(), *arguments(self.train_flags())]
        if self.start is not None:
            words += ["--finetune-from-model", self.start]
        log = str(self.folder / "train.log")
        return [*words, "--save-dir", str(self.folder), "--log-file", log]

    def average_argv(self) -> list[str]:
        """Return the arguments of ``fairseq-recur average``; few checkpoints are all averaged.

        A training that ends before the first numbered one is saved has only the last one.
        """
        count = int(self.experiment.checkpoint)
        if self.folder.is_dir():  # in a dry run nothing is trained yet
            saved = self.saved()
            if not saved:
                return ["average", "--inputs", str(self.folder / LAST), "--output", str(self.model)]
            count = min(len(saved), count)
        words = ["average", "--inputs", str(self.folder), "--last", str(count)]
        updates = ["--updates"] if by_updates(self.train_flags()) else []
        return [*words, *updates, "--output", str(self.model)]

    def saved(self) -> list[str]:
        """Return the names of the numbered checkpoints in the run's folder."""
        updates = by_updates(self.train_flags())
        pattern = r"checkpoint_\d+_\d+\.pt" if updates else r"checkpoint\d+\.pt"
        names = os.listdir(self.folder) if self.folder.is_dir() else []
        return [name for name in names if re.fullmatch(pattern, name)]

    def generate_argv(self) -> list[str]:
        """Return the arguments of ``fairseq-recur generate``."""
        flags = arguments(normal(self.experiment.generate))
        return [
            "generate", self.experiment.data, *self.common(), "--path", str(self.model), *flags
        ]  # fmt: skip

    def argv(self, step: str) -> list[str]:
        """Return the arguments of a step's command."""
        return {
            "train": self.train_argv, "average": self.average_argv, "generate": self.generate_argv
        }[step]()  # fmt: skip

    def key(self, step: str) -> list[str]:
        """Return what a step depends on besides earlier steps."""
        return [str(self.experiment.checkpoint)] if step == "average" else super().key(step)

    def comparable(self, words: Sequence[str]) -> list[str]:
        """Return a command without the flags that follow from `checkpoint`, which may change."""
        found = self.relative(words)
        for flag in (f"--{name}" for name in KEEPS if name not in self.given_flags()):
            if flag in found:
                place = found.index(flag)
                del found[place : place + 2]
        return found

    def reads(self) -> dict[str, str]:
        """Describe the files, and how long the model was trained that the training starts from."""
        first = self.starts_from
        if first is None:
            return describe_files(self.experiment, self.start)
        flags = first.train_flags()
        limits = [f"{name} {flags[name]}" for name in sorted(PROLONGS) if flags.get(name)]
        trained = ", ".join([*limits, f"checkpoint {self.experiment.checkpoint}"])
        return {**describe_files(self.experiment), "start_from": f"{first.name} ({trained})"}

    @property
    def output(self) -> Path:
        """The translations of the test set."""
        return self.folder / "test.txt"

    def done(self, step: str) -> bool:
        """Return whether a step was done with its present settings, and has its output."""
        return super().done(step) and (step != "generate" or self.output.is_file())

    def complete(self, step: str) -> None:
        """Give the translations their name, if there is one for each line of the reference."""
        if step == "generate":
            found = self.folder / "generate.out"
            read_hypotheses(found, len(read_lines(self.experiment.score.reference[0])))
            found.replace(self.output)

    def made(self, step: str) -> dict[str, Any]:
        """Return the checkpoints of an average, and how many updates the newest of them had."""
        if step != "average":
            return {}
        found = AVERAGED.findall((self.folder / "average.out").read_text(encoding="utf-8"))
        return {
            "averaged": {
                "checkpoints": [Path(name).name for name, _ in found],
                "updates": max(int(updates) for _, updates in found),
            }
        }

    def common(self) -> list[str]:
        """Return the flags of all commands: the languages, and another plug-in."""
        folder = self.experiment.user_dir
        plugin = [] if folder is None else ["--user-dir", folder]
        return ["-s", self.experiment.source, "-t", self.experiment.target, *plugin]

    def check_unchanged(self) -> list[str]:
        """Return how settings and files differ from those of its training, a line each."""
        state = self.state().get("train", {})
        if "key" not in state:
            return []
        old, new = (pairs(self.comparable(words)) for words in (state["key"], self.key("train")))
        no = "not given"
        found = [
            f"{self.name}: --{name} was {old.get(name, no)}, is {new.get(name, no)}"
            for name in sorted({*old, *new} - PROLONGS - REPORTS)
            if not same_command([old.get(name, no)], [new.get(name, no)], self.root)
        ]
        before = state.get("read", {})
        for name, now in self.reads().items():
            if not is_same(before.get(name, now), now):
                own = name in ("start_from", self.system.start)  # the other files are of all runs
                of = f"{self.name}: " if own else ""
                found.append(f"{of}{name} was {before[name]}, is {now}")
        kept = self.check_kept(pairs(state["key"]))
        return [*found, *self.check_limits(old, new), *kept]

    def check_limits(self, old: dict[str, str], new: dict[str, str]) -> Iterator[str]:
        """Yield the limits that are now below what is done, because nothing takes that back."""
        names = ("max-update", "max-epoch")
        changed = [name for name in names if old.get(name) != new.get(name)]
        timeline = log_in(self.folder).timeline if changed else []
        for name, done in zip(names, timeline[-1] if timeline else ()):
            if name in changed and done is not None and limit(new.get(name)) < done:
                unit = name.replace("max-", "") + "s"
                yield f"{self.name}: --{name} {new[name]} is below the {round(done, 2)} {unit} done"

    def check_kept(self, old: dict[str, str]) -> Iterator[str]:
        """Yield that checkpoints which are to be averaged or decoded now do not exist any more.

        Args:
            old: the flags with which the training has begun
        """
        wanted, saved, given = self.experiment.checkpoint, self.saved(), self.given_flags()
        averaged = isinstance(wanted, int)
        for kept in (limit(old[name]) for name in KEEPS if name in old and name not in given):
            if averaged and 0 < kept < wanted and len(saved) >= kept:
                yield (
                    f"{self.name}: checkpoint is {wanted}, but the training kept fewer, the last "
                    f"{kept:g}; expected at most {kept:g}"
                )
        file = self.folder / LAST if averaged else self.model
        again = self.state().get("generate", {}).get("done") and not self.done(self.steps[1])
        if again and self.done("train") and not (file.is_file() or (averaged and saved)):
            yield (
                f"{self.name}: checkpoint is {wanted}, but its file was removed after the "
                "training; restore it, or keep the former setting"
            )


def limit(value: Any) -> float:
    """Return the value of a flag as a number; 0 is no limit, and neither is what is no number."""
    try:
        return float(value or 0) or math.inf
    except (TypeError, ValueError):  # fairseq refuses it
        return math.inf


def by_updates(flags: Flags) -> bool:
    """Return whether checkpoints are kept by updates, not by epochs."""
    return limit(flags.get("save-interval-updates")) < math.inf  # 0 is none


def pairs(words: list[str]) -> dict[str, str]:
    """Convert a command line to {flag: value}; positional words are named by their index."""
    found: dict[str, str] = {}
    name = ""
    for number, word in enumerate(words):
        if word.startswith("-") and not re.fullmatch(r"-[\d.]+", word):
            name, equals, value = word.lstrip("-").partition("=")
            found[name] = value if equals else "given"
        elif name:
            found[name] = word if found[name] == "given" else f"{found[name]} {word}"
        else:
            found[f"argument {number}"] = word
    return found


def runs_of(
    experiment: Experiment, work: Path, systems: Sequence[str] = (), seeds: Sequence[int] = ()
) -> list[SystemRun]:
    """Return the runs of an experiment, the first seed of all systems first.

    Args:
        systems: names of rows, which bring the rows that they start from; empty for all
        seeds: empty for those of the experiment

    Raises:
        ConfigError: a system is not in the table, or a seed is below 0
    """
    if any(seed < 0 for seed in seeds):
        raise ConfigError(f"seeds {', '.join(map(str, seeds))}: expected whole numbers, at least 0")
    unknown = [name for name in systems if name not in experiment.systems]
    if unknown:
        known = ", ".join(experiment.systems)
        raise ConfigError(f"no system {', '.join(unknown)} in the table; choose from {known}")
    chosen = list(systems or experiment.systems)
    for name in chosen:  # which grows
        first = experiment.systems[name].start_from
        if first is not None and first not in chosen:
            chosen.append(first)
    return [
        SystemRun(experiment, system, seed, work)
        for seed in dict.fromkeys(seeds or experiment.seeds)
        for system in experiment.systems.values()
        if system.name in chosen
    ]
