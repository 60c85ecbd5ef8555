"""Draw learning curves from the logs of one or more trainings.

A LOG is what training printed, or what it wrote with --log-file, in any --log-format."""

import argparse
import logging
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from fairseq_recur.cli.training_log import TrainingLog, read_log
from fairseq_recur.errors import ConfigError

HELP = "draw learning curves from training logs"

# What is measured, with its unit; fairseq's losses are to base 2.
QUANTITIES = {
    "loss": "loss (bits per target token)",
    "nll_loss": "negative log-likelihood (bits per target token)",
    "ppl": "perplexity",
    "bleu": "BLEU",
    "wps": "speed (target tokens per second)",
    "lr": "learning rate",
    "gnorm": "norm of the gradient",
}
X_LABELS = {"updates": "updates", "epoch": "epochs", "seconds": "training time (seconds)"}
# Colours that people with colour blindness can tell apart (Okabe and Ito), a run each.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `plot`."""
    parser.add_argument("logs", nargs="+", metavar="LOG", help="training log, one for each run")
    parser.add_argument(
        "--output", required=True, metavar="FILE", help="figure to write: .png, .pdf or .svg"
    )
    parser.add_argument(
        "--label",
        action="append",
        metavar="NAME",
        help="name of a run, in the order of the logs (otherwise the log's file name)",
    )
    parser.add_argument(
        "--metric",
        nargs="+",
        default=["loss"],
        metavar="NAME",
        help="train_loss, valid_loss, valid_bleu, ... as in the log; a name without train_ or "
        "valid_ stands for both; metrics of one kind share a panel",
    )
    parser.add_argument("--x", choices=list(X_LABELS), default="updates", help="horizontal axis")


def run(args: argparse.Namespace) -> int:
    """Read all logs, then draw."""
    output = Path(args.output)
    if output.suffix not in (".png", ".pdf", ".svg"):
        raise ConfigError(f"--output {output}: expected a name that ends in .png, .pdf or .svg")
    labels = args.label or _names(args.logs)
    if len(labels) != len(args.logs):
        raise ConfigError(f"{len(labels)} --label for {len(args.logs)} logs; give each run one")
    runs = [(label, read_log(path)) for label, path in zip(labels, args.logs)]
    panels = choose_panels([log for _, log in runs], args.metric)
    figure = draw(runs, panels, args.x)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=150)
    print(output)
    return 0


def _names(paths: Sequence[str]) -> List[str]:
    """Name runs after their files, or after their folders where the files are called the same."""
    stems = [Path(path).stem for path in paths]
    return stems if len(set(stems)) == len(stems) else [str(path) for path in paths]


def choose_panels(logs: Sequence[TrainingLog], metrics: Sequence[str]) -> Dict[str, List[str]]:
    """Resolve what was asked for into panels: quantity -> the curves in it.

    Raises ConfigError if a metric is in none of the logs; it names those that are.
    """
    there = sorted({name for log in logs for name in log.metrics()})
    subsets = ["train", *sorted({subset for log in logs for subset in log.valid})]
    panels: Dict[str, List[str]] = {}
    for metric in metrics:
        # "loss" is every subset's loss; "valid_loss" is itself.
        wanted = [f"{subset}_{metric}" for subset in subsets] + [metric]
        found = [name for name in wanted if name in there]
        if not found:
            raise ConfigError(f"no {metric} in the logs; they have {', '.join(there)}")
        for name in found:
            quantity = _quantity(name, subsets)
            if name not in panels.setdefault(quantity, []):
                panels[quantity].append(name)
    return panels


def _quantity(metric: str, subsets: Sequence[str]) -> str:
    """Drop the subset's name from a metric's."""
    for subset in sorted(subsets, key=len, reverse=True):
        if metric.startswith(subset + "_"):
            return metric[len(subset) + 1 :]
    return metric


def draw(runs: Sequence[Tuple[str, TrainingLog]], panels: Dict[str, List[str]], x: str) -> Any:
    """Draw a panel for each quantity; a run has a colour, training is thin and dashed.

    Args:
        runs: (label, log).
        panels: from choose_panels.
        x: "updates", "epoch" or "seconds".

    Returns a matplotlib Figure.
    Raises ConfigError if matplotlib is not installed or the logs do not tell the x axis.
    """
    figure = _new_figure(len(panels))
    row = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (quantity, metrics) in zip(row, panels.items()):
        for index, (label, log) in enumerate(runs):
            for metric in metrics:
                _draw_curve(axes, label, log, metric, x, COLOURS[index % len(COLOURS)])
        axes.set_xlabel(X_LABELS[x])
        axes.set_ylabel(QUANTITIES.get(quantity, quantity))
        axes.grid(True, color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.lines:
            axes.legend(frameon=False, fontsize=9)
    return figure


def _draw_curve(axes: Any, label: str, log: TrainingLog, metric: str, x: str, colour: str) -> None:
    """Draw one metric of one run, if the run has it."""
    points = log.curve(metric)
    if not points:
        return
    places = [log.position(updates, x) for updates, _ in points]
    if None in places:
        raise ConfigError(f"the log of {label} does not tell the {x}; use --x updates")
    training = metric.startswith("train_")
    # A curve of one point would be invisible without a mark; many marks hide the curve.
    marked = len(points) == 1 if training else len(points) <= 40
    axes.plot(
        places,
        [value for _, value in points],
        color=colour,
        linewidth=1.0 if training else 1.8,
        linestyle="--" if training else "-",
        alpha=0.75 if training else 1.0,
        marker="o" if marked else None,
        markersize=4,
        label=f"{label}, {_subset(metric)}",
    )


def _subset(metric: str) -> str:
    """Name in the legend the data on which a metric is measured."""
    names = {"train": "training", "valid": "validation"}
    subset = metric.split("_", 1)[0]
    return names.get(subset, subset)


def _new_figure(panels: int) -> Any:
    """Make an empty figure that needs no display.

    matplotlib is an extra of this package: it is imported here and nowhere else.
    """
    # It tells at level INFO that it looks for fonts.
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            f'plot needs matplotlib ({error}): pip install "fairseq-recur[plot]"'
        ) from error
    figure = Figure(figsize=(7.0 * panels, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
