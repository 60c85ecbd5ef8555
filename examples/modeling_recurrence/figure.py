"""Draw figure 5 of Hao et al. 2019, BLEU over the recurrent steps, from an experiment's results.

    python figure.py WORK/results.json FIGURE.png
"""

import json
import re
import sys
from statistics import mean
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402


def points(results: dict[str, Any], metric: str) -> dict[int, list[float]]:
    """Return the scores of all seeds by number of steps."""
    found: dict[int, list[float]] = {}
    for run in results["runs"]:
        match = re.fullmatch(r"steps_(\d+)", run["system"])
        if match:
            found.setdefault(int(match[1]), []).append(run["scores"][metric])
    return dict(sorted(found.items()))


def lines(results: dict[str, Any], metric: str) -> dict[str, float]:
    """Return the mean scores of the systems without such steps."""
    names = {run["system"] for run in results["runs"] if not run["system"].startswith("steps_")}
    return {
        name: mean(run["scores"][metric] for run in results["runs"] if run["system"] == name)
        for name in sorted(names)
    }


def main(file: str, output: str) -> None:
    """Read the results and draw."""
    with open(file, encoding="utf-8") as stream:
        results = json.load(stream)
    metric = next(iter(results["runs"][0]["scores"]))
    found = points(results, metric)
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    axes.plot([*found], [mean(scores) for scores in found.values()], "o-", label="biarn")
    for steps, scores in found.items():
        axes.plot([steps] * len(scores), scores, ".", color="grey")
    for style, (name, score) in zip(("--", ":", "-."), lines(results, metric).items()):
        axes.axhline(score, linestyle=style, color="black", label=name)
    axes.set(xlabel="recurrent steps", ylabel=metric, xticks=[*found])
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(output, dpi=150)
    print(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
