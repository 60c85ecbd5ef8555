"""Plot ROUGE and the time of a training step against the segment size, as figure 4 of the paper.

    python figure.py RESULTS.json FIGURE.png

RESULTS.json comes from table.py. Curves are means over the seeds, bars are ranges.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any

from fairseq_recur.plotting.figures import COLOURS, new_figure, plain_axes

Summary = Callable[[list[float]], float]
PANELS: dict[str, tuple[str, Summary]] = {
    "rouge1": ("ROUGE-1", mean),
    "rougeL": ("ROUGE-L", mean),
    "step_ms": ("time of a training step (ms)", median),
}


def curves(systems: dict[str, Any], quantity: str) -> dict[str, dict[int, list[float]]]:
    """Return the measurements of each kind of system by segment size, in order of size."""
    found: dict[str, dict[int, list[float]]] = {}
    for system, row in systems.items():
        kind, _, size = system.partition("_")
        if size.isdigit():
            found.setdefault(kind, {})[int(size)] = row[quantity]
    return {kind: dict(sorted(points.items())) for kind, points in found.items()}


def draw(systems: dict[str, Any], file: Path) -> None:
    """Draw one panel per quantity; full attention is a horizontal line."""
    figure = new_figure(4.2 * len(PANELS), 3.6)
    for axes, (quantity, (label, summary)) in zip(figure.subplots(1, len(PANELS)), PANELS.items()):
        axes.axhline(
            summary(systems["full"][quantity]), color=COLOURS[-1], ls="--", lw=1.2, label="full"
        )
        sizes = set()
        for colour, (kind, points) in zip(COLOURS, curves(systems, quantity).items()):
            middles = [summary(values) for values in points.values()]
            below = [m - min(values) for m, values in zip(middles, points.values())]
            above = [max(values) - m for m, values in zip(middles, points.values())]
            axes.errorbar(
                list(points), middles, yerr=[below, above], fmt="o-", ms=4, capsize=3,
                color=colour, label=kind,
            )  # fmt: skip
            sizes |= set(points)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted(sizes), [str(size) for size in sorted(sizes)])
        axes.set_xlabel("segment size (pieces)")
        axes.set_ylabel(label)
        plain_axes(axes)
        axes.legend(frameon=False)
    figure.savefig(file, dpi=100)


if __name__ == "__main__":
    results, output = map(Path, sys.argv[1:])
    draw(json.loads(results.read_text(encoding="utf-8"))["systems"], output)
    print(output)
