"""Train small language models on the text of a folder, several at a time, and print the table.

    python run.py FOLDER [table]

Finished runs are kept, and unfinished ones continue from their last checkpoint. With `table`,
nothing is trained. README.md explains the settings.
"""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import elsewhere
import figure
import report
import text
from settings import HERE, TextRun, read_settings, text_runs

from fairseq_recur.cli.training_check import check_cells
from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.grid import run_and_report
from fairseq_recur.experiments.progress import say
from fairseq_recur.experiments.runner import places
from fairseq_recur.experiments.steps import LOCK
from fairseq_recur.locks import hold
from fairseq_recur.plotting.figures import check_output


def main(arguments: list[str]) -> int:
    """Run everything; return 0, or 1 if a run failed, 2 for wrong input, 130 if stopped."""
    trains = len(arguments) == 1
    try:
        settings = read_settings()
        if not trains and (len(arguments) != 2 or arguments[1] != "table"):
            raise ConfigError(f"run.sh {' '.join(arguments)}; expected bash run.sh FOLDER [table]")
        folder = Path(arguments[0])
        found = text.read(folder, settings.units)
        if trains:
            text.check_length(found, min(settings.shares), settings.batch * settings.tokens)
        name = f"{folder.resolve().name}_{settings.units}"
        work = Path(os.environ.get("WORK") or HERE / "work" / name).resolve()
        text.check_prepared(found, work)
        about = report.about(settings, found, arguments[0])
        runs = list(text_runs(settings, work))
        added = elsewhere.read(settings.add, about, runs)
        lock = hold(work / LOCK) if trains else nullcontext()
        if lock is None:
            raise ConfigError(f"{work} is in use by another run; wait, or choose another WORK")
        drawn = work / "figure.png"
        if work.exists():  # always before a training: the lock has made it
            check_output(str(drawn))
    except (ConfigError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with lock:

        def check(left: Sequence[TextRun]) -> None:
            text.prepare(found, sorted(set(settings.shares)), work)
            check_cells(left)

        return work_on(runs, settings.jobs if trains else 0, about, work, drawn, added, check)


def work_on(
    runs: Sequence[TextRun], jobs: int, about: report.Results, work: Path, drawn: Path,
    added: Sequence[report.Results], check: Callable[[Sequence[TextRun]], None],
) -> int:  # fmt: skip
    """Do what is left, and write the results.

    Args:
        runs: all of them
        jobs: number of concurrent runs; 0: train nothing
        about: what the results depend on
        work: folder of all output
        drawn: file of the figure
        added: results that join the table, and are not trained again
        check: called before the first run
    """
    here = [run for run in runs if run.finished() or elsewhere.result_of(added, run) is None]

    def finished(run: TextRun) -> None:
        result = run.result()
        name = report.measure(about)
        say(f"  {name} {result[name]:.{report.DIGITS[name]}f}; {result['seconds']} s")
        report.write(runs, about, work, added)

    def summary() -> str:
        results = report.write(runs, about, work, added)
        if results["runs"]:
            figure.draw(results, drawn)
        return report.table(results)

    devices = places(None, runs[0])[1]
    return run_and_report(here, jobs, work, finished, summary, devices, check)


if __name__ == "__main__":
    if {"-h", "--help"} & {*sys.argv}:
        print(__doc__)
        sys.exit()
    sys.exit(main(sys.argv[1:]))
