"""Train every system on every language, several at a time, and print the table.

    python run.py [table]

Finished trainings are kept, and unfinished ones continue from their last checkpoint. With `table`,
nothing is trained. README.md explains the settings.
"""

import os
import sys
from pathlib import Path

import report
import table
from settings import HERE, LanguageRun, language_runs, read_settings

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
    runs = list(language_runs(settings, work))

    def finished(run: LanguageRun) -> None:
        say(f"  {report.in_words(report.of_run(run))}")
        report.write(runs, settings, work)

    def summary() -> str:
        return table.summary(report.write(runs, settings, work)["runs"])

    jobs, devices = places(settings.jobs, runs[0])
    return run_and_report(
        runs, 0 if arguments else jobs, work, finished, summary, devices, check_cells
    )


if __name__ == "__main__":
    if {"-h", "--help"} & {*sys.argv}:
        print(__doc__)
        sys.exit()
    sys.exit(main(sys.argv[1:]))
