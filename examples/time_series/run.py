"""Train every system on every cell of the table, several at a time, and print the table.

    python run.py [table | linear]

Finished trainings are kept, and unfinished ones continue from their last checkpoint. With `table`
and `linear`, nothing is trained; `linear` fits the linear forecasts of all cells. README.md
explains the settings.
"""

import os
import sys
from pathlib import Path

import errors
from cells import HERE, SeriesRun, read_settings, series_runs

from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.grid import run_and_report
from fairseq_recur.experiments.progress import say


def main(arguments: list[str]) -> int:
    """Run everything; return 0, or 1 if a training failed, 2 for wrong settings, 130 if stopped."""
    try:
        settings = read_settings()
        if arguments not in ([], ["table"], ["linear"]):
            words = " ".join(arguments)
            raise ConfigError(f"run.sh {words}; expected bash run.sh [table | linear]")
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    work = Path(os.environ.get("WORK", HERE / "work")).resolve()
    runs = list(series_runs(settings, work))

    def finished(run: SeriesRun) -> None:
        found = errors.of_run(run)
        say(f"  MSE {found['mse']:.3f}, MAE {found['mae']:.3f}; {found['seconds']} s")
        errors.write(runs, settings, work)

    def report() -> str:
        return errors.summary(errors.write(runs, settings, work, arguments == ["linear"]))

    return run_and_report(runs, 0 if arguments else settings.jobs, work, finished, report)


if __name__ == "__main__":
    if {"-h", "--help"} & {*sys.argv}:
        print(__doc__)
        sys.exit()
    sys.exit(main(sys.argv[1:]))
