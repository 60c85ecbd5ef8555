"""Train every system on every length and number of samples, and write accuracies and curves.

    python run.py [table]

Finished trainings are kept, and unfinished ones continue from their last checkpoint. With `table`,
nothing is trained. README.md explains the settings.
"""

import os
import sys
from pathlib import Path

import curves
import samples
from trainings import HERE, CopyRun, copy_runs, read_settings

from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.grid import do_what_is_left
from fairseq_recur.experiments.progress import say


def main(arguments: list[str]) -> int:
    """Run everything; return 0, or 1 if a training failed, 2 for wrong settings, 130 if stopped."""
    try:
        settings = read_settings()
        if arguments not in ([], ["table"]):
            raise ConfigError(f"run.sh {' '.join(arguments)}; expected bash run.sh [table]")
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    work = Path(os.environ.get("WORK", HERE / "work")).resolve()
    runs = list(copy_runs(settings, work))
    failed: list[str] | None = []

    def finished(run: CopyRun) -> None:
        result = curves.of_run(run)
        say(f"  accuracy {result['last']:.3f}; {result['seconds']} s")
        curves.write(runs, settings, work)

    if not arguments:
        for run in runs:
            samples.write(run.data, run.length, run.samples)
        failed = do_what_is_left(runs, settings.jobs, work, finished)
        if failed is None:
            return 130
    results = curves.write(runs, settings, work)["runs"]
    if results:
        curves.draw(results, work / "figure.png")
    print("\n" + curves.summary(results) + "\n")
    print(f"Everything is in {work}: results.md, results.json, figure.png, and the runs.")
    for run in runs:
        if run.name in failed:
            print(f"failed: {run.name}, see {run.folder}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    if {"-h", "--help"} & {*sys.argv}:
        print(__doc__)
        sys.exit()
    sys.exit(main(sys.argv[1:]))
