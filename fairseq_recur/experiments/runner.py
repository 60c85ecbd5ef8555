"""Running the remaining steps of an experiment: several commands of ``fairseq-recur`` at a time."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TypeVar

import torch

import fairseq_recur
from fairseq_recur.errors import INTERRUPTED, ConfigError
from fairseq_recur.experiments import machine
from fairseq_recur.experiments.progress import Progress, clock, say
from fairseq_recur.experiments.steps import LOCK, Run
from fairseq_recur.locks import hold

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=Run)

OF_3_10 = "import sys; sys.path.pop(0); from fairseq_recur.cli import main; sys.exit(main())"
"""What -P does in later versions of Python."""

PROGRAM = [
    sys.executable,
    *(["-P", "-m", "fairseq_recur"] if sys.version_info >= (3, 11) else ["-c", OF_3_10]),
]
"""The command that executes a step. It imports nothing from the current folder, where Python looks
first otherwise: that may be a clone of fairseq."""

PATIENCE = 600.0
"""Seconds in which a training that is stopped can save: a validation may have to end before."""

TOGETHER = 1.0
"""Seconds within which several signals are one request: a closed terminal sends two."""

POLL = 0.5
"""Seconds between two checks of the processes."""

TAIL = 12
"""Lines of a log that are shown when a command has failed."""


@dataclass
class Job:
    """A running step."""

    run: Run
    step: str
    slot: int
    process: "subprocess.Popen[bytes]"
    started: float


class Stopped(Exception):
    """A signal asked the runner to stop; the argument is the signal's name."""

    def report(self) -> int:
        """Say on stderr what stopped the work, and how it continues; return the exit status."""
        print(f"\nstopped by {self}; the same command continues from here", file=sys.stderr)
        return INTERRUPTED


class Runner:
    """Does the steps that are not done, and records each in the run's state.

    Args:
        runs: in order of priority; a run that starts from another run's model waits for it
        jobs: number of concurrent steps
        devices: GPUs, as in CUDA_VISIBLE_DEVICES, over which the jobs are spread; [] for none
        finished: called with each run whose last step has just ended
        validation: whether the validation results of trainings are printed
    """

    def __init__(
        self,
        runs: Sequence[R],
        jobs: int,
        devices: Sequence[str] = (),
        finished: Callable[[R], object] = lambda run: None,
        validation: bool = False,
    ) -> None:
        self.runs, self.jobs, self.devices = list(runs), jobs, list(devices)
        self.left = self.runs
        self.finished: Callable[..., object] = finished
        self.active: list[Job] = []
        self.failed: set[str] = set()
        self.elsewhere: set[str] = set()
        self.progress = Progress(self.runs, validation)

    def __call__(self) -> list[str]:
        """Do everything.

        Returns:
            names of the runs that failed, or that need the model of a failed run

        Raises:
            Stopped: on SIGINT, SIGTERM and SIGHUP, after the processes have ended
        """
        for run in self.runs:
            run.remember()
        # An exception raised in a handler could come up while an object is deleted, where Python
        # drops it. So the loop looks at this list.
        received: list[str] = []
        with handled(received.append):
            try:
                # Ctrl-C also reaches the processes. They have not failed, and none follows them.
                while not received and self.advance():
                    time.sleep(POLL)
                if received:
                    raise Stopped(received[0])
            finally:
                self.end_all(received)
        return [run.name for run in self.runs if run.name in self.failed]

    def advance(self) -> bool:
        """Record the steps that have ended, start new ones; return whether anything is left."""
        for job in [j for j in self.active if j.process.poll() is not None]:
            self.active.remove(job)
            self.record(job)
        busy = {job.run.name for job in self.active}
        self.left = [r for r in self.left if r.name not in self.failed and not r.finished()]
        for run in self.left:
            if len(self.active) < self.jobs and run.name not in busy and self.ready(run):
                self.start(run)
        self.progress.show([(job.run, job.step) for job in self.active])
        return bool(self.left)

    def ready(self, run: Run) -> bool:
        """Return whether a run can continue now; fail it if its initial model will never exist."""
        first = run.starts_from
        if first is None or run.done("train") or first.trained():
            return True
        if first.name in self.failed:
            self.failed.add(run.name)
            say(f"{run.name} cannot be trained without {first.name}")
        elif first.name not in {r.name for r in self.runs}:
            self.failed.add(run.name)
            say(f"{run.name} starts from {first.name}, which is not trained; name both systems")
        return False

    def start(self, run: Run) -> None:
        """Start the next step of a run, unless a process of an earlier start still works on it."""
        lock = hold(run.folder / LOCK)
        if lock is None:
            if run.name not in self.elsewhere:
                self.elsewhere.add(run.name)
                say(f"{run.name} still runs from an earlier start; waiting for it")
            return
        with lock:
            run.prepare()
            step = next((s for s in run.steps if not run.done(s)), None)
            if step is None:  # the process that held the lock has just finished it
                return
            slot = min(set(range(self.jobs)) - {job.slot for job in self.active})
            known = run.state()
            # Nothing of later steps stays, nor of a step that other settings had: it is outdated.
            state = {s: known[s] for s in run.steps[: run.steps.index(step)] if s in known}
            entry = {"key": run.key(step), "seconds": known.get(step, {}).get("seconds", 0.0)}
            if step == "train":
                entry["read"] = run.reads()
            entry |= {
                "done": False, "commit": machine.commit(), "machine": machine.machine(),
                "versions": machine.versions(),
            }  # fmt: skip
            run.write_state({**state, step: entry})
            say(f"{run.name}: {step}")
            with (
                open(run.folder / f"{step}.out", "wb") as out,
                open(log_of(run, step), "ab") as log,
            ):
                process = subprocess.Popen(
                    [*PROGRAM, *run.argv(step)], stdin=subprocess.DEVNULL, stdout=out, stderr=log,
                    env=self.environment(slot), pass_fds=[lock.fileno()],
                )  # fmt: skip
        self.active.append(Job(run, step, slot, process, time.monotonic()))

    def environment(self, slot: int) -> dict[str, str]:
        """Return the variables of a job's process: its GPU or share of cores, and this plug-in."""
        found = plugin_environment()
        if self.devices:
            found["CUDA_VISIBLE_DEVICES"] = self.devices[slot % len(self.devices)]
        found.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // self.jobs)))
        return found

    def record(self, job: Job, interrupted: bool = False) -> None:
        """Record the result of a step that has ended."""
        run, code = job.run, job.process.returncode
        seconds = time.monotonic() - job.started
        state, problem = run.state(), ""
        if code == 0 and not interrupted:
            try:
                run.complete(job.step)
                state[job.step] |= run.made(job.step)
            except ConfigError as error:
                problem = f": {error}"
        state[job.step]["seconds"] += seconds
        state[job.step]["done"] = code == 0 and not interrupted and not problem
        run.write_state(state)
        self.progress.validated(run)
        if interrupted:
            return
        if code != 0 or not run.done(job.step):
            self.failed.add(run.name)
            say(f"{run.name}: {job.step} failed{problem or end_of_log(run, job.step, code)}")
        elif run.finished():
            say(f"{run.name}: done, the last step in {clock(seconds)}")
            try:
                self.finished(run)
            except Exception as error:  # the other trainings go on
                logger.exception("after %s", run.name)
                say(f"{run.name}: its results are not recorded yet: {error}")
            say(f"  {self.progress.line()}")

    def end_all(self, received: Sequence[str]) -> None:
        """End the processes; another start resumes them from their checkpoints.

        Args:
            received: the signals until now, which grows; one that comes later ends them at once
        """
        for job in self.active:
            job.process.terminate()
        if self.active:
            say(
                "stopping: a training ends after its next update, which a validation may delay; "
                "a second signal ends all at once, and they continue from their last checkpoints"
            )
        began, before = time.monotonic(), len(received)
        while any(job.process.poll() is None for job in self.active):
            passed = time.monotonic() - began
            before = len(received) if passed < TOGETHER else before
            if passed > PATIENCE or len(received) > before:
                break
            time.sleep(POLL)
        for job in self.active:
            job.process.kill()
            job.process.wait()
            self.record(job, interrupted=True)


def places(jobs: int | None, run_: Run) -> tuple[int, list[str]]:
    """Return the number of concurrent runs, and the GPUs for them."""
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs {jobs}: expected at least 1")
    if run_.train_flags().get("cpu"):
        return jobs or 1, []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    devices = visible.split(",")[:count] if visible else [str(i) for i in range(count)]
    return jobs or max(1, count), devices


def plugin_environment() -> dict[str, str]:
    """Return the environment variables with which a child process finds this plug-in."""
    own = str(Path(fairseq_recur.__file__).parent.parent)
    paths = [own, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def log_of(run: Run, step: str) -> Path:
    """Return the file with a step's log; its results are in STEP.out."""
    return run.folder / f"{step}.err"


def end_of_log(run: Run, step: str, code: int) -> str:
    """Return a failed step's exit status and the last lines of its log."""
    log = log_of(run, step)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join([f" ({code}); the end of {log}:", *(f"  {x[:300]}" for x in lines[-TAIL:])])


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise `Stopped` on SIGINT, SIGTERM and SIGHUP, for a block that waits for one process."""

    def stop(name: str) -> None:
        raise Stopped(name)

    with handled(stop):
        yield


@contextmanager
def handled(handle: Callable[[str], None]) -> Iterator[None]:
    """Call a function with the names of SIGINT, SIGTERM and, unless `nohup` ignores it, SIGHUP."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        handle(signal.Signals(number).name)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
