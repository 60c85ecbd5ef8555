"""Train every system on every language of a folder, and write one table over the languages.

Finished runs are kept, and unfinished ones continue from their last checkpoint.
"""

import argparse
import hashlib
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import data
import elsewhere
import report

from fairseq_recur.cli import experiment_check
from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.grid import do_what_is_left
from fairseq_recur.experiments.progress import say
from fairseq_recur.experiments.reading import ABOUT, read_about, read_experiment, stored
from fairseq_recur.experiments.results import all_runs, write_results
from fairseq_recur.experiments.runner import Stopped, places, stoppable
from fairseq_recur.experiments.runs import SystemRun, runs_of
from fairseq_recur.experiments.settings import Experiment
from fairseq_recur.experiments.steps import LOCK
from fairseq_recur.files import read_json, write_json
from fairseq_recur.locks import hold

HERE = Path(__file__).resolve().parent
SETTINGS = HERE / "settings"
SOURCE = "source.json"
"""The file of a work folder that names the folder of its data."""


@dataclass(frozen=True)
class LanguageRun(SystemRun):
    """A training of one language; `work` is the folder of the language's experiment."""

    @property
    def name(self) -> str:
        """Name of the run in messages."""
        return f"{self.work.name} {super().name}"

    def complete(self, step: str) -> None:
        """Remove the checkpoints after decoding: all would take tens of gigabytes."""
        super().complete(step)
        if step == "generate":
            for path in self.folder.glob("checkpoint*.pt"):
                if path != self.model:
                    path.unlink()


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser("bash examples/g2p/run.sh", description=__doc__)
    found.add_argument("folder", type=Path, help="folder with LANG_train.tsv, _dev and _test")
    found.add_argument("--languages", nargs="+", default=[], metavar="LANG", help="only these")
    found.add_argument("--systems", nargs="+", default=[], metavar="SYSTEM", help="only these")
    found.add_argument("--seeds", nargs="+", type=int, default=[], metavar="N", help="other seeds")
    found.add_argument(
        "--settings",
        default="sigmorphon2020",
        metavar="NAME",
        help="a file of settings/, or any FILE.yaml (default: %(default)s)",
    )
    found.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="such as train.lr=0.002"
    )
    found.add_argument("--jobs", type=int, default=2, metavar="N", help="concurrent runs")
    found.add_argument(
        "--work-dir", type=Path, metavar="DIR", help="folder of all results (default: in work/)"
    )
    found.add_argument(
        "--add",
        nargs="+",
        type=Path,
        default=[],
        metavar="RESULTS.json",
        help="results of other machines: they join the table, and are not trained again",
    )
    return found


def settings_file(name: str) -> Path:
    """Return the file of a name, or the file itself.

    Raises:
        ConfigError: there is none
    """
    file = SETTINGS / f"{name}.yaml"
    if file.is_file():
        return file
    if not name.endswith(".yaml") or not Path(name).is_file():
        known = ", ".join(path.stem for path in sorted(SETTINGS.glob("*.yaml")))
        raise ConfigError(
            f"--settings {name}: expected {known}, or an existing file with the suffix .yaml"
        )
    return Path(name)


def prepare(
    languages: Sequence[data.Language], settings: Path, args: argparse.Namespace, work: Path
) -> dict[str, Experiment]:
    """Write the data of the languages, and return each language's experiment.

    Raises:
        ConfigError: the folder has other data, or the settings are wrong
    """
    data.check_prepared(languages, work)
    experiments = {}
    for language in languages:
        folder = work / language.name
        say(data.prepare(language, folder))
        files = [HERE / "systems.yaml", settings, folder / "data.yaml"]
        experiments[language.name] = read_experiment(files, args.set)
        about = {
            **(read_json(folder / ABOUT) or {"parameters": {}}),
            **stored([str(file) for file in files], args.set, folder),
            "systems": args.systems,
            "seeds": args.seeds,
        }
        write_json(folder / ABOUT, about)
    return experiments


def runs_from(
    experiments: dict[str, Experiment], work: Path, args: argparse.Namespace
) -> list[LanguageRun]:
    """Return all runs; the first seed of all languages and systems comes first."""
    seeds = args.seeds or next(iter(experiments.values())).seeds
    return [
        LanguageRun(run.experiment, run.system, run.seed, run.work)
        for seed in dict.fromkeys(seeds)
        for name, experiment in experiments.items()
        for run in runs_of(experiment, work / name, args.systems, [seed])
    ]


def write_language(experiment: Experiment, folder: Path) -> None:
    """Write the table of a language, with the sizes of its models."""
    about = read_about(folder)
    about["parameters"] = {
        run.system.name: report.parameters(run) for run in done(experiment, folder)
    }
    write_json(folder / ABOUT, about)
    write_results(experiment, folder, about)


def done(experiment: Experiment, folder: Path) -> list[SystemRun]:
    """Return the finished runs of a language."""
    return [run for run in all_runs(experiment, folder) if run.finished()]


def is_written(experiment: Experiment, folder: Path) -> bool:
    """Return whether the table of a language has what is finished, as the settings want it now.

    A kill may have come before it was written, or its baseline may have been another.
    """
    results = read_json(folder / "results.json") or {"runs": [], "experiment": None}
    finished = {tuple(run.key("train")) for run in done(experiment, folder)}
    written = {tuple(run["command"]) for run in results["runs"]}
    return finished == written and results["experiment"] == experiment.as_record()


def not_among(added: Sequence[report.Results], runs: Sequence[LanguageRun]) -> list[LanguageRun]:
    """Return the runs that the added results do not have, and those that are finished here.

    Raises:
        ConfigError: there are none
    """
    known = {
        (name, run["system"], run["seed"])
        for name in {run.work.name for run in runs}
        for run in elsewhere.runs(added, name)
    }
    kept = [r for r in runs if r.finished() or (r.work.name, r.system.name, r.seed) not in known]
    if not kept:
        raise ConfigError(
            "--add: these results have all of the runs; leave it out, or choose more seeds"
        )
    return kept


def default_work(data_folder: Path, settings: Path) -> Path:
    """Return the folder of all output: work/FOLDER_SETTINGS next to this file.

    If that belongs to another folder of data with this name, a checksum of the path is added.
    """
    found = HERE / "work" / f"{data_folder.resolve().name}_{settings.stem}"
    before = read_json(found / SOURCE)
    if before is None or not Path(before["folder"]).is_dir():  # none yet, or it was moved
        return found
    path = str(data_folder.resolve())
    if path == before["folder"]:
        return found
    return found.with_name(f"{found.name}_{hashlib.sha256(path.encode()).hexdigest()[:8]}")


def work_on(
    runs: Sequence[LanguageRun],
    work: Path,
    experiments: dict[str, Experiment],
    jobs: int,
    devices: list[str],
    command: str,
    added: Sequence[report.Results],
) -> int:
    """Do what is left; return 0, or 1 if a run failed, or 130 after a signal."""

    def finished(run: LanguageRun) -> None:
        write_language(run.experiment, run.work)
        report.write(work, experiments, command, pooled=False, added=added)

    try:
        with stoppable():
            experiment_check.check(runs)
        failed = do_what_is_left(runs, jobs, work, finished, devices)
        with stoppable():
            for folder, experiment in {run.work: run.experiment for run in runs}.items():
                if not is_written(experiment, folder):
                    write_language(experiment, folder)
            table = report.write(work, experiments, command, pooled=True, added=added)
    except Stopped as stopped:
        return stopped.report()
    print(f"\n{table}")
    print(f"Everything is in {work}")
    for name in failed:
        print(f"{name} failed; see its folder", file=sys.stderr)
    return 1 if failed else 0


def main(words: Sequence[str]) -> int:
    """Run everything; return the exit status, 2 for wrong input."""
    args = parser().parse_args(words)
    command = shlex.join(["bash", "examples/g2p/run.sh", *words])
    if form := os.environ.get("NORMALIZATION", ""):
        command = f"NORMALIZATION={form} {command}"
    try:
        settings = settings_file(args.settings)
        languages = data.read(args.folder, args.languages, form or "NFC")
        work = (args.work_dir or default_work(args.folder, settings)).resolve()
        lock = hold(work / LOCK)
        if lock is None:
            raise ConfigError(f"{work} is in use by another run; wait, or use another --work-dir")
        with lock:
            experiments = prepare(languages, settings, args, work)
            write_json(work / SOURCE, {"folder": str(args.folder.resolve())})
            counts = {language.name: language.counts() for language in languages}
            added = elsewhere.read(args.add, experiments, counts)
            runs = not_among(added, runs_from(experiments, work, args))
            jobs, devices = places(args.jobs, runs[0])
            return work_on(runs, work, experiments, jobs, devices, command, added)
    except (ConfigError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
