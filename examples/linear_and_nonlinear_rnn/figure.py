"""The MSPE ratios over alpha, as a table and as figure 7 of the paper.

python figure.py RESULTS.json FIGURE.png
"""

import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from fairseq_recur.plotting.figures import COLOURS, new_figure, plain_axes, ranges, save
from fairseq_recur.plotting.records import draw_results

MODELS = {"linear": "linear RNN", "rsa": "RSA"}
TITLES = {"tanh": "Tanh", "sigmoid": "Sigmoid", "relu": "ReLU"}

# The paper's claims: at which alphas, and what must hold of the three errors.
CLAIMS: dict[str, tuple[Callable[[float], bool], Callable[..., bool]]] = {
    "linear beats nonlinear at alpha 0": (
        lambda alpha: alpha == 0,
        lambda linear, nonlinear, rsa: linear < nonlinear,
    ),
    "nonlinear is best at alpha 1": (
        lambda alpha: alpha == 1,
        lambda linear, nonlinear, rsa: nonlinear < min(linear, rsa),
    ),
    "RSA beats linear above alpha 0.6": (
        lambda alpha: alpha > 0.6,
        lambda linear, nonlinear, rsa: rsa < linear,
    ),
}


def ratios(results: dict[str, Any], activation: str, model: str) -> list[tuple[float, list[float]]]:
    """Return (alpha, [e(model) / e(nonlinear RNN) for each seed]) in the order of alpha."""
    found: dict[float, list[float]] = {}
    for cell in results["cells"]:
        if cell["activation"] == activation:
            ratio = cell[model]["mspe"] / cell["nonlinear"]["mspe"]
            found.setdefault(cell["alpha"], []).append(ratio)
    return sorted(found.items())


def activations(results: dict[str, Any]) -> list[str]:
    """Return the activations that have cells, in the order of the paper."""
    there = {cell["activation"] for cell in results["cells"]}
    return [name for name in TITLES if name in there]


def summarize(results: dict[str, Any]) -> str:
    """Format the ratios: for each alpha, mean and range over the seeds."""
    lines = [f"{'':8} {'alpha':>5} seeds" + "".join(f"  {MODELS[m]:^20}" for m in MODELS)]
    for activation in activations(results):
        columns = [ratios(results, activation, model) for model in MODELS]
        for row in zip(*columns):
            cells = "".join(f"  {mean(v):5.3f} ({min(v):5.3f}-{max(v):5.3f})" for _, v in row)
            lines.append(f"{activation:8} {row[0][0]:5.2f} {len(row[0][1]):5}{cells}")
    return "\n".join(lines)


def summary(results: dict[str, Any]) -> dict[str, Any]:
    """Return what the page says of the cells: the mean ratios, and how often the claims hold.

    Returns:
        ``ratios``, a row for each activation and alpha with mean, minimum and maximum over the
        seeds; and ``claims``, for each of the paper's the number of ``cells`` and those in which it
        ``holds``, altogether and by activation
    """
    rows = []
    for activation in activations(results):
        columns = [ratios(results, activation, model) for model in MODELS]
        for row in zip(*columns):
            found = {m: [mean(v), min(v), max(v)] for m, (_, v) in zip(MODELS, row)}
            rows.append(
                {"activation": activation, "alpha": row[0][0], "seeds": len(row[0][1]), **found}
            )
    claims = {}
    for name, (chosen, holds) in CLAIMS.items():
        of_claim: dict[str, Any] = {}
        for activation in ("all", *activations(results)):
            cells = [
                cell
                for cell in results["cells"]
                if chosen(cell["alpha"]) and activation in ("all", cell["activation"])
            ]
            errors = [
                {m: cell[m]["mspe"] for m in ("linear", "nonlinear", "rsa")} for cell in cells
            ]
            of_claim[activation] = {"cells": len(cells), "holds": sum(holds(**e) for e in errors)}
        claims[name] = of_claim
    return {"ratios": rows, "claims": claims}


def draw(results: dict[str, Any], file: Path) -> None:
    """Draw one panel per activation: mean over the seeds as a line, range as bars."""
    names = activations(results)
    figure = new_figure(4.0 * len(names), 3.6)
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for panel, activation in zip(panels, names):
        panel.axhline(1, color=COLOURS[-1], lw=1.2, ls="--", label="nonlinear RNN")
        for colour, (model, label) in zip(COLOURS, MODELS.items()):
            alphas, values = zip(*ratios(results, activation, model))
            means = list(map(mean, values))
            # Bars instead of a band, because alphas may have different numbers of seeds.
            style = {"fmt": "o-", "ms": 4, "capsize": 3, "color": colour}
            panel.errorbar(alphas, means, yerr=ranges(means, values), label=label, **style)
        panel.set(title=TITLES[activation], xlabel="alpha")
        plain_axes(panel)
    panels[0].set_ylabel("MSPE ratio to the nonlinear RNN")
    panels[0].legend(frameon=False)
    save(figure, file)


if __name__ == "__main__":
    sys.exit(draw_results(draw, __doc__, rows="cells"))
