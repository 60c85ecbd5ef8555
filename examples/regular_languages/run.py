"""Train every system on every language, some at a time, and print the table.

    python run.py [table]

Each training is a process of its own with its log in its folder. A finished one is kept, and an
unfinished one goes on from its last checkpoint. See README.md for the settings.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import report
import table
from settings import HERE, Run, Settings, SettingsError, runs

from fairseq_recur.experiments.machine import commit

WORK = Path(os.environ.get("WORK", HERE / "work")).resolve()
POLL = float(os.environ.get("POLL", "2"))
"""Seconds between two looks at the trainings."""

STOPPING: list[bool] = []
"""Not empty once a signal has asked for the end."""


@dataclass
class Training:
    """A process that trains a run."""

    run: Run
    process: subprocess.Popen
    started: float = field(default_factory=time.monotonic)


def read_state(run: Run) -> dict[str, Any]:
    """Return what is known of a run from before: its flags, the epochs done, the seconds taken."""
    try:
        return json.loads((run.folder(WORK) / "run.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}


def write_state(run: Run, state: dict[str, Any]) -> None:
    """Keep what is known of a run; never half a file."""
    path = run.folder(WORK) / "run.json"
    path.with_suffix(".new").write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
    path.with_suffix(".new").replace(path)


def finished(run: Run) -> bool:
    """Whether a run is done, with the flags that it would have now."""
    state = read_state(run)
    return state.get("flags") == list(run.flags) and state.get("epochs", 0) >= run.epochs


def hold(run: Run) -> IO | None:
    """Take the lock of a run's folder, or return None if another process has it.

    The training inherits it. So a training that outlived its run.sh is waited for, and two
    run.sh can share the work.
    """
    run.folder(WORK).mkdir(parents=True, exist_ok=True)
    lock = open(run.folder(WORK) / "lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def start(run: Run) -> Training | None:
    """Start a run, or None if another process trains it now."""
    lock = hold(run)
    if lock is None:
        return None
    with lock:
        folder, state = run.folder(WORK), read_state(run)
        if state.get("flags") != list(run.flags):
            if state:
                print(f"{run.name}: the settings have changed, so it is trained anew", flush=True)
            for path in folder.iterdir():
                if path.name != "lock":
                    path.unlink() if path.is_file() else shutil.rmtree(path)
            state = {"flags": list(run.flags), "seconds": 0.0}
        write_state(run, {**state, "epochs": 0, "commit": commit()})
        with open(folder / "train.log", "ab") as log:
            process = subprocess.Popen(
                run.command(WORK), stdout=log, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, pass_fds=[lock.fileno()],
            )  # fmt: skip
        return Training(run, process)


def epochs_done(run: Run) -> int:
    """Return how many epochs a run has validated, from the end of its log."""
    try:
        with open(run.folder(WORK) / "train.log", "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - 20_000))
            text = log.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return 0
    found = re.findall(r'\| bin1 \| \{"epoch": (\d+)', text)
    return min(int(found[-1]), run.epochs) if found else 0


def end(training: Training) -> bool:
    """Note that a training has ended; say how it went and whether it went well."""
    run, code = training.run, training.process.returncode
    state = read_state(run)
    state["seconds"] = state.get("seconds", 0.0) + time.monotonic() - training.started
    if code == 0:
        state["epochs"] = run.epochs
    write_state(run, state)
    if code != 0:
        log = run.folder(WORK) / "train.log"
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:]
        print(f"\n{run.name} failed (exit status {code}); the end of {log}:", file=sys.stderr)
        print("\n".join(f"  {line[:300]}" for line in tail), file=sys.stderr, flush=True)
    return code == 0


def clock(seconds: float) -> str:
    """Write a time as hours:minutes:seconds."""
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


class Progress:
    """What is said while trainings run: a line that changes on a terminal, else one a run."""

    def __init__(self, everything: list[Run]) -> None:
        self.everything, self.began = everything, time.monotonic()
        self.before = self.epochs()

    def epochs(self) -> int:
        """Return the epochs done, of all runs together."""
        return sum(r.epochs if finished(r) else epochs_done(r) for r in self.everything)

    def line(self) -> str:
        """Return how much is done, and how long the rest will take at the same rate."""
        done, now = self.epochs(), time.monotonic() - self.began
        total = sum(run.epochs for run in self.everything)
        new = done - self.before
        left = f"about {clock(now / new * (total - done))} left" if new > 0 else "time left unknown"
        ready = sum(map(finished, self.everything))
        share = f"{100 * done // total} % of all epochs"
        return f"{ready} of {len(self.everything)} runs done, {share}, {clock(now)} gone, {left}"

    def show(self, active: list[Training]) -> None:
        """Rewrite the line of a terminal."""
        if sys.stdout.isatty():
            at = ", ".join(f"{t.run.name} epoch {epochs_done(t.run) + 1}" for t in active)
            width = shutil.get_terminal_size().columns - 1
            print("\r" + f"{self.line()} | {at}"[:width].ljust(width), end="", flush=True)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        print(("\r" if sys.stdout.isatty() else "") + text, flush=True)


def train(everything: list[Run], jobs: int) -> list[Run]:
    """Train what is not finished, ``jobs`` at a time; return the runs that failed."""
    waiting = [run for run in everything if not finished(run)]
    progress, active, failed = Progress(everything), [], []
    kept = len(everything) - len(waiting)
    progress.say(f"{len(everything)} runs, {kept} of them done before; {jobs} at a time in {WORK}")
    try:
        while waiting or active:
            if STOPPING:
                raise KeyboardInterrupt
            for run in waiting[:]:
                if len(active) == jobs:
                    break
                training = None if finished(run) else start(run)
                if training or finished(run):  # another run.sh may have finished it
                    waiting.remove(run)
                active += [training] if training else []
            time.sleep(POLL)
            for training in [t for t in active if t.process.poll() is not None]:
                active.remove(training)
                if end(training):
                    result = report.of_run(training.run, WORK)
                    progress.say(f"{training.run.name}: {report.in_words(result)}")
                    progress.say(f"  {progress.line()}")
                    report.write(everything, WORK)
                else:
                    failed.append(training.run)
            progress.show(active)
    finally:
        for training in active:
            training.process.terminate()
        for training in active:
            training.process.wait()
            end_early(training)
    return failed


def end_early(training: Training) -> None:
    """Keep the time that an interrupted training took."""
    state = read_state(training.run)
    state["seconds"] = state.get("seconds", 0.0) + time.monotonic() - training.started
    write_state(training.run, state)


def stop(*_: Any) -> None:
    """Note that a signal asks for the end; `train` stops between two of its steps.

    An exception raised here could come up while an object is deleted, where Python drops it.
    """
    STOPPING.append(True)


def main(arguments: list[str]) -> int:
    """Run everything; 0 if all went well, 1 if a run failed, 2 if the settings are wrong."""
    try:
        settings = Settings()
        jobs = int(os.environ.get("JOBS", os.cpu_count() or 1))
        if arguments not in ([], ["table"]) or jobs < 1:
            raise SettingsError(
                f"run.sh {' '.join(arguments)} with JOBS={jobs}; expected bash run.sh [table], and "
                "JOBS from 1"
            )
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    everything, failed = list(runs(settings)), []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    if not arguments:
        try:
            failed = train(everything, jobs)
        except KeyboardInterrupt:
            print("\nStopped. The same command goes on from here.", file=sys.stderr)
            return 130
    results = report.write(everything, WORK)
    print("\n" + table.summary(results["runs"]) + "\n")
    print(f"Everything is in {WORK}: results.md (this table), results.json, and the runs.")
    for run in failed:
        print(f"failed: {run.name}, see {run.folder(WORK) / 'train.log'}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
