"""The results of the trainings, as JSON and as a table."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from trainings import CopyRun, Settings

from fairseq_recur.experiments.records import as_json, provenance
from fairseq_recur.files import write_text
from fairseq_recur.scoring import tables

LEARNED = 0.99
HEADER = ["length", "samples", "system", "accuracy", f"updates to {LEARNED}", "loss", "seeds"]

Results = list[dict[str, Any]]


def of_run(run: CopyRun) -> dict[str, Any]:
    """Return the result of a finished training.

    Returns:
        its cell and seed; the ``accuracy`` after each epoch and the ``loss`` in training, each a
        curve of ``updates`` and ``values``; ``last``, the last accuracy; ``learned``, the updates
        after which the accuracy was first `LEARNED`, or None; ``seconds`` and ``commit``
    """
    accuracies, state = run.accuracies(), run.state()["train"]
    curves = {"accuracy": accuracies, "loss": run.losses(accuracies[-1][0])}
    return {
        **{name: getattr(run, name) for name in ("length", "samples", "system", "seed")},
        "last": accuracies[-1][1],
        "learned": next((at for at, share in accuracies if share >= LEARNED), None),
        "seconds": round(state["seconds"]),
        "commit": state["commit"],
        **{
            name: {"updates": [p[0] for p in points], "values": [round(p[1], 5) for p in points]}
            for name, points in curves.items()
        },
    }


def rows(results: Results) -> list[list[str]]:
    """Return a row for each cell with a result: averages over the seeds."""
    cells: dict[tuple[int, int, str], Results] = {}
    for result in results:
        cell = (result["length"], result["samples"], result["system"])
        cells.setdefault(cell, []).append(result)
    table = []
    for (length, samples, system), found in cells.items():
        learned = [result["learned"] for result in found]
        losses = [x for result in found for x in result["loss"]["values"][-1:]]
        table.append(
            [
                str(length), f"{samples:,}", system, f"{mean(r['last'] for r in found):.3f}",
                "" if None in learned else f"{mean(learned):,.0f}",
                f"{mean(losses):.3f}" if losses else "", str(len(found)),
            ]
        )  # fmt: skip
    return table


def summary(results: Results, markdown: bool = False) -> str:
    """Return the table for a terminal or a page, and what its columns are; or nothing."""
    if not results:
        return ""
    shape = tables.markdown if markdown else tables.aligned
    lines = shape([HEADER, *rows(results)], names=3)
    lines += [
        "",
        "accuracy: share of the copied symbols, after the last epoch; for FORM=tile the paper "
        "prints no numbers, and says that the RSA models reach 1 at all lengths; updates to "
        f"{LEARNED}: until the first validation with this accuracy, empty if a seed has none; "
        "loss: nats for each copied symbol, in the last updates of the training",
    ]
    return "\n".join(lines)


def write(runs: Sequence[CopyRun], settings: Settings, work: Path) -> dict[str, Any]:
    """Write results.json and results.md if there is a result; return the content of the first."""
    results = [of_run(run) for run in runs if run.finished()]
    made = provenance(settings.as_dict(), ["bash", "examples/copy_task/run.sh"], runs)
    report = {**made, "runs": results}
    if results:
        page = f"{summary(results, markdown=True)}\n\n`{report['command']}`\n"
        write_text(work / "results.json", as_json(report))
        write_text(work / "results.md", page)
    return report
