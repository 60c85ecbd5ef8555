"""Learning curves: one panel per quantity, one colour per run."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fairseq_recur.errors import ConfigError, Problems
from fairseq_recur.experiments.training_log import PER_LAYER, TrainingLog
from fairseq_recur.plotting.figures import COLOURS, add_legend, new_figure, plain_axes

# The quantities of every training with their units; fairseq's losses of tokens are to base 2.
QUANTITIES = {
    "loss": "loss (bits per target token)",
    "nll_loss": "negative log-likelihood (bits per target token)",
    "ppl": "perplexity",
    "bleu": "BLEU",
    "wps": "speed (target tokens per second)",
    "ups": "speed (updates per second)",
    "step_time": "time per update (ms)",
    "lr": "learning rate",
    "gnorm": "gradient norm",
}
X_LABELS = {"updates": "updates", "epoch": "epochs", "seconds": "training time (seconds)"}
LINES = ("-", "--", ":", "-.")


def choose_panels(logs: Sequence[TrainingLog], metrics: Sequence[str]) -> dict[str, list[str]]:
    """Map each quantity to its curves.

    Raises:
        ConfigError: no log has some of the metrics; the message lists those that exist
    """
    names = sorted({name for log in logs for name in log.metrics()}, key=_by_layer)
    subsets = ["train", *sorted({subset for log in logs for subset in log.valid})]
    curves = {metric: _curves(metric, names, subsets) for metric in metrics}
    unknown = [metric for metric, found in curves.items() if not found]
    if unknown:
        raise ConfigError(
            f"no metric {', '.join(unknown)} in the logs; choose from those they have: "
            f"{_listed(names)}"
        )
    panels: dict[str, list[str]] = {}
    for name in (name for found in curves.values() for name in found):
        quantity = _family(name) or _quantity(name, subsets)
        if name not in panels.setdefault(quantity, []):
            panels[quantity].append(name)
    return panels


def _curves(metric: str, names: Sequence[str], subsets: Sequence[str]) -> list[str]:
    """The names that a metric selects: "loss" every subset's, "valid_loss" itself."""
    wanted = [f"{subset}_{metric}" for subset in subsets] + [metric]
    found = [name for name in wanted if name in names]
    return found + [name for name in names if _family(name) == metric]


def _family(metric: str) -> str:
    """The name without the layer; "" for a metric that is not logged per layer."""
    found = PER_LAYER.fullmatch(metric)
    return found["family"] if found else ""


def _layer(metric: str) -> str:
    """The layer as "encoder 0"; "" for a metric that is not logged per layer."""
    found = PER_LAYER.fullmatch(metric)
    return f"{found['side']} {found['index']}" if found else ""


def _by_layer(metric: str) -> tuple[str, str, int]:
    """A sort key that puts layer 10 after layer 9."""
    found = PER_LAYER.fullmatch(metric)
    return (found["family"], found["side"], int(found["index"])) if found else (metric, "", 0)


def _listed(metrics: Sequence[str]) -> str:
    """List the names that --metric takes; one name for all layers."""
    return ", ".join(dict.fromkeys(_family(metric) or metric for metric in metrics))


def _quantity(metric: str, subsets: Sequence[str]) -> str:
    """The metric without the name of its subset."""
    subset = _subset(metric, subsets)
    return metric[len(subset) + 1 :] if subset else metric


def _subset(metric: str, subsets: Sequence[str]) -> str:
    """The subset that a metric's name begins with, the longest if there are several; or ""."""
    found = [subset for subset in subsets if metric.startswith(subset + "_")]
    return max(found, key=len, default="")


def draw(
    runs: Sequence[tuple[str, TrainingLog]],
    panels: dict[str, list[str]],
    x: str,
    of_parts: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """Draw one panel per quantity. Each run has a colour; training is thin and dashed.

    Args:
        runs: (label, log)
        panels: from `choose_panels`
        x: "updates", "epoch" or "seconds"
        of_parts: quantities that the model's parts log, with their units

    Returns:
        a matplotlib Figure

    Raises:
        ConfigError: matplotlib is not installed, or a log lacks the metrics or the x axis
    """
    problems = Problems("these runs cannot be drawn")
    for label, log in runs:
        if not any(log.curve(metric) for metrics in panels.values() for metric in metrics):
            problems.add(
                f"{label} has no metric of {', '.join(panels)}; choose from "
                f"{_listed(log.metrics())}, or remove the run"
            )
    problems.raise_all()
    figure = new_figure(7.0 * len(panels), 4.5)
    row = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (quantity, metrics) in zip(row, panels.items()):
        drawn = [log for _, log in runs if any(map(log.curve, metrics))]
        for index, (label, log) in enumerate(runs):
            for number, metric in enumerate(metrics):
                # A run has its colour in all panels, and a layer its line style. In a panel of a
                # single run, the layers have the colours, and more layers the next style.
                which, style = index, LINES[number % len(LINES)]
                if _family(metric) and len(drawn) == 1:
                    which, style = number, LINES[number // len(COLOURS) % len(LINES)]
                _draw_curve(axes, label, log, metric, x, COLOURS[which % len(COLOURS)], style)
        axes.set_xlabel(X_LABELS[x])
        label = QUANTITIES.get(quantity) or of_parts.get(quantity, quantity)
        of_errors = quantity == "loss" and not all(map(_has_tokens, drawn))
        axes.set_ylabel(quantity if of_errors else label)
        plain_axes(axes)
        if axes.lines:
            add_legend(axes, fontsize=9 if len(axes.lines) <= 8 else 6)
    return figure


def _has_tokens(log: TrainingLog) -> bool:
    """Whether the loss is of tokens: those losses are logged with their perplexity."""
    return any(metric.endswith("_ppl") for metric in log.metrics())


def _draw_curve(
    axes: Any, label: str, log: TrainingLog, metric: str, x: str, colour: str, style: str
) -> None:
    """Draw one metric of one run, if the run has it."""
    points = log.curve(metric)
    if not points:
        return
    places = [log.position(updates, x) for updates, _ in points]
    if None in places:
        raise ConfigError(f"the log of {label} does not record the {x}; use --x updates")
    layer = _layer(metric)
    training = metric.startswith("train_") and not layer
    # A curve of one point is invisible without a marker; many markers hide the curve.
    marked = len(points) == 1 if training else len(points) <= 40
    subset = _subset(metric, ["train", *log.valid])
    data = {"train": "training", "valid": "validation"}.get(subset, subset)
    axes.plot(
        places,
        [value for _, value in points],
        color=colour,
        linewidth=1.0 if training else 1.8,
        linestyle="--" if training else style if layer else "-",
        alpha=0.75 if training else 1.0,
        marker="o" if marked else None,
        markersize=4,
        label=f"{label}, {layer or data}",
    )
