"""Draw the paper's figure 5, accuracies over lengths and losses, from results of several folders.

python figure.py RESULTS.json... FIGURE.png
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.added import read_added
from fairseq_recur.plotting.figures import COLOURS, new_figure, plain_axes, ranges, save

HOSTS = ("brt_lm", "tlb_lm")
STYLES = ("-", "--", ":", "-.")
CELL = ("length", "samples", "system", "seed")
FREE = ("LENGTHS", "SAMPLES", "SYSTEMS", "SEEDS", "UPDATES", "DEVICE")
"""Variables that say what is trained, how long and where; the others must be the same."""

Results = list[dict[str, Any]]
Curve = tuple[str, dict[str, str], Results]
"""Label, look and runs of a system with a number of samples."""


def read(files: Sequence[Path]) -> Results:
    """Read the runs of several results.json files.

    Raises:
        ConfigError: a file is missing or foreign or has no runs, other settings than the first
            one, or a run that another one has, too
    """
    first: dict[str, str] = {}
    known: set[tuple[Any, ...]] = set()

    def differences(record: dict[str, Any]) -> Iterator[str]:
        if not all(run.keys() >= {*CELL, "accuracy", "loss"} for run in record["runs"]):
            raise KeyError("a run lacks what the figure needs")
        cells = [tuple(run[name] for name in CELL) for run in record["runs"]]
        settings = {"FORM": "tile", **record["settings"]}  # the first records have no FORM
        if not cells:
            yield "has no finished runs"
        first.update({} if first else settings)
        names = [n for n in first | settings if first.get(n) != settings.get(n) and n not in FREE]
        if names:
            yield f"was trained with another {', '.join(names)}"
        for cell in known.intersection(cells):
            yield f"has a run of an earlier file: {', '.join(map(str, cell))}"
        known.update(cells)

    found = read_added("RESULTS.json", files, differences)
    return [run for record in found for run in record["runs"]]


def draw(results: Results, file: Path) -> None:
    """Draw accuracies, and losses at the longest length, for each host with a result.

    Accuracies are those after equally many updates, the most after which every run of the host has
    one; those of a single length are drawn over the updates.
    """
    hosts = [h for h in HOSTS if any(r["system"].endswith(h) for r in results)]
    sizes = sorted({r["samples"] for r in results}, reverse=True)
    figure = new_figure(10.0, 3.6 * len(hosts))
    for host, (left, right) in zip(hosts, figure.subplots(len(hosts), 2, squeeze=False)):
        curves = [*curves_of(host, results, sizes)]
        draw_accuracies(left, host, curves)
        draw_losses(right, host, curves)
        # The losses fall, so that this corner is free.
        right.legend(*left.get_legend_handles_labels(), frameon=False, loc="upper right")
        for panel in (left, right):
            plain_axes(panel)
    save(figure, file)


def curves_of(host: str, results: Results, sizes: Sequence[int]) -> Iterator[Curve]:
    """Yield a host's curves: each system with each number of samples that has results."""
    for number, system in enumerate((host, f"rsa_{host}")):
        for place, size in enumerate(sizes):
            found = [r for r in results if (r["system"], r["samples"]) == (system, size)]
            colour, style = COLOURS[number], STYLES[place % len(STYLES)]
            look = {"color": colour, "linestyle": style, "mfc": "white" if place else colour}
            if found:
                yield f"{system}, {size:,} samples", look, found


def draw_accuracies(axis: Any, host: str, curves: Sequence[Curve]) -> None:
    """Draw means and ranges over the seeds for each length, or each seed over the updates."""
    runs = [run for _, _, found in curves for run in found]
    lengths = sorted({run["length"] for run in runs})
    axis.set(ylabel="accuracy", ylim=(-0.02, 1.05))
    if len(lengths) == 1:
        axis.set(title=f"{host}, length {lengths[0]}", xlabel="updates")
        for label, look, found in curves:
            for number, run in enumerate(found):
                points = run["accuracy"]["updates"], run["accuracy"]["values"]
                axis.plot(*points, marker="o", ms=4, label="_" if number else label, **look)
        return
    updates = max(set.intersection(*({*run["accuracy"]["updates"]} for run in runs)), default=None)
    after = "the last update" if updates is None else f"{updates:,} updates"
    axis.set(title=f"{host}, after {after}", xlabel="length", xticks=lengths)
    for place, (label, look, found) in enumerate(curves):
        there = sorted({run["length"] for run in found})
        values = [[accuracy(r, updates) for r in found if r["length"] == n] for n in there]
        means = [mean(of_seeds) for of_seeds in values]
        # Beside each other, as many are 1.
        shift = (place - (len(curves) - 1) / 2) * lengths[0] / 16
        axis.errorbar(
            [n + shift for n in there], means, yerr=ranges(means, values), marker="o", ms=5,
            capsize=3, label=label, **look,
        )  # fmt: skip


def accuracy(run: dict[str, Any], updates: int | None) -> float:
    """Return a run's accuracy after a number of updates, or its last one."""
    curve = run["accuracy"]
    found: float = curve["values"][-1 if updates is None else curve["updates"].index(updates)]
    return found


def draw_losses(axis: Any, host: str, curves: Sequence[Curve]) -> None:
    """Draw the losses of every seed at the host's longest length."""
    longest = max(run["length"] for _, _, found in curves for run in found)
    for _, look, found in curves:
        for run in (run for run in found if run["length"] == longest):
            axis.plot(run["loss"]["updates"], run["loss"]["values"], lw=1, **look)
    axis.set(title=f"{host}, length {longest}", xlabel="updates", ylabel="loss")


def main(arguments: Sequence[str]) -> int:
    """Read the results and draw; return 0, or 2 for files that cannot be used."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULTS.json")
    parser.add_argument("figure", type=Path, metavar="FIGURE.png")
    args = parser.parse_args(arguments)
    try:
        draw(read(args.results), args.figure)
    except (ConfigError, OSError, ValueError) as error:  # also of an unknown format
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
