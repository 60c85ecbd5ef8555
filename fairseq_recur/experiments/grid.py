"""A table whose trainings a program makes: a run for each row, system and seed."""

import json
import os
import re
import shlex
import sys
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from fairseq_recur.errors import ConfigError, refuse
from fairseq_recur.experiments.machine import commit, trained_with
from fairseq_recur.experiments.progress import say
from fairseq_recur.experiments.runner import Runner, Stopped, stoppable
from fairseq_recur.experiments.schema import fill
from fairseq_recur.experiments.steps import LOCK, Run

SET_BY_PROGRAM: dict[str, tuple[str, ...]] = {
    "--seed": ("seeds",),
    "--arch": ("systems",),
    "-a": ("systems",),
    "--lr": ("rate", "lr"),
    "--max-epoch": ("epochs", "updates"),
    "--max-update": ("epochs", "updates"),
    "--save-dir": (),
    "--log-file": (),
    "--restore-file": (),
    "--finetune-from-model": (),
}
"""Flags of a training that a program sets, and the settings that choose their values."""

NEEDED_BY_TABLES = (
    "--no-save", "--disable-validation", "--validate-interval", "--valid-subset", "--log-format"
)  # fmt: skip
"""Flags that would keep from a table what it reads: checkpoints, and the log of validations."""

T = TypeVar("T")
R = TypeVar("R", bound=Run)


class Words(list[str]):
    """The words of a variable; messages show them as the user gave them."""

    def __str__(self) -> str:
        return " ".join(self)


def read_variables(
    kind: type[T], lists: Sequence[str], refused: Mapping[str, str] = MappingProxyType({})
) -> T:
    """Read settings from environment variables, which have their names in capitals.

    Args:
        kind: a dataclass of `schema.setting` fields; a field ``options`` has flags of a training
        lists: the fields whose values blanks separate
        refused: flags that ``options`` must not have, besides `SET_BY_PROGRAM` and
            `NEEDED_BY_TABLES`, and why

    Raises:
        ConfigError: lists all variables that are wrong
    """
    known = kind.__dataclass_fields__  # type: ignore[attr-defined]
    given: dict[str, Any] = {n: os.environ[n.upper()] for n in known if n.upper() in os.environ}
    given.update({name: Words(given[name].split()) for name in lists if name in given})
    for name in lists:  # nothing is a list where nothing is the default
        if given.get(name) == [] and known[name].default_factory() == []:
            del given[name]
    problems: list[str] = []
    settings = fill(kind, given, problems, environment=True)
    try:
        words = shlex.split(given.get("options", ""))
        problems += unwanted(words, {**set_by_program(known), **refused})
    except ValueError as error:
        problems.append(
            f"OPTIONS={given['options']}: {error}; expected flags of fairseq-train, correct the "
            "quotes"
        )
    refuse("variables that cannot be used", problems)
    assert settings is not None, "what cannot be read is a problem"
    for name in lists:  # what is named twice is trained once, and counts once
        setattr(settings, name, list(dict.fromkeys(getattr(settings, name))))
    return settings


def set_by_program(known: Collection[str]) -> dict[str, str]:
    """Return why OPTIONS must not have flags of the program, given the names of the settings."""
    remedies = {
        flag: next((f"choose it with {n.upper()}" for n in names if n in known), "leave it out")
        for flag, names in SET_BY_PROGRAM.items()
    }
    own = {flag: f"each training has its own; {remedy}" for flag, remedy in remedies.items()}
    return {
        **dict.fromkeys(NEEDED_BY_TABLES, "the table is read from what it changes; leave it out"),
        **own,
    }


def unwanted(words: Sequence[str], refused: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with the flags of OPTIONS.

    Args:
        words: of OPTIONS
        refused: flags, and why there must be none
    """
    for flag in dict.fromkeys(word.partition("=")[0] for word in words):
        if flag in refused:
            yield f"OPTIONS has {flag}: {refused[flag]}"


def as_variables(settings: Any, without: Sequence[str]) -> dict[str, str]:
    """Return variables that determine results: all but those *without* an effect on them."""
    return {
        name.upper(): " ".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in asdict(settings).items()
        if name not in without
    }


def without_effect(reasons: Mapping[str, str]) -> list[str]:
    """Return a message for each environment variable that is set although nothing reads it.

    Args:
        reasons: variable -> on what, or without what, it has no effect
    """
    return [
        f"{name}={os.environ[name]}: has no effect {why}; unset it"
        for name, why in reasons.items()
        if name in os.environ
    ]


def provenance(
    values: dict[str, str], words: Sequence[str], runs: Sequence[Run] = ()
) -> dict[str, Any]:
    """Return what made the results of an example: command, settings, commit, machine, versions.

    Args:
        values: the settings, see `as_variables`; the command has those that were given
        words: of the command
        runs: of the results, for `trained_with`
    """
    given = [f"{name}={shlex.quote(value)}" for name, value in values.items() if name in os.environ]
    return {
        "command": " ".join([*given, shlex.join(words)]),
        "settings": values,
        "commit": commit(),
        **trained_with(runs),
    }


def as_json(content: Any) -> str:
    """Return JSON in which a list of numbers, such as a curve or its point, is on one line."""

    def on_one_line(found: re.Match[str]) -> str:
        return f"[{' '.join(found[1].split())}]" if found[1] else found[0]

    string = r'"(?:[^"\\]|\\.)*"'  # which stays as it is
    pattern = string + r"|\[([-+\d.eE,\s]+)\]"
    return re.sub(pattern, on_one_line, json.dumps(content, indent=1)) + "\n"


@dataclass(frozen=True)
class CellRun(Run):
    """One run: a row of the table, a system and a seed.

    Attributes:
        work: folder of all trainings
        row: such as a language or a set of data
        flags: flags of ``fairseq-recur train``; other flags mean another training
    """

    work: Path
    row: str
    system: str
    seed: int
    flags: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the run in messages."""
        return f"{self.row} {self.system} seed {self.seed}"

    @property
    def folder(self) -> Path:
        """Folder of the checkpoints and the log."""
        return self.work / self.own

    @property
    def own(self) -> str:
        """Where the run's folder is in that of all trainings."""
        return f"{self.row}/{self.system}/seed{self.seed}"

    def prepare(self) -> None:
        """Put a training with other flags aside; it may have taken days."""
        before = self.state().get("train", {}).get("key")
        if before is not None and not self.same(before, self.key("train")):
            say(
                f"{self.name}: the settings have changed, so the training starts again; the "
                f"earlier one is kept in {self.put_aside()}"
            )

    def put_aside(self) -> Path:
        """Move the files of the folder to a new one beside it; the locked file stays.

        The state is the last one: after a kill, the next start finds it and moves the rest.
        """
        names = (self.folder.with_name(f"{self.folder.name}_before{n}") for n in count(1))
        aside = next(path for path in names if not (path / "state.json").exists())
        aside.mkdir(exist_ok=True)
        for path in sorted(self.folder.iterdir(), key=lambda path: path.name == "state.json"):
            if path.name != LOCK:
                path.rename(aside / path.name)
        return aside


@dataclass(frozen=True)
class GridRun(CellRun):
    """A run that is one training of some epochs.

    Attributes:
        epochs: length of the training
    """

    epochs: int

    @property
    def steps(self) -> Sequence[str]:
        """The only step: the results are those of the validation after each epoch."""
        return ["train"]

    def train_flags(self) -> dict[str, Any]:
        """Return the length of the training, and whether it is on the CPU."""
        return {"max-epoch": self.epochs, "cpu": "--cpu" in self.flags}

    @abstractmethod
    def learning_rate(self, epoch: int) -> float:
        """Return the rate of an epoch; the first one is 0."""

    def argv(self, step: str) -> list[str]:
        """Return the arguments of ``fairseq-recur train``."""
        rates = ",".join(str(self.learning_rate(epoch)) for epoch in range(self.epochs))
        schedule = ["--lr", rates, "--max-epoch", str(self.epochs)]
        files = ["--save-dir", str(self.folder), "--log-file", str(self.folder / "train.log")]
        return ["train", *self.flags, *schedule, *files]


def do_what_is_left(
    runs: Sequence[R],
    jobs: int,
    work: Path,
    finished: Callable[[R], None],
    devices: Sequence[str] = (),
) -> list[str] | None:
    """Do the runs of a table that are not finished; see `Runner`.

    Returns:
        the names of the runs that failed; None after a signal
    """
    kept = sum(run.finished() for run in runs)
    say(f"{len(runs)} runs, {kept} of them already done; {jobs} at a time in {work}")
    try:
        return Runner(runs, jobs, devices, finished)()
    except Stopped as stopped:
        print(f"\nstopped by {stopped}; the same command continues from here", file=sys.stderr)
        return None


def run_and_report(
    runs: Sequence[R],
    jobs: int,
    work: Path,
    finished: Callable[[R], None],
    report: Callable[[], str],
    devices: Sequence[str],
    check: Callable[[Sequence[R]], None],
) -> int:
    """Do the runs of a table that are not finished, and print the table.

    Args:
        runs: all of them
        jobs: number of concurrent runs; 0: only report
        work: folder of all output
        finished: called after each run
        report: writes all results, and returns the table; if nothing is finished, it writes
            nothing, for the settings may be others, and returns an empty text
        devices: the GPUs, of which each training has one; none on the CPU
        check: called before the first run; writes what the runs read, and raises ConfigError if
            they would fail

    Returns:
        exit status: 0, or 1 if a run failed, 2 if something is wrong, 130 after a signal
    """
    try:
        if jobs:
            with stoppable():
                check(runs)
        failed = do_what_is_left(runs, jobs, work, finished, devices) if jobs else []
        if failed is None:
            return 130
        table = report()
    except Stopped as stopped:
        print(f"\nstopped by {stopped}; the same command begins again", file=sys.stderr)
        return 130
    except (ConfigError, OSError) as error:  # such as a damaged file, or a folder of someone else
        print(f"error: {error}", file=sys.stderr)
        return 2
    if table:
        print(f"\n{table}\n")
        print(f"Everything is in {work}: results.md (this table), results.json, and the runs.")
    else:
        remedy = "" if jobs else "; give the variables of the training"
        print(f"\nNothing is finished with these settings{remedy}")
    for run in runs:
        if run.name in failed:
            print(f"failed: {run.name}, see {run.folder}", file=sys.stderr)
    return 1 if failed else 0
