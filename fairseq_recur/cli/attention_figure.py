"""Drawing what a model looks at: a matrix for each panel, the gates of all layers as curves."""

import logging
from dataclasses import dataclass
from typing import Any, List, Sequence

from fairseq_recur.cli.figures import COLOURS, fonts_for, new_figure, plain_axes
from fairseq_recur.inspection.panels import Panel

logger = logging.getLogger(__name__)

# Inches.
CELL, FONT_HEIGHT = 0.2, 0.14
SMALLEST, LARGEST = 1.2, 12.0
SHELF = 15.0
CHARACTER = 0.075

LONGEST_LABEL = 24
FONT_SIZE = 7


@dataclass(frozen=True)
class Box:
    """One axes: a matrix, or the gates of all layers.

    Attributes:
        panels: one, or those of the gates
        width, height: inches with labels, title and colour bar
    """

    panels: List[Panel]
    width: float
    height: float


def draw(panels: Sequence[Panel]) -> Any:
    """Draw panels from left to right in rows; those of one kind begin a row.

    Returns a matplotlib Figure. Logs one warning if the machine's fonts lack characters.
    """
    texts = [text for panel in panels for text in (*panel.rows, *panel.columns)]
    fonts, missing = fonts_for(texts)
    if missing:
        logger.warning("no font on this machine has the characters %s; boxes stand for them", missing)
    shelves = arrange(panels)
    widths = [sum(box.width for box in shelf) for shelf in shelves]
    heights = [max(box.height for box in shelf) for shelf in shelves]
    figure = new_figure(max(widths), sum(heights))
    rows = figure.subfigures(len(shelves), 1, squeeze=False, height_ratios=heights)[:, 0]
    for row, shelf, width in zip(rows, shelves, widths):
        ratios = [box.width for box in shelf]
        rest = max(widths) - width
        if rest > 0:
            ratios.append(rest)  # stays empty, so that cells have one size
        columns = row.subfigures(1, len(ratios), squeeze=False, width_ratios=ratios)[0]
        for part, box in zip(columns, shelf):
            if box.panels[0].kind == "gate":
                draw_gates(part, box.panels, fonts)
            else:
                draw_matrix(part, box.panels[0], fonts)
    return figure


def arrange(panels: Sequence[Panel]) -> List[List[Box]]:
    """The boxes of each row of the figure."""
    shelves: List[List[Box]] = []
    gates = [panel for panel in panels if panel.kind == "gate"]
    for panel in panels:
        if panel.kind == "gate" and panel is not gates[0]:
            continue
        box = box_of(gates if panel.kind == "gate" else [panel])
        last = shelves[-1] if shelves else []
        same = bool(last) and last[-1].panels[0].kind == panel.kind
        if same and sum(b.width for b in last) + box.width <= SHELF:
            last.append(box)
        else:
            shelves.append([box])
    return shelves


def box_of(panels: List[Panel]) -> Box:
    """A box that has room for its panel's labels."""
    panel = panels[0]
    below = CHARACTER * max(map(len, shortened(panel.rows if panel.kind == "gate" else panel.columns)))
    if panel.kind == "gate":
        return Box(panels, side(len(panel.rows)) + 2.6, 2.6 + below)
    left = CHARACTER * max(map(len, shortened(panel.rows)))
    lines = panel.title.split("\n")
    inner = max(side(len(panel.columns)) + left + 1.2, 0.08 * max(map(len, lines)) + 0.3)
    return Box(panels, inner, side(len(panel.rows)) + below + 0.6 + 0.17 * len(lines))


def side(tokens: int) -> float:
    """The length of an axis with so many tokens."""
    return min(max(CELL * tokens, SMALLEST), LARGEST)


def draw_matrix(part: Any, panel: Panel, fonts: List[str]) -> None:
    """Draw a matrix as an image: 0 to 1, or, as P can be negative, around 0."""
    axes = part.subplots()
    values = panel.values.numpy()
    largest = float(abs(values).max())
    if values.min() < -1e-6 or largest > 1 + 1e-3:
        scale = {"cmap": "RdBu_r", "vmin": -largest, "vmax": largest}
    else:
        scale = {"cmap": "Blues", "vmin": 0.0, "vmax": 1.0}
    image = axes.imshow(values, aspect="auto", interpolation="nearest", **scale)
    axes.set_title(panel.title, fontsize=FONT_SIZE + 1)
    axes.set_xlabel(panel.column_title, fontsize=FONT_SIZE)
    axes.set_ylabel(panel.row_title, fontsize=FONT_SIZE)
    label(axes.xaxis, panel.columns, fonts, rotation=90)
    label(axes.yaxis, panel.rows, fonts)
    bar = part.colorbar(image, ax=axes, fraction=0.05, pad=0.02, aspect=25)
    bar.ax.tick_params(labelsize=FONT_SIZE - 1)
    bar.outline.set_visible(False)


def draw_gates(part: Any, panels: List[Panel], fonts: List[str]) -> None:
    """Draw lambda over the target's tokens, a line for each layer, and the channels' spread."""
    axes = part.subplots()
    for panel in panels:
        colour = COLOURS[panel.layer % len(COLOURS)]
        mean, *spread = panel.values.t().tolist()
        places = range(len(mean))
        axes.plot(places, mean, "o-", color=colour, markersize=3, label=f"layer {panel.layer}")
        if spread:
            axes.fill_between(places, *spread, color=colour, alpha=0.15, linewidth=0)
    axes.set_ylim(0, 1)
    vector = panels[0].values.size(1) > 1
    axes.set_title(
        f"{panels[0].title}\n"
        + ("mean over the channels, and where 80% of them are" if vector else "one for all channels"),
        fontsize=FONT_SIZE + 1,
    )
    axes.set_xlabel(panels[0].row_title, fontsize=FONT_SIZE)
    axes.set_ylabel("\u03bb: 1 takes the encoder,\n0 the recurrence encoder", fontsize=FONT_SIZE)
    label(axes.xaxis, panels[0].rows, fonts, rotation=90)
    axes.tick_params(axis="y", labelsize=FONT_SIZE)
    axes.legend(fontsize=FONT_SIZE, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    plain_axes(axes)


def label(axis: Any, labels: List[str], fonts: List[str], rotation: float = 0) -> None:
    """Put tokens at an axis, every one or, where there is no room, every second, third, ..."""
    every = -(-len(labels) * FONT_HEIGHT // LARGEST) if len(labels) * FONT_HEIGHT > LARGEST else 1
    places = range(0, len(labels), int(every))
    shown = shortened(labels)
    axis.set_ticks(
        list(places),
        [shown[place] for place in places],
        fontfamily=fonts,
        fontsize=FONT_SIZE,
        rotation=rotation,
        parse_math=False,
    )
    axis.set_tick_params(length=2, pad=1)


def shortened(labels: Sequence[str]) -> List[str]:
    """Labels of a length that leaves room for the matrix."""
    return [
        text if len(text) <= LONGEST_LABEL else text[: LONGEST_LABEL - 1] + "\u2026"
        for text in labels
    ]
