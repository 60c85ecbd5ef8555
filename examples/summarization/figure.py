"""Plot ROUGE and training speed against the segment size, as figure 4 of the paper.

    python figure.py RESULTS.json FIGURE.png

RESULTS.json is that of the experiment. With a single segment size, ROUGE-1 is plotted against speed
and memory, if these were measured. Points are means over the seeds or medians of the rounds, bars
are ranges.
"""

import sys
from collections.abc import Callable
from itertools import cycle, product
from pathlib import Path
from statistics import mean, median
from typing import Any

from fairseq_recur.plotting.figures import COLOURS, new_figure, plain_axes, ranges, save
from fairseq_recur.plotting.records import draw_results

Summary = Callable[[list[float]], float]
Points = dict[int, list[float]]
UPDATES = "updates_per_second"
COSTS = {
    UPDATES: "training (updates/s)",
    "sentences_per_second": "decoding (texts/s)",
    "decoding_mib": "decoding (MiB)",
}
FULL = "full_continued"
LOOKS = list(product("os^v", COLOURS))
PANELS: dict[str, tuple[str, Summary]] = {
    "rouge1": ("ROUGE-1", mean),
    "rougeL": ("ROUGE-L", mean),
    UPDATES: (COSTS[UPDATES], median),
}


def values(results: dict[str, Any], quantity: str) -> dict[str, list[float]]:
    """Return a system's scores of all seeds, or its speed or memory in all rounds."""
    if quantity in COSTS:
        speed = results["speed"] or {"systems": {}}
        return {name: row[quantity] for name, row in speed["systems"].items()}
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
    """Draw what the segment size changes or, with a single size, what the systems cost."""
    scores = values(results, "rouge1")
    sizes = {size for points in curves(scores).values() for size in points}
    if len(sizes) == 1 and results["speed"]:
        draw_costs(results, scores, file)
    else:
        draw_sizes(results, file)


def draw_costs(results: dict[str, Any], scores: dict[str, list[float]], file: Path) -> None:
    """Draw one panel per cost, with a point per system; all of them have ROUGE-1 in common.

    Args:
        results: of the experiment
        scores: ROUGE-1 of each system, of all seeds
        file: the figure
    """
    figure = new_figure(1.8 + 4.0 * len(COSTS), 3.6)
    panels = figure.subplots(1, len(COSTS), sharey=True)
    for axes, (quantity, label) in zip(panels, COSTS.items()):
        costs = values(results, quantity)
        measured = [name for name in scores if name in costs]
        for system, (marker, colour) in zip(measured, cycle(LOOKS)):
            point = [median(costs[system])], [mean(scores[system])]
            axes.errorbar(
                *point, xerr=ranges(point[0], [costs[system]]),
                yerr=ranges(point[1], [scores[system]]), fmt=marker, color=colour, ms=5,
                capsize=3, label=system,
            )  # fmt: skip
        axes.set_xlabel(label)
        plain_axes(axes)
    panels[0].set_ylabel("ROUGE-1")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    save(figure, file)


def draw_sizes(results: dict[str, Any], file: Path) -> None:
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
