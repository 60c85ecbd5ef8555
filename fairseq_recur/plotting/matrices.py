"""Figures of the matrices that checkpoints mix with their attention."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from fairseq_recur.errors import Problems
from fairseq_recur.inspection.matrices import (
    SHARE,
    LagLayers,
    Layers,
    head_label,
    memory_lengths,
    read_layers,
    sides,
    with_kernels,
)
from fairseq_recur.plotting.figures import COLOURS, add_legend, new_figure, plain_axes

SHOWN = ("gates", "memory", "kernels", "matrices", "boxes")

Models = Sequence[tuple[str, Mapping[str, Any]]]
"""(label, layers) per checkpoint."""


def draw(runs: Sequence[tuple[str, str]], show: Sequence[str], layer: str | None, lags: int) -> Any:
    """Draw one row per item of *show*; kernels and matrices have a row per checkpoint.

    Args:
        runs: (label, path)
        show: some of SHOWN
        layer: name of the layer for kernels and matrices, or None
        lags: number of lags, or of positions of a matrix; at least 2

    Returns:
        a matplotlib Figure

    Raises:
        ConfigError: a checkpoint lacks the layer, or has no matrices or no kernels
        CheckpointError: a file is not a usable checkpoint
    """
    models = []
    problems = Problems("these checkpoints cannot be drawn")
    for label, path in runs:
        with problems.gathered():
            models.append((label, read_layers(path)))
            for problem in _problems(*models[-1], show, layer):
                problems.add(problem)
    problems.raise_all()
    rows: list[Callable[[Any], None]] = []
    for name in show:
        if name == "gates":
            rows.append(partial(_by_layer, models=models, title="gate", values=_gate))
        elif name == "memory":
            title = f"lags with {SHARE:.0%} of the kernel"
            lagged = [(label, with_kernels(layers)) for label, layers in models]
            rows.append(partial(_by_layer, models=lagged, title=title, values=memory_lengths))
        elif name == "boxes":
            rows.append(partial(_boxes, models=models))
        for label, layers in models:
            if name == "kernels":
                drawn = with_kernels({layer: layers[layer]} if layer else layers)
                rows.append(partial(draw_kernels, label=label, layers=drawn, lags=lags))
            elif name == "matrices":
                chosen = layer or next(iter(layers))
                title = f"{label}, {chosen}"
                rows.append(partial(_matrices, title=title, mixture=layers[chosen], size=lags))
    figure = new_figure(12.0, 3.4 * len(rows))
    for part, draw_row in zip(figure.subfigures(len(rows), 1, squeeze=False)[:, 0], rows):
        draw_row(part)
    return figure


def _problems(label: str, layers: Layers, show: Sequence[str], layer: str | None) -> Iterator[str]:
    """Yield why these layers cannot be drawn, one message each."""
    if layer is not None and layer not in layers:
        yield f"--layer {layer}: {label} has {', '.join(layers)}; choose one"
        return
    chosen = {"memory": layers, "kernels": {layer: layers[layer]} if layer else layers}
    wrong = [name for name in show if name in chosen and not with_kernels(chosen[name])]
    if wrong:
        yield (
            f"--show {' '.join(wrong)}: {label} has learned a matrix of positions there, which has "
            "no kernel over lags; choose gates, matrices or boxes"
        )


def _by_layer(
    part: Any, models: Models, title: str, values: Callable[[Any], Sequence[float]]
) -> None:
    """Draw a few values of each layer as points; one colour per checkpoint."""
    axes = part.subplots()
    names = sorted({name for _, layers in models for name in layers}, key=place_of)
    for index, (label, layers) in enumerate(models):
        points = [(names.index(n), v) for n, m in layers.items() for v in values(m)]
        xs, ys = zip(*points)
        colour = COLOURS[index % len(COLOURS)]
        shifted = [x + 0.08 * (index - (len(models) - 1) / 2) for x in xs]
        axes.plot(shifted, ys, "o", color=colour, alpha=0.7, label=label)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel(title)
    axes.set_ylim(0, 1.1 * max(axes.get_ylim()[1], 1e-3))
    add_legend(axes, fontsize=9)
    plain_axes(axes)


def _gate(layer: Any) -> list[float]:
    """Return sigmoid(mu) of the heads that have a matrix: one number for all of them."""
    return [float(layer.gates()[0])]


def _boxes(part: Any, models: Models) -> None:
    """Draw a box over the layers' gates for each checkpoint: the paper's figure 3."""
    axes = part.subplots()
    axes.boxplot([[g for m in layers.values() for g in _gate(m)] for _, layers in models])
    axes.set_xticks(range(1, len(models) + 1), [label for label, _ in models])
    axes.set(ylabel="gate", ylim=(0, 1))
    plain_axes(axes)


def draw_kernels(part: Any, label: str, layers: LagLayers, lags: int) -> None:
    """Draw f over the lags: one panel per layer, one line per head.

    Later keys have negative lags, and are drawn where they have values of their own.
    """
    row = part.subplots(1, len(layers), squeeze=False, sharey=True)[0]
    for axes, (name, mixture) in zip(row, layers.items()):
        for sign, kernel in zip((1, -1), sides(mixture, lags + 1)):
            for head, values in enumerate(kernel[:, 1:].tolist()):
                axes.plot(
                    [sign * lag for lag in range(1, len(values) + 1)],
                    values,
                    color=COLOURS[head % len(COLOURS)],
                    linewidth=1.2,
                    label=f"{head}: {head_label(mixture, head)}" if sign > 0 else None,
                )
        axes.set_title(f"{label}, {name}", fontsize=9)
        axes.set_xlabel("lag")
        axes.legend(frameon=False, fontsize=6)
        plain_axes(axes)
    row[0].set_ylabel("kernel")


def _matrices(part: Any, title: str, mixture: Any, size: int) -> None:
    """Draw P of each head as an image, positive entries red and negative ones blue."""
    per_head = mixture.first_rows(size)
    row = part.subplots(1, len(per_head), squeeze=False)[0]
    largest = max(float(per_head.abs().max()), 1e-12)
    for head, (axes, matrix) in enumerate(zip(row, per_head)):
        image = axes.imshow(matrix, cmap="RdBu_r", vmin=-largest, vmax=largest)
        axes.set_title(f"{head}: {head_label(mixture, head)}", fontsize=7)
        axes.tick_params(labelsize=6)
    part.colorbar(image, ax=row.tolist(), shrink=0.8)
    part.suptitle(title, fontsize=9)


def place_of(name: str) -> tuple[int, int]:
    """A sort key: the encoder's layers, the decoder's, their cross-attentions, each by number."""
    place, index = name.split(".")
    return ("encoder", "decoder", "cross").index(place), int(index)
