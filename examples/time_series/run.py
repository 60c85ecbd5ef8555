"""Train every system on every cell of the table, several at a time, and print the table.

    python run.py [table | linear | heads [table] | gates [table]]

Finished trainings are kept, and unfinished ones continue from their last checkpoint. With `table`
and `linear`, nothing is trained; `linear` fits the linear forecasts of all cells. `heads` and
`gates` are the paper's ablations. README.md explains the settings.
"""

import os
import sys
from pathlib import Path

import ablations
import errors
from cells import HERE, SeriesRun, check_files, read_settings, refuse_unused, series_runs

from fairseq_recur.cli.training_check import check_cells
from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.grid import run_and_report
from fairseq_recur.experiments.progress import say
from fairseq_recur.experiments.runner import places


def main(arguments: list[str]) -> int:
    """Run everything; return 0, or 1 if a training failed, 2 for wrong settings, 130 if stopped."""
    what = arguments[0] if arguments and arguments[0] in ablations.RUNS else ""
    work = Path(os.environ.get("WORK") or HERE / "work").resolve() / what
    try:
        settings = read_settings()
        rest = arguments[1:] if what else arguments
        if rest not in ([], ["table"]) and arguments != ["linear"]:
            words = " ".join(arguments)
            raise ConfigError(
                f"run.sh {words}; expected bash run.sh [table | linear | heads | gates], and "
                "table after the last two"
            )
        refuse_unused(settings, what)
        check_files(ablations.etth1(settings) if what else settings.chosen(), settings.data)
        runs = list((ablations.RUNS[what] if what else series_runs)(settings, work))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2

    def finished(run: SeriesRun) -> None:
        found = errors.of_run(run)
        say(f"  MSE {found['mse']:.3f}, MAE {found['mae']:.3f}; {found['seconds']} s")
        report()

    def report() -> str:
        if what:
            return ablations.write(what, runs, settings, work)
        return errors.summary(errors.write(runs, settings, work, arguments == ["linear"]))

    trains = not {"table", "linear"} & {*arguments}
    jobs, devices = places(settings.jobs, runs[0])
    return run_and_report(runs, jobs if trains else 0, work, finished, report, devices, check_cells)


if __name__ == "__main__":
    if {"-h", "--help"} & {*sys.argv}:
        print(__doc__)
        sys.exit()
    sys.exit(main(sys.argv[1:]))
