"""Draw learning curves from training logs, or the recurrence of checkpoints.

A log is what training printed, or what it wrote with --log-file, in any --log-format; gate,
rem, spike, membrane and the others of --monitor-interval as a --metric are the curves of every
layer. Of a checkpoint of rsa (or toeplitz),
which ends in .pt, the gates, kernels, memory lengths and matrices are drawn. What a model looks
at in a sentence is another command, `fairseq-recur plot attention`; a log of that name is given
as ./attention.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_recur.cli import plot_checkpoint
from fairseq_recur.cli.figures import COLOURS, check_output, new_figure, plain_axes, save
from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.training_log import TrainingLog, read_log

HELP = "draw learning curves from logs, or gates and kernels from checkpoints"

# What is measured, with its unit; fairseq's losses are to base 2.
QUANTITIES = {
    "loss": "loss (bits per target token)",
    "nll_loss": "negative log-likelihood (bits per target token)",
    "ppl": "perplexity",
    "bleu": "BLEU",
    "wps": "speed (target tokens per second)",
    "ups": "speed (updates per second)",
    "step_time": "time of an update (ms)",
    "lr": "learning rate",
    "gnorm": "norm of the gradient",
    "gate": "gate, the share of the matrix in RSA",
    "rem": "largest row sum of the recurrence encoding matrices",
    "fusion_gate": "fusion gate, share of the Transformer encoder",
    "sigma": "sigma, the share of the segment in SRformer",
    "spike": "share of the accumulate-and-fire neurons that fire",
    "membrane": "membrane, mean (thresholds)",
    "membrane_sd": "membrane, standard deviation (thresholds)",
    "recurrent_norm": "recurrent weights, RMS singular value",
    "saturation": "share of saturated recurrent states",
}
X_LABELS = {"updates": "updates", "epoch": "epochs", "seconds": "training time (seconds)"}
# Metrics that every layer has: gate_encoder_0, gate_encoder_1, ...
OF_LAYER = re.compile(r"train_(?P<family>.+)_(?P<side>encoder|decoder|recurrence)_(?P<index>\d+)")
LINES = ("-", "--", ":", "-.")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `plot`."""
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="training log, one for each run; or checkpoints"
    )
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
    plot_checkpoint.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Read all files, then draw."""
    output = check_output(args.output)
    labels = args.label or _names(args.files)
    if len(labels) != len(args.files):
        raise ConfigError(f"{len(labels)} --label for {len(args.files)} files; give each run one")
    checkpoints = [path.endswith(".pt") for path in args.files]
    if all(checkpoints):
        figure = plot_checkpoint.draw(
            list(zip(labels, args.files)), args.show, args.layer, args.lags
        )
    elif any(checkpoints):
        raise ConfigError("checkpoints (.pt) and logs cannot be drawn in one figure; give one kind")
    else:
        runs = [(label, read_log(path)) for label, path in zip(labels, args.files)]
        panels = choose_panels([log for _, log in runs], args.metric)
        figure = draw(runs, panels, args.x)
    save(figure, output)
    return 0


def _names(paths: Sequence[str]) -> list[str]:
    """Name runs after their files, or after their folders where the files are called the same."""
    stems = [Path(path).stem for path in paths]
    return stems if len(set(stems)) == len(stems) else [str(path) for path in paths]


def choose_panels(logs: Sequence[TrainingLog], metrics: Sequence[str]) -> dict[str, list[str]]:
    """Resolve what was asked for into panels: quantity -> the curves in it.

    Raises ConfigError if a metric is in none of the logs; it names those that are.
    """
    there = sorted({name for log in logs for name in log.metrics()}, key=_by_layer)
    subsets = ["train", *sorted({subset for log in logs for subset in log.valid})]
    panels: dict[str, list[str]] = {}
    for metric in metrics:
        # "loss" is every subset's loss; "valid_loss" is itself.
        wanted = [f"{subset}_{metric}" for subset in subsets] + [metric]
        found = [name for name in wanted if name in there]
        found += [name for name in there if _family(name) == metric]
        if not found:
            raise ConfigError(
                f"no {metric} in the logs; they have {_listed(there)}; choose of these"
            )
        for name in found:
            quantity = _family(name) or _quantity(name, subsets)
            if name not in panels.setdefault(quantity, []):
                panels[quantity].append(name)
    return panels


def _family(metric: str) -> str:
    """The name that the curves of all layers share; of other metrics nothing."""
    found = OF_LAYER.fullmatch(metric)
    return found["family"] if found else ""


def _by_layer(metric: str) -> tuple[str, str, int]:
    """A key for sorting, by which layer 10 comes after layer 9."""
    found = OF_LAYER.fullmatch(metric)
    return (found["family"], found["side"], int(found["index"])) if found else (metric, "", 0)


def _listed(metrics: Sequence[str]) -> str:
    """Names that can be asked for, one for all layers."""
    return ", ".join(dict.fromkeys(_family(metric) or metric for metric in metrics))


def _quantity(metric: str, subsets: Sequence[str]) -> str:
    """Drop the subset's name from a metric's."""
    for subset in sorted(subsets, key=len, reverse=True):
        if metric.startswith(subset + "_"):
            return metric[len(subset) + 1 :]
    return metric


def draw(runs: Sequence[tuple[str, TrainingLog]], panels: dict[str, list[str]], x: str) -> Any:
    """Draw a panel for each quantity; a run has a colour, training is thin and dashed.

    Args:
        runs: (label, log).
        panels: from choose_panels.
        x: "updates", "epoch" or "seconds".

    Returns a matplotlib Figure.
    Raises ConfigError if matplotlib is not installed or the logs do not tell the x axis.
    """
    for label, log in runs:
        if not any(log.curve(metric) for metrics in panels.values() for metric in metrics):
            raise ConfigError(
                f"{label} has none of {', '.join(panels)}; it has {_listed(log.metrics())}; choose of "
                "these, or leave the run out"
            )
    figure = new_figure(7.0 * len(panels), 4.5)
    row = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (quantity, metrics) in zip(row, panels.items()):
        for index, (label, log) in enumerate(runs):
            for number, metric in enumerate(metrics):
                # Of a family each layer has a colour, and a run has a kind of line.
                which = number if _family(metric) else index
                _draw_curve(axes, label, log, metric, x, COLOURS[which % len(COLOURS)], index)
        axes.set_xlabel(X_LABELS[x])
        axes.set_ylabel(QUANTITIES.get(quantity, quantity))
        plain_axes(axes)
        if axes.lines:
            axes.legend(frameon=False, fontsize=9 if len(axes.lines) <= 8 else 6)
    return figure


def _draw_curve(
    axes: Any, label: str, log: TrainingLog, metric: str, x: str, colour: str, run: int
) -> None:
    """Draw one metric of one run, if the run has it."""
    points = log.curve(metric)
    if not points:
        return
    places = [log.position(updates, x) for updates, _ in points]
    if None in places:
        raise ConfigError(f"the log of {label} does not tell the {x}; use --x updates")
    layer = _layer(metric)
    training = metric.startswith("train_") and not layer
    # A curve of one point would be invisible without a mark; many marks hide the curve.
    marked = len(points) == 1 if training else len(points) <= 40
    axes.plot(
        places,
        [value for _, value in points],
        color=colour,
        linewidth=1.0 if training else 1.8,
        linestyle="--" if training else LINES[run % len(LINES)] if layer else "-",
        alpha=0.75 if training else 1.0,
        marker="o" if marked else None,
        markersize=4,
        label=f"{label}, {layer or _subset(metric)}",
    )


def _layer(metric: str) -> str:
    """Name the layer of a metric that every layer has, as "encoder 0"; of others nothing."""
    found = OF_LAYER.fullmatch(metric)
    return f"{found['side']} {found['index']}" if found else ""


def _subset(metric: str) -> str:
    """Name in the legend the data on which a metric is measured."""
    names = {"train": "training", "valid": "validation"}
    subset = metric.split("_", 1)[0]
    return names.get(subset, subset)
