"""``experiment run``: check everything, do what is left, write the table.

Nothing in the folder is done twice: after a stop or a kill, the same command continues from the
last checkpoints.
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

from fairseq_recur.cli import experiment_check
from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.folder_lock import HELD, exclusive
from fairseq_recur.experiments.reading import ABOUT, read_about, read_experiment, stored
from fairseq_recur.experiments.results import write_results
from fairseq_recur.experiments.runner import (
    PROGRAM,
    Runner,
    Stopped,
    places,
    plugin_environment,
    stoppable,
)
from fairseq_recur.experiments.runs import SystemRun, runs_of
from fairseq_recur.experiments.settings import Experiment
from fairseq_recur.experiments.speed import measure_speed
from fairseq_recur.files import write_json
from fairseq_recur.locks import name_holder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add(
        "files", nargs="+", metavar="FILE.yaml",
        help="the experiment; several files are merged, such as a table and a corpus",
    )  # fmt: skip
    add("--work-dir", required=True, metavar="DIR", help="folder of all results")
    add(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="override a value of the files, such as data=DATA_BIN or train.max-update=500; the "
        "value is YAML; repeat the option for further keys",
    )  # fmt: skip
    add(
        "--systems", nargs="+", default=[], metavar="SYSTEM",
        help="only these rows of the table, and the rows that they start from",
    )  # fmt: skip
    add("--seeds", nargs="+", type=int, default=[], metavar="N", help="instead of the files' seeds")
    add(
        "--jobs", type=int, metavar="N",
        help="concurrent runs, spread over the GPUs (default: one per GPU, or one)",
    )  # fmt: skip
    add(
        "--background", action="store_true",
        help="run detached from this terminal; log in DIR/run.log",
    )  # fmt: skip
    add("--show-validation", action="store_true", help="print each validation result")
    add("--dry-run", action="store_true", help="check everything, print the commands")


def run(args: argparse.Namespace) -> int:
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
    with exclusive(work) as lock:
        name_holder(lock)
        write_about(args, work, parameters)
        if args.background:
            return in_background(work, lock)
        return work_on(runs, work, jobs, devices, args.show_validation)


def write_about(args: argparse.Namespace, work: Path, parameters: dict[str, int]) -> None:
    """Write how the experiment was started, and the models' numbers of parameters.

    Rows that are not requested now may have been done before. They stay in the table.
    """
    before = read_about(work)["parameters"] if (work / ABOUT).is_file() else {}
    about: dict[str, Any] = stored(args.files, args.set, work)
    about |= {"systems": args.systems, "seeds": args.seeds}
    write_json(work / ABOUT, {**about, "parameters": {**before, **parameters}})


def runs_from(args: argparse.Namespace) -> list[SystemRun]:
    """Return the runs that the arguments request."""
    experiment = read_experiment(args.files, args.set)
    work = Path(args.work_dir).resolve()
    return runs_of(experiment, work, args.systems, list(dict.fromkeys(args.seeds)))


def work_on(
    runs: list[SystemRun], work: Path, jobs: int, devices: list[str], validation: bool
) -> int:
    """Do what is left; return 0, or 1 if a run failed or cannot be scored."""
    experiment, about = runs[0].experiment, read_about(work)

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
