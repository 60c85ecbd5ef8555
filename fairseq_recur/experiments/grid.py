"""A table whose trainings a program makes: a run for each row, system and seed."""

import sys
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.progress import say
from fairseq_recur.experiments.runner import Runner, Stopped, stoppable
from fairseq_recur.experiments.steps import LOCK, STATE, Run

R = TypeVar("R", bound=Run)


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
        """Put a training with other flags aside; it may have taken days. Take back an equal one."""
        if self.has_training(self.folder):
            return
        if "train" in self.state():
            kept = self.put_aside()
            say(f"{self.name}: the settings have changed; the earlier training is kept in {kept}")
        for aside in sorted(self.folder.parent.glob(f"{self.folder.name}_before*")):
            if self.has_training(aside):
                say(f"{self.name}: the training in {aside} had these settings; it is used again")
                move(aside, self.folder)
                with suppress(OSError):
                    aside.rmdir()
                return

    def has_training(self, folder: Path) -> bool:
        """Return whether a folder has a training with these flags, which need not be finished."""
        key = self.state_in(folder).get("train", {}).get("key")
        return key is not None and self.same(key, self.key("train"))

    def put_aside(self) -> Path:
        """Move the files of the folder to a new one beside it, and return that."""
        names = (self.folder.with_name(f"{self.folder.name}_before{n}") for n in count(1))
        aside = next(path for path in names if not (path / STATE).exists())
        aside.mkdir(exist_ok=True)
        move(self.folder, aside)
        return aside


def move(source: Path, target: Path) -> None:
    """Move the files of a run from a folder to another; the locked file stays.

    The state is the last one: after a kill, the next start finds it and moves the rest.
    """
    for path in sorted(source.iterdir(), key=lambda path: path.name == STATE):
        if path.name != LOCK:
            path.rename(target / path.name)


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
) -> list[str]:
    """Do the runs of a table that are not finished; see `Runner`.

    Returns:
        the names of the runs that failed

    Raises:
        Stopped: by a signal
    """
    kept = sum(run.finished() for run in runs)
    say(f"{len(runs)} runs, {kept} of them already done; {jobs} at a time in {work}")
    return Runner(runs, jobs, devices, finished)()


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
            if not devices and not all(run.train_flags().get("cpu") for run in runs):
                raise ConfigError("DEVICE=cuda: torch finds no GPU here; give DEVICE=cpu")
            with stoppable():
                check(runs)
        failed = do_what_is_left(runs, jobs, work, finished, devices) if jobs else []
        with stoppable():
            table = report()
    except Stopped as stopped:
        return stopped.report()
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
