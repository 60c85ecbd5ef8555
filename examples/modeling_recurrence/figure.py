"""Draw figure 5 of Hao et al. 2019, BLEU over the recurrent steps, from an experiment's results.

python figure.py WORK/results.json FIGURE.png
"""

import re
import sys
from pathlib import Path
from statistics import mean
from typing import Any

from fairseq_recur.plotting.figures import COLOURS, new_figure, plain_axes, ranges, save
from fairseq_recur.plotting.records import draw_results


def points(results: dict[str, Any], metric: str) -> dict[str, list[float]]:
    """Return the scores of all seeds by number of steps, in the order of the table."""
    found: dict[str, list[float]] = {}
    for system in results["experiment"]["systems"]:
        match = re.fullmatch(r"steps_(\d+|J)", system["name"])
        runs = [run for run in results["runs"] if run["system"] == system["name"]]
        if match and runs:
            found[match[1]] = [run["scores"][metric] for run in runs]
    return found


def lines(results: dict[str, Any], metric: str) -> dict[str, float]:
    """Return the mean scores of the systems without recurrent steps."""
    names = {run["system"] for run in results["runs"] if not run["system"].startswith("steps_")}
    return {
        name: mean(run["scores"][metric] for run in results["runs"] if run["system"] == name)
        for name in sorted(names)
    }


def draw(results: dict[str, Any], file: Path) -> None:
    """Draw the scores over the steps; systems without steps are horizontal lines."""
    metric = next(iter(results["runs"][0]["scores"]))
    found = points(results, metric)
    figure = new_figure(6.0, 4.0)
    axes = figure.subplots()
    means = list(map(mean, found.values()))
    bars = ranges(means, [*found.values()])
    axes.errorbar(
        [*found], means, yerr=bars, fmt="o-", ms=4, capsize=3, color=COLOURS[0], label="biarn"
    )
    for style, (name, score) in zip(("--", ":", "-."), lines(results, metric).items()):
        axes.axhline(score, linestyle=style, color=COLOURS[-1], lw=1.2, label=name)
    axes.set(xlabel="recurrent steps", ylabel=metric)
    plain_axes(axes)
    axes.legend(frameon=False)
    save(figure, file)


if __name__ == "__main__":
    sys.exit(draw_results(draw, __doc__))
