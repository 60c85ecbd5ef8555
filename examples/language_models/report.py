"""The results of the runs: gathered, stored with everything that made them, and as a table."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from elsewhere import result_of
from settings import BASELINES, Settings, TextRun
from text import Text

from fairseq_recur.experiments.added import Results, origins
from fairseq_recur.experiments.machine import trained_with, united
from fairseq_recur.experiments.records import provenance
from fairseq_recur.experiments.table import spread
from fairseq_recur.files import write_json, write_text
from fairseq_recur.scoring.tables import markdown

WHOLE = "100"
"""The share of the training text that all systems read."""
DIGITS = {"perplexity": 2, "bpc": 4}
"""Decimals of each measure."""

Seeds = dict[str, dict[str, Any]]
"""seed -> result."""


def about(settings: Settings, text: Text, folder: str) -> Results:
    """Return what the results depend on.

    Args:
        settings: of the environment
        text: of the folder
        folder: as in the command
    """
    words = ["bash", "examples/language_models/run.sh", folder]
    of_text = {**text.counts(), "digest": text.digest}
    made = {**provenance(settings.as_dict(), words), "text": of_text}
    if settings.add:
        made["command"] = f"ADD={shlex.quote(' '.join(settings.add))} {made['command']}"
    return made


def write(
    runs: Sequence[TextRun], about: Results, work: Path, added: Sequence[Results] = ()
) -> Results:
    """Write results.json and results.md if there is a result; return the content of the first.

    Its ``runs`` are by share of the training text, system and seed. Of a run that is finished here
    and elsewhere, the result of here counts.
    """
    found: dict[str, dict[str, Seeds]] = {}
    for run in runs:
        result = run.result() if run.finished() else result_of(added, run)
        if result is not None:
            found.setdefault(run.share, {}).setdefault(run.system, {})[str(run.seed)] = result
    others = origins(added)
    here = [trained_with(runs)] if not added or any(run.trained() for run in runs) else []
    results = {**about, **united([*here, *others]), "added": others, "runs": found}
    if found:
        write_json(work / "results.json", results)
        write_text(work / "results.md", f"# Small language models\n\n{table(results)}\n")
    return results


def measure(results: Results) -> str:
    """Return what is compared: "perplexity" of words, "bpc" of characters."""
    return "perplexity" if results["settings"]["UNITS"] == "words" else "bpc"


def values(of_seeds: Seeds, name: str) -> list[float]:
    """Return a measure of all seeds."""
    return [result[name] for result in of_seeds.values()]


def gates(of_seeds: Seeds) -> dict[str, float]:
    """Return each layer's gate, averaged over the seeds; empty without a mixture."""
    layers = next(iter(of_seeds.values()))["gates"]
    return {n: mean(result["gates"][n] for result in of_seeds.values()) for n in layers}


def difference(of_systems: dict[str, Seeds], system: str, name: str) -> float | None:
    """Return the mean difference from the same model without the mixture, over common seeds."""
    base = of_systems.get(BASELINES.get(system, ""), {})
    own = of_systems[system]
    found = [own[seed][name] - base[seed][name] for seed in own if seed in base]
    return mean(found) if found else None


def table(results: Results) -> str:
    """Write a row for each share of the text and system in Markdown, and notes; or nothing."""
    runs, name = results["runs"], measure(results)
    if not runs:
        return ""
    everyone = [of_seeds for of_systems in runs.values() for of_seeds in of_systems.values()]
    layers = sorted({n for of_seeds in everyone for n in gates(of_seeds)}, key=int)
    header = ["training text", "system", "seeds", "parameters", name, "by seed", "difference"]
    rows = [[*header, "mean gate", *(f"layer {n}" for n in layers)]]
    for share, of_systems in runs.items():
        for system, of_seeds in of_systems.items():
            apart, by_layer = difference(of_systems, system, name), gates(of_seeds)
            found, digits = values(of_seeds, name), DIGITS[name]
            rows.append(
                [
                    f"{share} %",
                    system,
                    ", ".join(of_seeds),
                    f"{next(iter(of_seeds.values()))['parameters']:,}",
                    spread(found, digits),
                    ", ".join(f"{value:.{digits}f}" for value in found),
                    "" if apart is None else f"{apart:+.{digits}f}",
                    f"{mean(by_layer.values()):.3f}" if by_layer else "",
                    *(f"{by_layer[n]:.3f}" if n in by_layer else "" for n in layers),
                ]
            )
    return "\n".join([*markdown(rows, names=3), "", *notes(results)])


def notes(results: Results) -> list[str]:
    """Return what the table means, and how it was made."""
    text, settings = results["text"], results["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    commits = {
        result["commit"]
        for of_systems in results["runs"].values()
        for of_seeds in of_systems.values()
        for result in of_seeds.values()
    }
    return [
        f"- {measure(results)} on the test set: mean ± standard deviation over the seeds; the "
        "difference from the same model without the mixture is over the seeds of both",
        f"- the text: {text['train']:,}, {text['valid']:,} and {text['test']:,} tokens "
        f"({settings['UNITS']} and line ends), {text['different']:,} different ones; "
        f"{text['unknown_in_test']:,} of the test set are none of them",
        "- gates: the share of the matrix in a layer's heads, in the evaluated checkpoint",
        *(f"- `{one['command']}`" for one in (results, *results.get("added", []))),
        f"- {results['machine']}; {versions}; trained at commit {', '.join(sorted(commits))}",
    ]
