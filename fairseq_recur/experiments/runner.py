"""Doing what is left of an experiment: processes of fairseq's commands, some at a time."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import fairseq_recur
from fairseq_recur.experiments import machine
from fairseq_recur.experiments.progress import Progress, clock
from fairseq_recur.experiments.steps import Run

POLL = 0.5
"""Seconds between two looks at the processes."""

LOCK = "lock"
"""File that is locked while something works in its folder."""

TAIL = 12
"""Lines of a log that are shown when a command has failed."""


@dataclass
class Job:
    """A step that is being done."""

    run: Run
    step: str
    slot: int
    process: subprocess.Popen
    started: float


class Stopped(Exception):
    """A signal has asked for the end."""


class Runner:
    """Does the steps of the runs that are not done, and keeps note of each that is.

    Args:
        runs: in the order in which they are wanted; one that starts from another's model waits
        jobs: how many at a time
        devices: GPUs, as in CUDA_VISIBLE_DEVICES, over which the jobs are spread; [] for none
        finished: called when a run has its translations
    """

    def __init__(
        self,
        runs: Sequence[Run],
        jobs: int,
        devices: Sequence[str],
        finished: Callable[[Run], None] = lambda run: None,
    ) -> None:
        self.runs, self.jobs, self.devices, self.finished = (
            list(runs),
            jobs,
            list(devices),
            finished,
        )
        self.active: list[Job] = []
        self.failed: set[str] = set()
        self.elsewhere: set[str] = set()
        self.progress = Progress(self.runs)

    def __call__(self) -> list[str]:
        """Do everything; the names of the runs that failed, or wait for one that did.

        Raises:
            Stopped: on SIGINT, SIGTERM and SIGHUP, after the processes have been ended
        """
        before = {
            s: signal.signal(s, _stop) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        try:
            while self.advance():
                time.sleep(POLL)
        finally:
            self.end_all()
            for number, handler in before.items():
                signal.signal(number, handler)
        return [run.name for run in self.runs if run.name in self.failed]

    def advance(self) -> bool:
        """Note what has ended, start what can be; whether anything is left."""
        for job in [j for j in self.active if j.process.poll() is not None]:
            self.active.remove(job)
            self.note(job)
        busy = {job.run.name for job in self.active}
        left = [r for r in self.runs if r.name not in self.failed and not r.finished()]
        for run in left:
            if len(self.active) < self.jobs and run.name not in busy and self.ready(run):
                self.start(run)
        self.progress.show([(job.run, job.step) for job in self.active])
        return bool(left)

    def ready(self, run: Run) -> bool:
        """Whether a run can go on now; one whose first model failed will never."""
        if run.system.start_from is None or run.done("train"):
            return True
        first = run.of(run.system.start_from)
        if first.name in self.failed:
            self.failed.add(run.name)
            self.progress.say(f"{run.name} cannot be trained without {first.name}")
        elif first.name not in {r.name for r in self.runs} and not first.trained():
            self.failed.add(run.name)
            self.progress.say(
                f"{run.name} starts from {first.name}, which is not trained; name both"
            )
        return first.trained()

    def start(self, run: Run) -> None:
        """Start the next step of a run, unless a process of an earlier start still does it."""
        run.folder.mkdir(parents=True, exist_ok=True)
        lock = hold(run.folder / LOCK)
        if lock is None:
            if run.name not in self.elsewhere:
                self.elsewhere.add(run.name)
                self.progress.say(f"{run.name} still runs from an earlier start; waiting for it")
            return
        with lock:
            step = next(s for s in run.steps if not run.done(s))
            slot = min(set(range(self.jobs)) - {job.slot for job in self.active})
            state = run.state()
            for later in run.steps[run.steps.index(step) + 1 :]:
                state.pop(later, None)
            entry = {"key": run.key(step), "seconds": state.get(step, {}).get("seconds", 0.0)}
            run.write_state({**state, step: {**entry, "done": False, "commit": machine.commit()}})
            self.progress.say(f"{run.name}: {step}")
            with (
                open(run.folder / f"{step}.out", "wb") as out,
                open(log_of(run, step), "ab") as log,
            ):
                process = subprocess.Popen(
                    [sys.executable, "-m", "fairseq_recur", *run.argv(step)],
                    stdin=subprocess.DEVNULL, stdout=out, stderr=log,
                    env=self.environment(slot), pass_fds=[lock.fileno()],
                )  # fmt: skip
        self.active.append(Job(run, step, slot, process, time.monotonic()))

    def environment(self, slot: int) -> dict[str, str]:
        """The variables of a job's process: its GPU or share of the cores, and this plug-in."""
        own = str(Path(fairseq_recur.__file__).parent.parent)
        paths = [own, *filter(None, [os.environ.get("PYTHONPATH")])]
        found = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        if self.devices:
            found["CUDA_VISIBLE_DEVICES"] = self.devices[slot % len(self.devices)]
        found.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // self.jobs)))
        return found

    def note(self, job: Job) -> None:
        """Keep what came of a step that has ended."""
        run, code = job.run, job.process.returncode
        seconds = time.monotonic() - job.started
        state = run.state()
        state[job.step]["seconds"] += seconds
        state[job.step]["done"] = code == 0
        if code == 0 and job.step == "generate":
            (run.folder / "generate.out").replace(run.folder / "test.txt")
        run.write_state(state)
        if code != 0:
            self.failed.add(run.name)
            lines = log_of(run, job.step).read_text(encoding="utf-8", errors="replace").splitlines()
            tail = "\n".join(f"  {line[:300]}" for line in lines[-TAIL:])
            where = log_of(run, job.step)
            self.progress.say(
                f"{run.name}: {job.step} failed ({code}); the end of {where}:\n{tail}"
            )
        elif run.finished():
            self.progress.say(f"{run.name}: done, the last step in {clock(seconds)}")
            self.finished(run)

    def end_all(self) -> None:
        """End the processes, which resume from their checkpoints another time."""
        for job in self.active:
            job.process.terminate()
        for job in self.active:
            try:
                job.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                job.process.kill()
                job.process.wait()


def log_of(run: Run, step: str) -> Path:
    """What a step's command says; its result is in STEP.out."""
    return run.folder / f"{step}.err"


def hold(path: Path) -> IO[str] | None:
    """Take a lock, which child processes can inherit; None if another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = open(path, "a+", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def _stop(number: int, frame: object) -> None:
    """End the loop."""
    raise Stopped(signal.Signals(number).name)
