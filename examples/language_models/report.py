"""The results of the runs: gathered, stored with everything that made them, and as tables."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from settings import BASELINES, SYSTEMS, Settings, TextRun

from fairseq_recur.experiments.machine import commit, machine, versions
from fairseq_recur.experiments.runs import write_json
from fairseq_recur.files import write_text

WHOLE = "100"
"""The share of the training text that all systems read."""

Seeds = dict[str, dict[str, Any]]
"""seed -> result."""
Results = dict[str, Any]


def about(settings: Settings, counts: dict[str, int], folder: str) -> Results:
    """Return what the results depend on.

    Args:
        settings: of the environment
        counts: of the text
        folder: of the text, as in the command
    """
    values = settings.as_dict()
    changed = [f"{n}={shlex.quote(value)}" for n, value in values.items() if n in os.environ]
    return {
        "command": " ".join(
            [*changed, "bash examples/language_models/run.sh", shlex.quote(folder)]
        ),
        "settings": values,
        "text": counts,
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
    }


def write(runs: Sequence[TextRun], about: Results, work: Path) -> Results:
    """Write results.json and results.md; return the content of the first.

    Its ``runs`` are by share of the training text, system and seed.
    """
    found: dict[str, dict[str, Seeds]] = {}
    for run in runs:
        if run.finished():
            of_share = found.setdefault(run.row.removeprefix("share"), {})
            of_share.setdefault(run.system, {})[str(run.seed)] = run.result()
    results = {**about, "runs": found}
    write_json(work / "results.json", results)
    write_text(work / "results.md", f"# Small language models\n\n{tables(results)}\n")
    return results


def unit(results: Results) -> str:
    """Return what is measured: "bpc" or "perplexity"."""
    return measure(results["settings"]["UNITS"])


def measure(units: str) -> str:
    """Return the measure of words or of characters."""
    return "perplexity" if units == "words" else "bpc"


def measured(result: dict[str, Any], units: str) -> str:
    """Format a result."""
    name = measure(units)
    return f"{name} {formatted(name, result[name])}"


def formatted(name: str, value: float) -> str:
    """Format a measure, or a difference."""
    return f"{value:.2f}" if name == "perplexity" else f"{value:.4f}"


def values(of_seeds: Seeds, name: str) -> list[float]:
    """Return a measure of all seeds."""
    return [result[name] for result in of_seeds.values()]


def spread(of_seeds: Seeds, name: str) -> str:
    """Format mean and standard deviation; of one seed its value, of none nothing."""
    found = values(of_seeds, name)
    if not found:
        return ""
    more = f" ± {formatted(name, stdev(found))}" if len(found) > 1 else ""
    return formatted(name, mean(found)) + more


def gates(of_seeds: Seeds) -> dict[str, float]:
    """Return each layer's gate, averaged over the seeds; empty without a mixture."""
    layers = next(iter(of_seeds.values()))["gates"] if of_seeds else {}
    return {n: mean(result["gates"][n] for result in of_seeds.values()) for n in layers}


def mean_gate(of_seeds: Seeds) -> str:
    """Format the mean over layers and seeds."""
    found = gates(of_seeds)
    return f"{mean(found.values()):.3f}" if found else ""


def difference(of_systems: dict[str, Seeds], system: str, name: str) -> float | None:
    """Return the mean difference from the same model without the mixture, over common seeds."""
    base = of_systems.get(BASELINES.get(system, ""), {})
    own = of_systems[system]
    found = [own[seed][name] - base[seed][name] for seed in own if seed in base]
    return mean(found) if found else None


def tables(results: Results) -> str:
    """Write the tables in Markdown, and how they were made."""
    runs = results["runs"]
    if not runs:
        return "Nothing is finished yet."
    blocks = [table for table in (of_systems(results), of_shares(results)) if table]
    blocks += [*of_layers(runs), notes(results)]
    return "\n\n".join(blocks)


def of_systems(results: Results) -> str:
    """Write the table of all systems with the whole text."""
    name, found = unit(results), results["runs"].get(WHOLE, {})
    rows = []
    for system in (each for each in SYSTEMS if each in found):
        apart = difference(found, system, name)
        rows.append(
            [
                system,
                f"{next(iter(found[system].values()))['parameters']:,}",
                spread(found[system], name),
                "" if apart is None else f"{'+' * (apart > 0)}{formatted(name, apart)}",
                mean_gate(found[system]),
                ", ".join(found[system]),
            ]
        )
    header = ["system", "parameters", name, "difference", "mean gate", "seeds"]
    return markdown(header, rows) if rows else ""


def of_shares(results: Results) -> str:
    """Write the table of the shares, and what it says of the paper's claims; empty for one."""
    name, runs = unit(results), results["runs"]
    shares = sorted(map(int, runs), reverse=True)
    there = {system for share in shares if str(share) != WHOLE for system in runs[str(share)]}
    systems = [system for system in SYSTEMS if system in there]
    if not systems:
        return ""
    mixed = [system for system in systems if BASELINES.get(system)]
    rows = []
    for share in shares:
        cells = [runs[str(share)].get(system, {}) for system in systems]
        gate_cells = [mean_gate(runs[str(share)].get(system, {})) for system in mixed]
        rows.append([f"{share} %", *(spread(cell, name) for cell in cells), *gate_cells])
    header = ["training text", *(f"{s}: {name}" for s in systems)]
    lines = [markdown([*header, *(f"{s}: mean gate" for s in mixed)], rows)]
    for system in mixed:
        read = [str(n) for n in shares if system in runs[str(n)]]
        apart = [difference(runs[n], system, name) for n in read]
        compared = [d for d in apart if d is not None]
        if compared:
            lines.append(
                f"{system} is below {BASELINES[system]} with {sum(d < 0 for d in compared)} of "
                f"{len(compared)} shares."
            )
        means = [mean(found.values()) for n in read if (found := gates(runs[n][system]))]
        if len(means) > 1:
            steps = list(zip(means, means[1:]))
            lines.append(
                f"The mean gate of {system} grows in {sum(a < b for a, b in steps)} of "
                f"{len(steps)} steps to less text."
            )
    return "\n\n".join(lines)


def of_layers(runs: dict[str, dict[str, Seeds]]) -> list[str]:
    """Write the gates by layer, where there are any: one table."""
    found = {
        (share, system): gates(of_seeds)
        for share in sorted(runs, key=int, reverse=True)
        for system, of_seeds in runs[share].items()
    }
    found = {place: by_layer for place, by_layer in found.items() if by_layer}
    if not found:
        return []
    layers = sorted({n for by_layer in found.values() for n in by_layer}, key=int)
    rows = [
        [system, f"{share} %", *(f"{g[n]:.3f}" if n in g else "" for n in layers)]
        for (share, system), g in found.items()
    ]
    return [markdown(["gates", "training text", *(f"layer {n}" for n in layers)], rows)]


def notes(results: Results) -> str:
    """Write what the tables mean, and how they were made."""
    text, settings = results["text"], results["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    commits = {
        result["commit"]
        for of_share in results["runs"].values()
        for of_seeds in of_share.values()
        for result in of_seeds.values()
    }
    return "\n".join(
        [
            f"- {unit(results)} on the test set: mean ± standard deviation over the seeds; the "
            "difference from the same model without the mixture is over the seeds of both",
            f"- the text: {text['train']:,}, {text['valid']:,} and {text['test']:,} tokens "
            f"({settings['UNITS']} and line ends), {text['different']:,} different ones; "
            f"{text['unknown_in_test']:,} of the test set are none of them",
            "- gates: the share of the matrix in a layer's heads, in the evaluated checkpoint",
            f"- `{results['command']}`",
            f"- {results['machine']}; {versions}; trained at commit {', '.join(sorted(commits))}",
        ]
    )


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table; all columns but the first are numbers."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *rows))
