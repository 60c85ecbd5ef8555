"""Plot ROUGE and training speed against the segment size, as figure 4 of the paper.

    python figure.py RESULTS.json FIGURE.png

RESULTS.json is that of the experiment. Points are means over the seeds or medians of the rounds,
bars are ranges.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any

from fairseq_recur.plotting.figures import COLOURS, new_figure, plain_axes, ranges, save
from fairseq_recur.plotting.records import draw_results

Summary = Callable[[list[float]], float]
Points = dict[int, list[float]]
UPDATES = "updates_per_second"
FULL = "full_continued"
PANELS: dict[str, tuple[str, Summary]] = {
    "rouge1": ("ROUGE-1", mean),
    "rougeL": ("ROUGE-L", mean),
    UPDATES: ("training (updates/s)", median),
}


def values(results: dict[str, Any], quantity: str) -> dict[str, list[float]]:
    """Return a system's scores of all seeds, or its speed in all rounds."""
    if quantity == UPDATES:
        speed = results["speed"] or {"systems": {}}
        return {name: row[UPDATES] for name, row in speed["systems"].items()}
    found: dict[str, list[float]] = {}
    for run in results["runs"]:
        found.setdefault(run["system"], []).append(run["scores"][quantity])
    return found


def curves(systems: dict[str, list[float]]) -> dict[str, Points]:
    """Return the measurements of each kind of system by segment size, in order of size."""
    found: dict[str, Points] = {}
    for system, measured in systems.items():
        kind, _, size = system.rpartition("_")
        if size.isdigit():
            found.setdefault(kind, {})[int(size)] = measured
    return {kind: dict(sorted(points.items())) for kind, points in found.items()}


def draw(results: dict[str, Any], file: Path) -> None:
    """Draw one panel per measured quantity; continued full attention is a horizontal line."""
    measured = {name: systems for name in PANELS if (systems := values(results, name))}
    figure = new_figure(1.8 + 4.0 * len(measured), 3.6)
    panels = figure.subplots(1, len(measured), squeeze=False)[0]
    for axes, (quantity, systems) in zip(panels, measured.items()):
        label, summary = PANELS[quantity]
        if FULL in systems:
            axes.axhline(summary(systems[FULL]), color=COLOURS[-1], ls="--", lw=1.2, label="full")
        kinds = curves(systems)
        for colour, (kind, points) in zip(COLOURS, kinds.items()):
            middles = [summary(repeats) for repeats in points.values()]
            bars = ranges(middles, list(points.values()))
            axes.errorbar(
                list(points), middles, yerr=bars, fmt="o-", ms=4, capsize=3, color=colour,
                label=kind,
            )  # fmt: skip
        axes.set_xscale("log", base=2)
        sizes = sorted({size for points in kinds.values() for size in points})
        axes.set_xticks(sizes, [f"{size}" for size in sizes])
        axes.set_xlabel("segment size (pieces)")
        axes.set_ylabel(label)
        plain_axes(axes)
    shown = panels[0].get_legend_handles_labels()  # the same in all panels
    figure.legend(*shown, loc="outside right center", frameon=False)
    save(figure, file)


if __name__ == "__main__":
    sys.exit(draw_results(draw, __doc__))
