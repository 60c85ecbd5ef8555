"""``experiment status``: what is done, what is running, and the table of what is finished."""

import argparse
from pathlib import Path

from fairseq_recur.experiments.folder_lock import is_held, process_of
from fairseq_recur.experiments.progress import trained_share, where
from fairseq_recur.experiments.reading import read_about, stored_experiment
from fairseq_recur.experiments.runs import SystemRun, runs_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("work_dir", metavar="DIR", help="folder of the experiment")


def run(args: argparse.Namespace) -> int:
    """Print the state of each run, and the table of the finished runs."""
    work = Path(args.work_dir)
    about = read_about(work)
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
