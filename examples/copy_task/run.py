"""Train every system on every length and number of samples, and write accuracies and curves.

    python run.py [table]

Finished trainings are kept, and unfinished ones continue from their last checkpoint. With `table`,
nothing is trained. README.md explains the settings.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import curves
import figure
import samples
from trainings import HERE, CopyRun, copy_runs, read_settings

from fairseq_recur.cli.training_check import check_cells
from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.grid import run_and_report
from fairseq_recur.experiments.progress import say
from fairseq_recur.experiments.runner import places


def main(arguments: list[str]) -> int:
    """Run everything; return 0, or 1 if a training failed, 2 for wrong settings, 130 if stopped."""
    try:
        settings = read_settings()
        if arguments not in ([], ["table"]):
            raise ConfigError(f"run.sh {' '.join(arguments)}; expected bash run.sh [table]")
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    work = Path(os.environ.get("WORK") or HERE / "work").resolve()
    runs = list(copy_runs(settings, work))

    def finished(run: CopyRun) -> None:
        result = curves.of_run(run)
        say(f"  accuracy {result['last']:.3f}; {result['seconds']} s")
        curves.write(runs, settings, work)

    def check(left: Sequence[CopyRun]) -> None:
        for run in left:
            samples.write(run.data, run.form, run.length, run.samples)
        check_cells(left)

    def report() -> str:
        results = curves.write(runs, settings, work)["runs"]
        if results:
            figure.draw(results, work / "figure.png")
        return curves.summary(results)

    jobs, devices = places(settings.jobs, runs[0])
    return run_and_report(runs, 0 if arguments else jobs, work, finished, report, devices, check)


if __name__ == "__main__":
    if {"-h", "--help"} & {*sys.argv}:
        print(__doc__)
        sys.exit()
    sys.exit(main(sys.argv[1:]))
