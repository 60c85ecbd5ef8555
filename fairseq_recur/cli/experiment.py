"""Reproduce a table of a paper: train, decode and score several systems under equal conditions.

A folder keeps all results, and nothing in it is done twice. After a stop or a kill, the same
command continues from the last checkpoints. results.json and table.md in the folder are updated
whenever a run is finished. docs/experiments.md explains the files.
"""

import argparse
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch

from fairseq_recur.cli import experiment_check, experiment_new, experiment_score
from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.progress import trained_share, where
from fairseq_recur.experiments.reading import read_experiment, stored, stored_experiment
from fairseq_recur.experiments.results import all_runs, write_results
from fairseq_recur.experiments.runner import (
    PATIENCE,
    PROGRAM,
    Runner,
    Stopped,
    plugin_environment,
    stoppable,
)
from fairseq_recur.experiments.runs import SystemRun, runs_of
from fairseq_recur.experiments.settings import Experiment
from fairseq_recur.experiments.speed import measure_speed
from fairseq_recur.experiments.steps import LOCK, Run
from fairseq_recur.files import write_json
from fairseq_recur.locks import hold, is_locked, name_holder

ABOUT = "command.json"

HELD = "FAIRSEQ_RECUR_LOCK"
"""The variable with the descriptor of the folder's lock, which `run --background` hands over."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `experiment`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(name: str, text: str) -> argparse.ArgumentParser:
        return actions.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}.",
            formatter_class=parser.formatter_class,
        )  # fmt: skip

    run_ = action("run", "run the remaining steps of an experiment, measure speed, write the table")
    run_.add_argument(
        "files",
        nargs="+",
        metavar="FILE.yaml",
        help="the experiment; several files are merged, such as a table and a corpus",
    )
    run_.add_argument("--work-dir", required=True, metavar="DIR", help="folder of all results")
    run_.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a value of the files, such as data=DATA_BIN or train.max-update=500; the "
        "value is YAML; repeat the option for further keys",
    )
    run_.add_argument(
        "--systems", nargs="+", default=[], metavar="SYSTEM", help="only these rows of the table"
    )
    run_.add_argument(
        "--seeds", nargs="+", type=int, default=[], metavar="N", help="instead of the files' seeds"
    )
    run_.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="concurrent runs, spread over the GPUs (default: one per GPU, or one)",
    )
    run_.add_argument(
        "--background",
        action="store_true",
        help="run detached from this terminal; log in DIR/run.log",
    )
    run_.add_argument("--show-validation", action="store_true", help="print each validation result")
    run_.add_argument("--dry-run", action="store_true", help="check everything, print the commands")
    experiment_new.add_arguments(
        action("new", "write a file for your own data, with a fair control")
    )
    experiment_score.add_arguments(
        action("score", "decode and score the trained systems on other test sets")
    )
    for name, text in (
        ("status", "show what is done and what is running"),
        ("stop", "stop an experiment"),
    ):
        action(name, text).add_argument("work_dir", metavar="DIR", help="folder of the experiment")


def run(args: argparse.Namespace) -> int:
    """Run one of the actions."""
    actions = {
        "run": run_all, "new": experiment_new.run, "score": score, "status": status, "stop": stop
    }  # fmt: skip
    return actions[args.action](args)


def score(args: argparse.Namespace) -> int:
    """Score the trained systems on other test sets."""
    work = Path(args.work_dir)
    about = experiment_check.read_about(work / ABOUT)
    experiment = stored_experiment(about, work)
    trained = [run_ for run_ in all_runs(experiment, work) if run_.trained()]
    experiment_score.check(experiment, trained, args)
    jobs, devices = places(args.jobs, trained[0])
    with exclusive(work) as lock:
        name_holder(lock)
        return experiment_score.run(experiment, trained, about, args, jobs, devices)


def run_all(args: argparse.Namespace) -> int:
    """Check everything, do everything, write the table."""
    runs = runs_from(args)
    jobs, devices = places(args.jobs, runs[0])
    parameters = experiment_check.check(runs)
    if args.dry_run:
        for run_ in runs:
            for step in run_.steps:
                print(shlex.join(["fairseq-recur", *run_.argv(step)]))
        return 0
    work = Path(args.work_dir)
    lock = exclusive(work)
    name_holder(lock)
    # Rows that are not requested now may have been done before. They stay in the table.
    if (work / ABOUT).is_file():
        parameters = {**experiment_check.read_about(work / ABOUT)["parameters"], **parameters}
    write_json(
        work / ABOUT,
        {
            **stored(args.files, args.set, work),
            "systems": args.systems,
            "seeds": args.seeds,
            "parameters": parameters,
        },
    )
    with lock:
        if args.background:
            return in_background(work, lock)
        return work_on(runs, work, jobs, devices, args.show_validation)


def runs_from(args: argparse.Namespace) -> list[SystemRun]:
    """Return the runs that the arguments request."""
    experiment = read_experiment(args.files, args.set)
    work = Path(args.work_dir).resolve()
    return runs_of(experiment, work, args.systems, list(dict.fromkeys(args.seeds)))


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


def exclusive(work: Path) -> IO[str]:
    """Lock the experiment's folder, or take over the lock that `run --background` has.

    Raises:
        ConfigError: another process has the lock, or the disk has no locks
    """
    held = os.environ.pop(HELD, None)
    lock = os.fdopen(int(held), "a+", encoding="utf-8") if held else lock_of(work)
    if lock is None:
        raise ConfigError(
            f"an experiment runs in {work} (process {process_of(work)}); wait, or stop it "
            f"with `fairseq-recur experiment stop {work}`"
        )
    return lock


def lock_of(folder: Path) -> IO[str] | None:
    """Lock a folder; return None if another process has the lock.

    Raises:
        ConfigError: the disk has no locks
    """
    with needing_locks(folder):
        return hold(folder / LOCK)


def is_held(folder: Path) -> bool:
    """Return whether a process works in a folder of an experiment, which is only read."""
    with needing_locks(folder):
        return is_locked(folder / LOCK)


@contextmanager
def needing_locks(folder: Path) -> Iterator[None]:
    """Say what to do if the disk of a folder has no locks."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:  # the file itself cannot be opened
            raise
        raise ConfigError(
            f"{folder}: its disk has no locks ({error.strerror}); choose another --work-dir"
        ) from error


def process_of(work: Path) -> str:
    """Return the number and the machine of the process that holds the folder's lock."""
    return (work / LOCK).read_text(encoding="utf-8").strip() or "unknown"


def work_on(
    runs: list[SystemRun], work: Path, jobs: int, devices: list[str], validation: bool
) -> int:
    """Do what is left; return 0, or 1 if a run failed or cannot be scored."""
    experiment, about = runs[0].experiment, experiment_check.read_about(work / ABOUT)

    def update(_: object = None) -> bool:
        return write_table(experiment, work, about)

    runner = Runner(runs, jobs, devices, update, validation)
    try:
        failed = runner()
        written = update()
        if experiment.speed is not None and not failed:
            with stoppable():
                measure_speed(one_of_each(runs), runner.environment(0))
            written = update()
    except Stopped as stopped:
        return stopped.report()
    if written:
        print((work / "table.md").read_text(encoding="utf-8"))
    for name in failed:
        print(f"{name} failed; see its folder", file=sys.stderr)
    return 1 if failed or not written else 0


def write_table(experiment: Experiment, work: Path, about: dict[str, Any]) -> bool:
    """Write the results until now, or report why they cannot be scored; return whether they can.

    The trainings go on meanwhile, and the same command writes the table when the cause is removed.
    """
    try:
        write_results(experiment, work, about)
    except ConfigError as error:
        print(f"the table is not written: {error}", file=sys.stderr)
        print("the same command decodes again what has no test.txt", file=sys.stderr)
        return False
    return True


def one_of_each(runs: list[SystemRun]) -> list[SystemRun]:
    """Return a finished run of each system in the table, also of systems not requested now."""
    systems = runs[0].experiment.systems
    every = [*runs_of(runs[0].experiment, runs[0].work), *runs]
    finished = {run_.system.name: run_ for run_ in reversed(every) if run_.finished()}
    return [finished[name] for name in systems if name in finished]


def in_background(work: Path, lock: IO[str]) -> int:
    """Start the same command again, detached from this terminal; hand the folder's lock over.

    So at no time does the folder look as if nothing ran there.
    """
    argv = [word for word in sys.argv[1:] if word != "--background"]
    with open(work / "run.log", "ab") as log:
        process = subprocess.Popen(
            [*PROGRAM, *argv], stdin=subprocess.DEVNULL,
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            env={**plugin_environment(), HELD: str(lock.fileno())}, pass_fds=[lock.fileno()],
        )  # fmt: skip
    name_holder(lock, process.pid)
    print(f"process {process.pid} is running; log: {work / 'run.log'}")
    print(f"fairseq-recur experiment status {work}\nfairseq-recur experiment stop {work}")
    return 0


def status(args: argparse.Namespace) -> int:
    """Print the state of each run, and the table of the finished runs."""
    work = Path(args.work_dir)
    about = experiment_check.read_about(work / ABOUT)
    experiment = stored_experiment(about, work)
    runs = runs_of(experiment, work.resolve(), about["systems"], about["seeds"])
    print(f"process {process_of(work)} is running" if is_held(work) else "nothing is running")
    for run_ in runs:
        print(f"  {run_.name}: {describe(run_)}")
    table = work / "table.md"
    if table.is_file():
        print("\n" + table.read_text(encoding="utf-8"))
    return 0


def describe(run_: SystemRun) -> str:
    """Describe the state of a run."""
    if run_.finished():
        return "done"
    step = next(s for s in run_.steps if not run_.done(s))
    share = 1.0 if run_.trained() else trained_share(run_)
    return f"{where(run_, step) if is_held(run_.folder) else 'waiting'} ({share:.0%} trained)"


def stop(args: argparse.Namespace) -> int:
    """Stop the process that works in a folder, and wait for its end."""
    work = Path(args.work_dir)
    experiment_check.read_about(work / ABOUT)
    if not is_held(work):
        print("nothing is running")
        return 0
    process, _, host = process_of(work).partition(" on ")
    if host and host != socket.gethostname():
        raise ConfigError(
            f"the experiment in {work} runs on {host}, and this machine is {socket.gethostname()}; "
            "give the same command there"
        )
    if not process.isdigit():
        raise ConfigError(
            f"the process in {work} has not written its number to {LOCK} yet; try again"
        )
    try:
        os.kill(int(process), signal.SIGTERM)
    except OSError as error:  # it has just ended, or belongs to another user
        raise ConfigError(
            f"process {process} cannot be stopped: {error.strerror}; "
            f"look with `fairseq-recur experiment status {work}`"
        ) from None
    print(
        "waiting until each training has saved a checkpoint after its next update, which a "
        "validation may delay; a second `experiment stop` ends all at once",
        flush=True,
    )
    wait = PATIENCE + 60  # the process itself ends what has not ended after PATIENCE
    end = time.monotonic() + wait
    while is_held(work):
        if time.monotonic() > end:
            raise ConfigError(
                f"process {process} has not ended after {wait / 60:g} minutes; wait, or end it "
                f"with kill -9 {process}"
            )
        time.sleep(0.1)
    print("stopped; all checkpoints are kept")
    return 0
