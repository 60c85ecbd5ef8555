"""The results of the runs: read from their logs, written with all that made them."""

import json
import os
import re
from pathlib import Path
from typing import Any

import table
from settings import Run, Settings

from fairseq_recur.experiments.machine import commit, machine, versions


def accuracies(log: str, part: str) -> list[float]:
    """Return the accuracy on a bin after each epoch, from the log of ``--log-format json``.

    A training that was stopped may have done an epoch twice: the later one counts.
    """
    lines = map(json.loads, re.findall(rf"\| {part} \| (\{{.*\}})$", log, re.M))
    by_epoch = {line["epoch"]: float(line[f"{part}_accuracy"]) for line in lines}
    return [by_epoch[epoch] for epoch in sorted(by_epoch)]


def of_run(run: Run, work: Path) -> dict[str, Any]:
    """Return the result of a finished run.

    Returns:
        for each bin the accuracy of whole strings, of the best epoch (``max``), of the last
        (``last``) and of all (``epochs``); and the ``seconds`` and ``commit`` of the training.
    """
    log = (run.folder(work) / "train.log").read_text(encoding="utf-8", errors="replace")
    result: dict[str, Any] = {}
    for part in table.BINS:
        values = accuracies(log, part)[: run.epochs]
        result[part] = {"max": max(values), "last": values[-1], "epochs": values}
    state = json.loads((run.folder(work) / "run.json").read_text(encoding="utf-8"))
    return {**result, "seconds": round(state["seconds"]), "commit": state["commit"]}


def in_words(result: dict[str, Any]) -> str:
    """Say a run's result in a line."""
    parts = [
        f"bin {part[-1]} {result[part]['max']:.3f}, last {result[part]['last']:.3f}"
        for part in table.BINS
    ]
    return "; ".join([*parts, f"{result['seconds']} s"])


def collect(everything: list[Run], work: Path) -> table.Results:
    """Return the results of all runs that are finished."""
    results: table.Results = {}
    for run in everything:
        path = run.folder(work) / "run.json"
        state = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if state.get("flags") == list(run.flags) and state.get("epochs", 0) >= run.epochs:
            of_system = results.setdefault(run.language, {}).setdefault(run.system, {})
            of_system[str(run.seed)] = of_run(run, work)
    return results


def write(everything: list[Run], work: Path) -> dict[str, Any]:
    """Write results.json and results.md, and return what the first holds."""
    settings = Settings().as_dict()
    changed = [f"{name}='{value}'" for name, value in settings.items() if name in os.environ]
    report = {
        "command": " ".join([*changed, "bash examples/regular_languages/run.sh"]),
        "settings": settings,
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "runs": collect(everything, work),
    }
    work.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=1)
    # The accuracies of all epochs in one line each.
    text = re.sub(r"\[[\d.,\s]+\]", lambda found: " ".join(found[0].split()), text)
    (work / "results.json").write_text(text + "\n", encoding="utf-8")
    (work / "results.md").write_text(as_page(report), encoding="utf-8")
    return report


def as_page(report: dict[str, Any]) -> str:
    """Write the table and what made it as Markdown."""
    made = "\n".join(f"- {name}: {value}" for name, value in report["versions"].items())
    single = [
        f"| {table.NAMES[language]} | {system} | {seed} | "
        + " | ".join(f"{run[p][kind]:.4f}" for p in table.BINS for kind in ("max", "last"))
        + f" | {run['seconds']} | {run['commit']} |"
        for language, systems in report["runs"].items()
        for system, seeds in systems.items()
        for seed, run in seeds.items()
    ]
    return "\n".join(
        [
            "# Regular languages",
            "",
            table.summary(report["runs"], markdown=True),
            "",
            "## How it was made",
            "",
            f"    {report['command']}",
            "",
            f"- commit: {report['commit']} (each run: below)",
            f"- machine: {report['machine']}",
            made,
            "",
            "## Every run",
            "",
            "| language | system | seed "
            "| bin 0: max | last | bin 1: max | last | seconds | commit |",
            "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
            *single,
            "",
        ]
    )
