"""The results of an experiment: results.json with everything, and a table."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sacrebleu.metrics.base import Metric

from fairseq_recur.experiments import machine
from fairseq_recur.experiments.runs import SystemRun, runs_of
from fairseq_recur.experiments.settings import Experiment
from fairseq_recur.experiments.speed import measured
from fairseq_recur.experiments.table import table
from fairseq_recur.experiments.training_log import read_log
from fairseq_recur.files import write_json, write_text
from fairseq_recur.scoring.comparison import BOTH, RANDOMIZATION, corrected
from fairseq_recur.scoring.generation import read_hypotheses, read_lines
from fairseq_recur.scoring.mean_metric import MeanMetric
from fairseq_recur.scoring.metrics import score_corpus
from fairseq_recur.scoring.pooled import compare_pooled, statistics
from fairseq_recur.scoring.significance import compare_systems

Metrics = list[Metric | MeanMetric]


def write_results(experiment: Experiment, work: Path, about: dict[str, Any]) -> None:
    """Score all translations in the folder, also those of earlier calls; write both files.

    Args:
        work: the experiment's folder; results.json and table.md are written there
        about: how it was started (``set``), and the numbers of ``parameters``
    """
    write_both(collect(experiment, all_runs(experiment, work), about, work), work)


def write_both(results: dict[str, Any], folder: Path) -> None:
    """Write results.json and table.md."""
    write_json(folder / "results.json", results)
    write_text(folder / "table.md", table(results))


def all_runs(experiment: Experiment, work: Path) -> list[SystemRun]:
    """Return the runs of every seed that has a folder, whether it is requested now or not."""
    folders = [p for name in experiment.systems for p in (work / name).glob("seed*")]
    seeds = sorted({int(p.name[4:]) for p in folders if p.name[4:].isdigit()})
    return [run for seed in seeds for run in runs_of(experiment, work.resolve(), (), (seed,))]


def collect(
    experiment: Experiment, every: Sequence[SystemRun], about: dict[str, Any], work: Path
) -> dict[str, Any]:
    """Return the content of results.json, of all runs that are finished."""
    references = [read_lines(file) for file in experiment.score.reference]
    metrics = experiment.score.built
    runs, comparisons = [], []
    outputs_of: dict[str, dict[int, list[str]]] = {}
    for seed in dict.fromkeys(run.seed for run in every):
        done = [run for run in every if run.seed == seed and run.finished()]
        texts = {r.system.name: read_hypotheses(r.output, len(references[0])) for r in done}
        for name, lines in texts.items():
            outputs_of.setdefault(name, {})[seed] = lines
        runs += [of_run(run, texts[run.system.name], references, metrics) for run in done]
        for compared in compare_rows(experiment, texts, references, metrics):
            draws = {"draws_seed": compared.pop("seed")}
            comparisons.append({"seed": seed, **draws, **compared})
    outputs = [
        {"system": name, **_scores(read_lines(file), references, metrics)}
        for name, file in experiment.score.outputs.items()
    ]
    return {
        "title": experiment.title,
        "set": about["set"],
        **machine.trained_with([run.training for run in every if run.finished()]),
        "commit": machine.commit(),
        "experiment": experiment.as_record(),
        "parameters": about["parameters"],
        "outputs": outputs,
        "runs": runs,
        "comparisons": comparisons,
        "pooled": list(compare_seeds(experiment, outputs_of, references, metrics)),
        "speed": measured([run for run in every if run.finished()]),
    }


def of_run(
    run: SystemRun, texts: list[str], references: list[list[str]], metrics: Metrics
) -> dict[str, Any]:
    """Return the scores of a run, and how its training went."""
    log, state = read_log(run.training.folder / "train.log"), run.training.state()
    updates, epochs, _ = log.timeline[-1]
    valid = log.curve("valid_loss")
    return {
        "system": run.system.name,
        "seed": run.seed,
        **_scores(texts, references, metrics),
        "updates": updates,
        "epochs": round(epochs, 2),
        "averaged": state.get("average", {}).get("averaged"),
        "valid_loss": [[u, round(loss, 4)] for u, loss in valid],
        "observed": {
            name: [[u, float(f"{value:.4g}")] for u, value in points]
            for name, points in log.of_layers().items()
        },
        "train_seconds": round(state["train"]["seconds"]),
        "commit": state["train"]["commit"],
        "command": run.training.relative(state["train"]["key"]),
    }


def _scores(
    texts: list[str], references: list[list[str]], metrics: Metrics
) -> dict[str, dict[str, Any]]:
    """Return a text's scores, their signatures, and the number of decimals to show."""
    scores = score_corpus(texts, references, metrics)
    return {
        "scores": {s.name: s.value for s in scores},
        "signatures": {s.name: s.signature for s in scores},
        "decimals": {s.name: s.decimals for s in scores},
    }


def groups(experiment: Experiment) -> dict[str, list[str]]:
    """Return the rows that are compared with the baseline, and with each other control."""
    names = experiment.systems
    found = {experiment.baseline: [name for name in names if name != experiment.baseline]}
    for name, system in names.items():
        if system.compare_with not in (None, experiment.baseline):
            found.setdefault(system.compare_with, []).append(name)
    return found


def compare_rows(
    experiment: Experiment,
    texts: dict[str, list[str]],
    references: list[list[str]],
    metrics: Metrics,
) -> Iterator[dict[str, Any]]:
    """Test one seed's systems against the baseline, and against the rows they name, of that seed.

    Each group is corrected for its number of systems.
    """
    samples = experiment.score.samples
    for control, names in groups(experiment).items():
        chosen = {name: texts[name] for name in (control, *names) if name in texts}
        if control in chosen and len(chosen) > 1:
            yield asdict(compare_systems(chosen, references, metrics, control, BOTH, samples))


def compare_seeds(
    experiment: Experiment,
    outputs: dict[str, dict[int, list[str]]],
    references: list[list[str]],
    metrics: Metrics,
) -> Iterator[dict[str, Any]]:
    """Test each system that shares two or more seeds with its control, over all these together.

    Each group is corrected for its number of systems.

    Args:
        experiment: with the controls and the number of samples
        outputs: {system: {seed: a line for each source}}
        references: of the test set
        metrics: of the experiment
    """
    for control, names in groups(experiment).items():
        seeds = {n: sorted(outputs.get(n, {}).keys() & outputs.get(control, {})) for n in names}
        seeds = {name: common for name, common in seeds.items() if len(common) > 1}
        for metric in metrics if seeds else []:
            known = {
                (name, seed): statistics(metric, outputs[name][seed], references)
                for name in (control, *seeds)
                for seed in outputs[name]
            }
            found = {
                name: compare_pooled(
                    [known[name, seed] for seed in common],
                    [known[control, seed] for seed in common],
                    metric,
                    experiment.score.samples,
                )
                for name, common in seeds.items()
            }
            p = corrected({name: result.p for name, result in found.items()}, RANDOMIZATION)
            yield {
                "baseline": control,
                "metric": next(iter(found.values())).metric,
                "samples": experiment.score.samples,
                "systems": [
                    {
                        "system": name,
                        "seeds": seeds[name],
                        "difference": result.difference,
                        "p": result.p,
                        "corrected": p[name],
                    }
                    for name, result in found.items()
                ],
            }
