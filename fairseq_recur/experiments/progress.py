"""Progress reports of running experiments."""

import shutil
import sys
import time
from collections.abc import Sequence

from fairseq_recur.experiments.runs import limit
from fairseq_recur.experiments.steps import Run
from fairseq_recur.experiments.training_log import TrainingLog, log_in

EVERY = {True: 5.0, False: 120.0}
"""Seconds between two reports: on a terminal, and elsewhere."""

CLEAR = "\r\x1b[K"
"""Control characters that erase a terminal's line."""

ROUTINE = {"nll_loss", "wps", "wpb", "bsz", "num_updates"}
"""Results of a validation that its line leaves out."""


class Progress:
    """A status line: rewritten in place on a terminal, printed now and then elsewhere.

    Args:
        runs: all runs that are to be done
        validation: whether each new validation result is printed
    """

    def __init__(self, runs: Sequence[Run], validation: bool = False) -> None:
        self.runs, self.began = list(runs), time.monotonic()
        self.seen = {run.name: validations(training_log(run)) for run in runs} if validation else {}
        self.last = self.looked = self.began
        self.before = self.share()

    def share(self) -> float:
        """Return the part of all trainings that is done, 0 to 1."""
        return sum(1.0 if run.trained() else trained_share(run) for run in self.runs) / max(
            1, len(self.runs)
        )

    def line(self, active: Sequence[tuple[Run, str]] = ()) -> str:
        """Describe how much is done, how long the rest will take, and what is running.

        How long the other steps take is not known before.
        """
        share, now = self.share(), time.monotonic() - self.began
        finished = sum(run.finished() for run in self.runs)
        parts = [f"{finished} of {len(self.runs)} runs done"]
        if self.before < 1:
            parts.append(f"{share:.0%} of the training")
        parts.append(f"{clock(now)} elapsed")
        if self.before < share < 1:
            left = now / (share - self.before) * (1 - share)
            parts.append(f"about {clock(left)} left")
        at = "; ".join(f"{run.name}: {where(run, step)}" for run, step in active)
        return ", ".join(parts) + (f" | {at}" if at else "")

    def validated(self, run: Run) -> None:
        """Print a run's validation results that are new."""
        if run.name not in self.seen:
            return
        log = training_log(run)
        for subset, results in log.valid.items():
            for updates, stats in sorted(results.items()):
                if (subset, updates) in self.seen[run.name]:
                    continue
                shown = {k: v for k, v in stats.items() if k not in ROUTINE and "best_" not in k}
                said = ", ".join(f"{name} {value:g}" for name, value in shown.items())
                epochs = log.position(updates, "epoch")
                after = "" if epochs is None else f"epoch {epochs:.1f}, "
                say(f"{run.name}: {after}update {updates}, {subset} {said}")
        self.seen[run.name] = validations(log)

    def show(self, active: Sequence[tuple[Run, str]]) -> None:
        """Report if the last report is old enough."""
        if self.seen and time.monotonic() - self.looked > EVERY[True]:
            self.looked = time.monotonic()
            for run, step in active:
                if step == "train":
                    self.validated(run)
        terminal = sys.stdout.isatty()
        if not active or time.monotonic() - self.last < EVERY[terminal]:
            return
        self.last = time.monotonic()
        if terminal:
            width = shutil.get_terminal_size().columns - 1
            print("\r" + self.line(active)[:width].ljust(width), end="", flush=True)
        else:
            print(self.line(active), flush=True)


def say(text: str) -> None:
    """Print a line that stays, over the status line of a terminal."""
    print((CLEAR if sys.stdout.isatty() else "") + text, flush=True)


def where(run: Run, step: str) -> str:
    """Describe what a run is doing."""
    log = training_log(run)
    if step != "train" or not log.timeline:
        return step
    updates, epochs, _ = log.timeline[-1]
    losses = log.curve("train_loss")
    loss = f", loss {losses[-1][1]:.2f}" if losses else ""
    return f"update {updates}, epoch {epochs:.1f}{loss}"


def trained_share(run: Run) -> float:
    """Return the part of a run's training that its log shows as done, 0 to 1."""
    if "train" not in run.steps:
        return 1.0
    log = training_log(run)
    if not log.timeline:
        return 0.0
    updates, epochs, _ = log.timeline[-1]
    flags = run.train_flags()
    limits = limit(flags.get("max-update")), limit(flags.get("max-epoch"))
    return min(1.0, max(done / most for done, most in zip((updates, epochs), limits)))


def validations(log: TrainingLog) -> set[tuple[str, int]]:
    """Return subset and number of updates of each validation in a log."""
    return {(subset, updates) for subset, results in log.valid.items() for updates in results}


def training_log(run: Run) -> TrainingLog:
    """Return a run's log, empty if there is none yet."""
    return log_in(run.folder)


def clock(seconds: float) -> str:
    """Format a time as hours:minutes:seconds."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
