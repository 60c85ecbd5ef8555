"""Draw SRformer's speed and memory over the source's length, relative to full attention.

    python scripts/documentation/lengths.py [--output FIGURE.png]

The records are those of benchmarks/scaling.py. Points are medians of the rounds, bars are ranges.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from fairseq_recur.plotting.figures import COLOURS, new_figure, plain_axes, ranges, save

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
FIGURE = ROOT / "docs" / "figures" / "srformer_lengths.png"
TRAINING = ("scaling_length_cpu.json", "scaling_length_4096_cpu.json")
DECODING = ("scaling_decoding_cpu.json",)
FULL = "transformer"
SYSTEMS = {
    "srformer": "SRformer",
    "srformer+cross-attention=segmented": "plain segments",
    "transformer+fused": "torch's fused attention",
}
APART = 1.045
"""Factor between the places of two systems at one length, so that their bars do not overlap."""

LOOKS = {"training": "s--", "decoding": "o-"}

Row = dict[str, Any]
Points = dict[int, list[float]]


def read_rows(files: Sequence[str]) -> list[Row]:
    """Read the rows of some records."""
    return [row for f in files for row in json.loads((RESULTS / f).read_text("utf-8"))["rows"]]


def tokens(row: Row) -> int:
    """Return the source's length; decoding, which has an output, also counts its end."""
    return int(row["source"]) - ("output" in row)


def speeds(rows: Sequence[Row], system: str) -> Points:
    """Return a system's speed relative to full attention in each round, by length."""
    return {tokens(row): row["of_first"] for row in rows if row["system"] == system}


def memory(rows: Sequence[Row], system: str) -> Points:
    """Return a system's peak memory relative to full attention, by length."""
    full = {tokens(row): row["peak_mib"] for row in rows if row["system"] == FULL}
    return {
        tokens(row): [row["peak_mib"] / full[tokens(row)]]
        for row in rows
        if row["system"] == system
    }


def draw_points(axes: Any, points: Points, work: str, system: str) -> None:
    """Draw a system's medians, with bars where there are several rounds."""
    number = list(SYSTEMS).index(system)
    places = [length * APART ** (number - 1) for length in points]
    middles = [median(repeats) for repeats in points.values()]
    axes.errorbar(
        places, middles, yerr=ranges(middles, list(points.values())), fmt=LOOKS[work], ms=4, lw=1.3,
        capsize=2.5, color=COLOURS[number], label=f"{SYSTEMS[system]}, {work}",
    )  # fmt: skip


def draw() -> Any:
    """Return the figure: speed of training, speed of decoding, and memory of both."""
    rows = {"training": read_rows(TRAINING), "decoding": read_rows(DECODING)}
    figure = new_figure(10.5, 3.9)
    panels = figure.subplots(1, 3)
    for axes, work in zip(panels, rows):
        axes.set(title=f"{work} speed", ylabel="times as fast as full attention")
        for system in SYSTEMS:
            for panel, quantity in ((axes, speeds), (panels[2], memory)):
                if points := quantity(rows[work], system):
                    draw_points(panel, points, work, system)
    panels[2].set(title="peak memory", ylabel="relative to full attention")
    lengths = sorted({tokens(row) for work in rows.values() for row in work})
    for axes in panels:
        axes.axhline(1.0, color=COLOURS[-1], lw=1.2, ls=":", label="full attention")
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.set_xlabel("source (tokens)")
        axes.set_ylim(0, 1.08 * axes.dataLim.ymax)
        plain_axes(axes)
    shown = dict(zip(*reversed(panels[2].get_legend_handles_labels())))
    figure.legend(shown.values(), shown, loc="outside lower center", ncols=3, frameon=False)
    return figure


def main(words: Sequence[str] | None = None) -> None:
    """Write the figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, metavar="FIGURE.png", default=FIGURE)
    save(draw(), parser.parse_args(words).output)


if __name__ == "__main__":
    main()
