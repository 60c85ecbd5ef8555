"""Drawing what a model looks at: a matrix for each panel, the gates of all layers as curves.

Everything has its place in inches: a cell has one size in all panels, the figure grows with the
sentence, and matplotlib's automatic layout, slow for dozens of panels, is not needed.
"""

import logging
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from unicodedata import east_asian_width

from fairseq_recur.cli.figures import COLOURS, fonts_for, new_figure, plain_axes
from fairseq_recur.inspection.panels import Panel

logger = logging.getLogger(__name__)

FONT_SIZE = 7
CHARACTER, LINE = 0.066, 0.14
"""A letter's mean width and a line's height at that size, in inches."""

CELL = 0.2
SMALLEST, LARGEST = 0.8, 12.0
"""Sides of a cell, and of a matrix; beyond the largest the cells shrink."""

SHELF = 14.0
"""Width of the figure beyond which a new row begins, if there is more than one panel in it."""

SCALES = ("one", "panel")
"""Where the colours of a matrix end: at 1, or at its largest value."""

GAP, BAR, BAR_LABELS = 0.08, 0.1, 0.4
LONGEST_LABEL = 24
WIDER_TITLE = 1.15
"""The size of a title's letters; those of labels have 1."""


@dataclass(frozen=True)
class Box:
    """One axes: a matrix, or the gates of all layers. All sizes are in inches.

    Attributes:
        panels: one, or those of the gates
        title, column_title: text above and below
        left, below, above: room for the labels and the title
        width, height: of the axes
        right: room for the colour bar or the legend, and for what is wider than the axes
    """

    panels: list[Panel]
    title: str
    column_title: str
    left: float
    below: float
    above: float
    width: float
    height: float
    right: float

    @property
    def whole(self) -> tuple[float, float]:
        """Width and height with everything."""
        return self.left + self.width + self.right, self.below + self.height + self.above


def draw(panels: Sequence[Panel], scale: str = "one") -> Any:
    """Draw panels from left to right in rows.

    Args:
        panels: at least one
        scale: one of `SCALES`

    Returns a matplotlib Figure. Logs one warning if the machine's fonts lack characters.
    """
    texts = [text for panel in panels for text in (*panel.rows, *panel.columns)]
    fonts, missing = fonts_for(texts)
    if missing:
        logger.warning("no font here has the characters %s; boxes stand for them", missing)
    shelves = arrange(boxes(panels))
    width = max(sum(box.whole[0] for box in shelf) for shelf in shelves)
    heights = [max(box.whole[1] for box in shelf) for shelf in shelves]
    figure = new_figure(width, sum(heights), layout="none")
    top = sum(heights)
    for shelf, height in zip(shelves, heights):
        x = 0.0
        for box in shelf:
            place = x + box.left, top - box.above - box.height
            if box.panels[0].kind == "gate":
                draw_gates(figure, box, place, fonts)
            else:
                draw_matrix(figure, box, place, fonts, scale)
            x += box.whole[0]
        top -= height
    return figure


def boxes(panels: Sequence[Panel]) -> list[Box]:
    """A box for each matrix and one for the gates, with room for their labels."""
    gates = [panel for panel in panels if panel.kind == "gate"]
    found = [matrix_box(panel) for panel in panels if panel.kind != "gate"]
    return [*found, gate_box(gates)] if gates else found


def matrix_box(panel: Panel) -> Box:
    """The box of a matrix."""
    width, height = side(len(panel.columns)), side(len(panel.rows))
    right = GAP + BAR + BAR_LABELS
    title, below = (
        wrapped(text, width + right - GAP) for text in (panel.title, panel.column_title)
    )
    widest = text_width([*title.split("\n"), *below.split("\n")]) * WIDER_TITLE
    return Box(
        [panel],
        title,
        below,
        left=text_width(shortened(panel.rows)) + 2 * LINE + GAP,
        below=text_width(shortened(panel.columns)) + (below.count("\n") + 2.5) * LINE,
        above=(title.count("\n") + 2) * LINE,
        width=width,
        height=height,
        right=max(right, widest + GAP - width),  # of a word longer than a line
    )


def gate_box(panels: list[Panel]) -> Box:
    """The box of all gates."""
    scalar = panels[0].values.size(1) == 1
    vector = "mean over the channels, and where 80% of them are"
    spread = "one for all channels" if scalar else vector
    title = f"{panels[0].title}\n{spread}"
    width = max(side(len(panels[0].rows)), 1.5 * SMALLEST)
    return Box(
        panels,
        title,
        panels[0].row_title,
        left=6 * LINE,
        below=text_width(shortened(panels[0].rows)) + 2.5 * LINE,
        above=3 * LINE,
        width=width,
        height=10 * CELL,
        right=max(1.0, text_width([spread]) * WIDER_TITLE + GAP - width),
    )


def arrange(all_boxes: list[Box]) -> list[list[Box]]:
    """The boxes of each row of the figure."""
    shelves: list[list[Box]] = [[]]
    for box in all_boxes:
        if shelves[-1] and sum(b.whole[0] for b in shelves[-1]) + box.whole[0] > SHELF:
            shelves.append([])
        shelves[-1].append(box)
    return shelves


def side(tokens: int) -> float:
    """The length of an axis with so many tokens."""
    return min(max(CELL * tokens, SMALLEST), LARGEST)


def text_width(texts: Sequence[str]) -> float:
    """About the width of the longest text; Chinese and its like are twice as wide."""

    def wide(text: str) -> int:
        return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)

    return CHARACTER * max(map(wide, texts))


def wrapped(text: str, width: float) -> str:
    """Lines no longer than *width* inches as a title, so that panels of one size stand in columns."""
    letters = int(width / (WIDER_TITLE * CHARACTER))
    return "\n".join(part for line in text.split("\n") for part in textwrap.wrap(line, letters))


def shortened(labels: Sequence[str]) -> list[str]:
    """Labels of a length that leaves room for the matrix."""
    return [
        text if len(text) <= LONGEST_LABEL else text[: LONGEST_LABEL - 1] + "\u2026"
        for text in labels
    ]


def add_axes(figure: Any, x: float, y: float, width: float, height: float) -> Any:
    """Axes at a place in inches."""
    whole, tall = figure.get_size_inches()
    return figure.add_axes((x / whole, y / tall, width / whole, height / tall))


def draw_matrix(
    figure: Any, box: Box, place: tuple[float, float], fonts: list[str], scale: str
) -> None:
    """Draw a matrix as an image: from 0 up, or, as P can be negative, around 0."""
    (panel,) = box.panels
    axes = add_axes(figure, *place, box.width, box.height)
    values = panel.values.numpy()
    largest = float(abs(values).max())
    if values.min() < -1e-6 or largest > 1 + 1e-3:
        colours = {"cmap": "RdBu_r", "vmin": -largest, "vmax": largest}
    else:
        colours = {"cmap": "Blues", "vmin": 0.0, "vmax": 1.0 if scale == "one" else largest}
    image = axes.imshow(values, aspect="auto", interpolation="nearest", **colours)
    describe(axes, box, panel.row_title)
    label(axes.xaxis, panel.columns, box.width, fonts, rotation=90)
    label(axes.yaxis, panel.rows, box.height, fonts)
    bar = add_axes(figure, place[0] + box.width + GAP, place[1], BAR, box.height)
    figure.colorbar(image, cax=bar)
    bar.tick_params(labelsize=FONT_SIZE - 1, length=2, pad=1)


def draw_gates(figure: Any, box: Box, place: tuple[float, float], fonts: list[str]) -> None:
    """Draw lambda over the target's tokens, a line for each layer, and the channels' spread."""
    axes = add_axes(figure, *place, box.width, box.height)
    for panel in box.panels:
        colour = COLOURS[panel.layer % len(COLOURS)]
        mean, *spread = panel.values.t().tolist()
        positions = range(len(mean))
        axes.plot(positions, mean, "o-", color=colour, markersize=3, label=f"layer {panel.layer}")
        if spread:
            axes.fill_between(positions, *spread, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlim(-0.5, len(box.panels[0].rows) - 0.5)
    axes.set_ylim(0, 1)
    describe(axes, box, "\u03bb: 1 for the encoder,\n0 for the recurrence encoder")
    label(axes.xaxis, box.panels[0].rows, box.width, fonts, rotation=90)
    axes.tick_params(axis="y", labelsize=FONT_SIZE)
    axes.legend(
        fontsize=FONT_SIZE, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), borderpad=0
    )
    plain_axes(axes)


def describe(axes: Any, box: Box, row_title: str) -> None:
    """Write the titles; those above and below begin where the axes do."""
    axes.set_title(box.title, fontsize=FONT_SIZE + 1, loc="left")
    axes.set_xlabel(box.column_title, fontsize=FONT_SIZE, loc="left")
    axes.set_ylabel(row_title, fontsize=FONT_SIZE)


def label(axis: Any, labels: list[str], size: float, fonts: list[str], rotation: float = 0) -> None:
    """Put tokens at an axis: each, or where there is no room every second, third, ..."""
    every = -(-len(labels) // max(1, int(size / LINE)))
    places = range(0, len(labels), every)
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
