"""The results of the trainings: read from their logs, stored with everything that made them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import table
from settings import LanguageRun, Settings
from table import BINS

from fairseq_recur.experiments.records import as_json, provenance
from fairseq_recur.files import write_text


def of_run(run: LanguageRun) -> dict[str, Any]:
    """Return the result of a finished training.

    Returns:
        for each bin the accuracy of whole strings: of the best epoch (``max``), of the last epoch
        (``last``) and of all epochs (``epochs``); and the training's ``seconds`` and ``commit``
    """
    accuracies = {part: run.accuracies(part) for part in BINS}
    result: dict[str, Any] = {
        part: {"max": max(values), "last": values[-1], "epochs": values}
        for part, values in accuracies.items()
    }
    state = run.state()["train"]
    return {**result, "seconds": round(state["seconds"]), "commit": state["commit"]}


def in_words(result: dict[str, Any]) -> str:
    """Describe a result in a line."""
    parts = [
        f"bin {part[-1]} {result[part]['max']:.3f}, last {result[part]['last']:.3f}"
        for part in BINS
    ]
    return "; ".join([*parts, f"{result['seconds']} s"])


def collect(runs: Sequence[LanguageRun]) -> table.Results:
    """Return the results of all finished trainings."""
    results: table.Results = {}
    for run in runs:
        if run.finished():
            of_system = results.setdefault(run.row, {}).setdefault(run.system, {})
            of_system[str(run.seed)] = of_run(run)
    return results


def write(runs: Sequence[LanguageRun], settings: Settings, work: Path) -> dict[str, Any]:
    """Write results.json and results.md if there is a result; return the content of the first."""
    results = collect(runs)
    report = {
        **provenance(settings.as_dict(), ["bash", "examples/regular_languages/run.sh"], runs),
        "counts": table.counts(results, table.read_expected()),
        "runs": results,
    }
    if results:
        write_text(work / "results.json", as_json(report))
        write_text(work / "results.md", as_page(report))
    return report


def as_page(report: dict[str, Any]) -> str:
    """Write the table, and how it was made, in Markdown."""
    made = "\n".join(f"- {name}: {value}" for name, value in report["versions"].items())
    single = [
        f"| {table.NAMES[language]} | {system} | {seed} | "
        + " | ".join(f"{run[p][kind]:.4f}" for p in BINS for kind in ("max", "last"))
        + f" | {run['seconds']} | {run['commit']} |"
        for language, systems in report["runs"].items()
        for system, seeds in systems.items()
        for seed, run in seeds.items()
    ]
    return f"""# Regular languages

{table.summary(report["runs"], markdown=True)}

## How it was made

    {report["command"]}

- commit: {report["commit"]} (each run: below)
- machine: {report["machine"]}
{made}

## Every run

| language | system | seed | bin 0: max | last | bin 1: max | last | seconds | commit |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |
{chr(10).join(single)}
"""
