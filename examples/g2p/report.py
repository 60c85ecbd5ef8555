"""One table over the languages: macro averages, the winner on each language, and tests."""

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import elsewhere
import table
from differences import average, common_seeds, difference

from fairseq_recur.experiments.added import origins
from fairseq_recur.experiments.machine import united
from fairseq_recur.experiments.progress import say
from fairseq_recur.experiments.runs import SystemRun
from fairseq_recur.experiments.settings import Experiment
from fairseq_recur.files import read_json, write_json, write_text
from fairseq_recur.scoring.comparison import BOOTSTRAP, RANDOMIZATION, corrected
from fairseq_recur.scoring.generation import read_hypotheses, read_lines
from fairseq_recur.scoring.significance import compare_systems

METRICS = table.METRICS
Results = table.Results

OfLanguages = dict[str, Results]
"""The results of languages, by name."""


def parameters(run: SystemRun) -> int:
    """Return the number of a model's parameters, from the log of its training."""
    log = (run.folder / "train.out").read_text(encoding="utf-8", errors="replace")
    return int(re.findall(r"num\. shared model params: ([\d,]+)", log)[-1].replace(",", ""))


def finished(work: Path, experiments: dict[str, Experiment]) -> OfLanguages:
    """Return the results of some languages of a folder, which may have others.

    A language whose stored results have other settings or flags is left out, with a message, until
    it is written anew.

    Args:
        work: with a folder for each language's experiment
        experiments: of these languages
    """
    here = next(iter(experiments.values())).as_record()
    files = {name: read_json(work / name / "results.json") for name in sorted(experiments)}
    return {
        name: own for name, own in files.items() if own and own["runs"] and fits(name, own, here)
    }


def collect(
    work: Path,
    experiments: dict[str, Experiment],
    done: OfLanguages,
    command: str,
    added: Sequence[Results] = (),
) -> Results:
    """Return the results over some languages of a folder.

    Args:
        work: with a folder for each language's experiment
        experiments: of these languages
        done: what is finished of them
        command: how the results were made
        added: results that join them; of the same seed and system, those of the folder count

    Returns:
        ``languages`` with their counts; ``systems``, each with ``scores`` (metric, language, seed),
        ``parameters`` by language, and where all languages are done ``seeds``, ``macro`` averages,
        the languages on which it is ``lowest``, and ``compared`` with the baseline
    """
    names = sorted(experiments)
    here = experiments[names[0]].as_record()
    baseline = here["baseline"]
    runs = {name: runs_on(name, done.get(name), added) for name in names}
    systems = {s["name"]: of_system(s, runs) for s in here["systems"]}
    whole = {name: system for name, system in systems.items() if system["seeds"]}
    common = common_seeds(whole)
    for metric in METRICS:
        for name in names if common else ():
            values = {
                system: average(found["scores"][metric][name], common)
                for system, found in whole.items()
            }
            for system, value in values.items():
                if value == min(values.values()):
                    whole[system]["lowest"][metric].append(name)
        compare(whole, baseline, metric)
    kept = ("train", "generate", "checkpoint", "seeds")
    return {
        "title": "Grapheme-to-phoneme conversion",
        "command": command,
        "commits": sorted({run["commit"] for results in done.values() for run in results["runs"]}),
        **united(list(done.values())),
        "added": origins(added),
        "settings": {key: here[key] for key in kept},
        "signatures": signatures(done, added),
        "baseline": baseline,
        "languages": {n: read_json(work / n / "data/prepared.json")["counts"] for n in names},
        "systems": systems,
    }


def signatures(done: dict[str, Results], added: Sequence[Results]) -> dict[str, str]:
    """Return each metric's signature; if the runs have several, all of them in one string."""
    of_runs = [run["signatures"] for own in done.values() for run in own["runs"]]
    found: dict[str, dict[str, None]] = {}
    for one in [*of_runs, *(results.get("signatures", {}) for results in added)]:
        for metric, texts in one.items():
            found.setdefault(metric, {}).update(dict.fromkeys(texts.split(", ")))
    return {metric: ", ".join(texts) for metric, texts in found.items()}


def fits(language: str, own: Results, here: Results) -> bool:
    """Return whether stored results were made with the present settings; say why not.

    Args:
        language: whose results they are
        own: the results of its folder
        here: the present experiment, as a record
    """
    there, trained = own["experiment"], {run["system"] for run in own["runs"]}
    flags = {s["name"]: s["flags"] for s in there["systems"] if s["name"] in trained}
    found = elsewhere.unlike(there, flags, here)
    if found:
        say(f"{language} is left out of the table: it {' and '.join(found)}")
    return not found


def runs_on(language: str, own: Results | None, added: Sequence[Results]) -> list[Results]:
    """Return the runs on a language, sorted by seed: those of its folder, and the added others."""
    runs = {}
    for run in elsewhere.runs(added, language):
        runs[run["system"], run["seed"]] = run
    for run in own["runs"] if own else []:
        size = own["parameters"].get(run["system"])
        runs[run["system"], run["seed"]] = {**run, "parameters": size}
    return sorted(runs.values(), key=lambda run: run["seed"])


def of_system(system: dict[str, Any], all_runs: dict[str, list[Results]]) -> Results:
    """Return a system's scores on all languages, and their averages for the complete seeds."""
    runs = {
        name: [run for run in of_one if run["system"] == system["name"]]
        for name, of_one in all_runs.items()
    }
    scores = {
        metric: {n: {str(r["seed"]): r["scores"][metric] for r in of} for n, of in runs.items()}
        for metric in METRICS
    }
    first = scores["WER"].values()
    seeds = [s for s in next(iter(first)) if all(s in of for of in first)]
    found: Results = {
        "flags": system["flags"],
        "parameters": {n: of_one[-1]["parameters"] for n, of_one in runs.items() if of_one},
        "scores": scores,
        "seconds": sum(run.get("train_seconds", 0) for of_one in runs.values() for run in of_one),
        "seeds": seeds,
        "macro": {},
        "lowest": {metric: [] for metric in METRICS},
        "compared": {},
    }
    if seeds:
        for metric, of_language in scores.items():
            values = {s: mean(of_one[s] for of_one in of_language.values()) for s in seeds}
            found["macro"][metric] = {"mean": mean(values.values()), "seeds": values}
            if len(seeds) > 1:
                found["macro"][metric]["sd"] = stdev(values.values())
    return found


def compare(systems: Results, baseline: str, metric: str) -> None:
    """Add each system's differences from the baseline, and the test over the languages."""
    if baseline not in systems:
        return
    p = {}
    for name, system in systems.items():
        seeds = [seed for seed in systems[baseline]["seeds"] if seed in system["seeds"]]
        if name == baseline or not seeds:
            continue
        scores = (systems[one]["scores"][metric] for one in (name, baseline))
        system["compared"][metric] = difference(*scores, seeds)
        p[name] = system["compared"][metric]["p"]
    for name, value in corrected(p, RANDOMIZATION).items():
        systems[name]["compared"][metric]["corrected"] = value


def pool(work: Path, results: Results, done: OfLanguages) -> None:
    """Add the paired bootstrap over the words of all languages, for each seed trained here.

    The outputs of a seed that was added instead may be there, too, with other settings.
    """
    systems, baseline, names = results["systems"], results["baseline"], list(results["languages"])
    here = {(n, r["system"], str(r["seed"])) for n, own in done.items() for r in own["runs"]}
    references = {
        name: [read_lines(file) for file in sorted((work / name / "data").glob("test.*.phones"))]
        for name in names
    }
    most = max(map(len, references.values()))
    # A language with fewer pronunciations repeats its first, which the metrics count once.
    columns = [
        [line for of_one in references.values() for line in (of_one[n : n + 1] or of_one)[0]]
        for n in range(most)
    ]
    for seed in systems[baseline]["seeds"]:
        texts = {}
        for system, found in systems.items():
            if seed in found["seeds"] and all((name, system, seed) in here for name in names):
                files = [work / name / system / f"seed{seed}" / "test.txt" for name in names]
                counts = [len(references[name][0]) for name in names]
                pairs = zip(files, counts, strict=True)
                texts[system] = [line for file, n in pairs for line in read_hypotheses(file, n)]
        if baseline not in texts or len(texts) < 2:
            continue
        found = compare_systems(texts, columns, ["wer", "per"], baseline, BOOTSTRAP)
        for metric in found.metrics:
            for one in metric.systems[1:]:
                pooled = systems[one.system]["compared"][metric.metric].setdefault("pooled", {})
                pooled[seed] = {"difference": one.difference, "p": one.corrected[BOOTSTRAP]}


def write(
    work: Path,
    experiments: dict[str, Experiment],
    command: str,
    pooled: bool,
    added: Sequence[Results] = (),
) -> str:
    """Write results.json and table.md, and at the end figure.png.

    Args:
        work: with a folder for each language's experiment
        experiments: of the languages in the table
        command: how the results were made
        pooled: whether to draw the figure and do the bootstrap over all words, which take seconds
        added: results that join them

    Returns:
        the table
    """
    done = finished(work, experiments)
    if not done:
        return "Nothing is finished yet."
    results = collect(work, experiments, done, command, added)
    if pooled and results["systems"][results["baseline"]]["seeds"]:
        pool(work, results, done)
    write_json(work / "results.json", results)
    text = table.table(results)
    write_text(work / "table.md", text)
    if pooled and any(system["compared"] for system in results["systems"].values()):
        table.draw(results, work / "figure.png")
    return text
