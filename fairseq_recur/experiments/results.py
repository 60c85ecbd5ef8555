"""What came out of an experiment: one file with everything, one table."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from fairseq_recur.experiments import machine
from fairseq_recur.experiments.settings import Experiment
from fairseq_recur.experiments.steps import Run, read_json, write_json
from fairseq_recur.experiments.table import table
from fairseq_recur.experiments.training_log import read_log
from fairseq_recur.scoring.generation import read_hypotheses, read_lines
from fairseq_recur.scoring.metrics import score_corpus
from fairseq_recur.scoring.significance import BOTH, compare_systems


def write_results(experiment: Experiment, work: Path, about: dict[str, Any]) -> None:
    """Score all that has been translated, whichever runs were asked for; write the two files.

    Args:
        experiment: the table
        work: its folder; results.json and table.md are written there
        about: what it was started with, and the numbers of parameters
    """
    results = collect(experiment, work, about)
    write_json(work / "results.json", results)
    (work / "table.md").write_text(table(results), encoding="utf-8")


def collect(experiment: Experiment, work: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Everything that goes into results.json."""
    references = [read_lines(file) for file in experiment.scoring.references]
    seeds = sorted({int(p.name[4:]) for p in work.glob("*/seed*") if p.name[4:].isdigit()})
    runs, comparisons = [], []
    for seed in seeds:
        done = [
            run
            for run in (Run(experiment, s, seed, work.resolve()) for s in experiment.systems)
            if run.finished()
        ]
        texts = {
            r.system.name: read_hypotheses(r.folder / "test.txt", len(references[0])) for r in done
        }
        runs += [of_run(run, texts[run.system.name], references) for run in done]
        compared = _compare(experiment, texts, references)
        if compared is not None:
            comparisons.append({"seed": seed, **compared})
    return {
        "title": experiment.title,
        "set": about["set"],
        "machine": machine.machine(),
        "versions": machine.versions(),
        "commit": machine.commit(),
        "experiment": asdict(experiment),
        "parameters": about["parameters"],
        "runs": runs,
        "comparisons": comparisons,
        "speed": read_json(work / "speed.json"),
    }


def of_run(run: Run, texts: list[str], references: list[list[str]]) -> dict[str, Any]:
    """One run: its scores, and how its training went."""
    scores = score_corpus(texts, references, run.experiment.scoring.build())
    log, state = read_log(run.folder / "train.log"), run.state()
    updates, epochs, _ = log.timeline[-1]
    valid = log.curve("valid_loss")
    return {
        "system": run.system.name,
        "seed": run.seed,
        "scores": {s.name: s.value for s in scores},
        "signatures": {s.name: s.signature for s in scores},
        "decimals": {s.name: s.decimals for s in scores},
        "updates": updates,
        "epochs": round(epochs, 2),
        "valid_loss": [[u, round(loss, 4)] for u, loss in valid],
        "train_seconds": round(state["train"]["seconds"]),
        "commit": state["train"]["commit"],
        "command": state["train"]["key"],
    }


def _compare(
    experiment: Experiment, texts: dict[str, list[str]], references: list[list[str]]
) -> dict[str, Any] | None:
    """Paired tests of one seed's systems against the baseline of that seed."""
    if experiment.baseline not in texts or len(texts) < 2:
        return None
    scoring = experiment.scoring
    found = compare_systems(
        texts, references, scoring.build(), experiment.baseline, BOTH, scoring.samples
    )
    return asdict(found)
