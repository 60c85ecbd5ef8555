"""Figures of attention weights: one matrix per panel, and the gates of all layers as curves.

The layout is computed in inches. Cells have the same size in all panels, the figure grows with the
sentence, and matplotlib's automatic layout, which is slow for dozens of panels, is not needed.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from unicodedata import east_asian_width

from fairseq_recur.inspection.panels import Panel
from fairseq_recur.plotting.figures import COLOURS, new_figure, plain_axes

FONT_SIZE = 7
CHARACTER, LINE = 0.066, 0.14
"""Mean width of a character and height of a line at that size, in inches."""

CELL = 0.2
SMALLEST, LARGEST = 0.8, 12.0
"""Sides of a cell and limits for the sides of a matrix; cells shrink beyond the largest."""

SHELF = 14.0
"""Width at which a new row of panels begins; a wider panel has a row for itself."""

SCALES = ("panel", "one")
"""Upper end of the colour scale: the matrix's largest value, or 1."""

GAP, BAR, BAR_LABELS = 0.08, 0.1, 0.4
LONGEST_LABEL = 24
WIDER_TITLE = 1.15
"""Size of a title's characters relative to those of labels."""


@dataclass(frozen=True)
class Box:
    """The layout of one axes: a matrix, or the gates of all layers. Sizes are in inches.

    Attributes:
        panels: one panel, or those of all gates
        title, column_title: text above and below
        left, below, above: space for labels and title
        width, height: of the axes
        right: space for the colour bar or legend, and for text that is wider than the axes
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
        """Width and height, with labels."""
        return self.left + self.width + self.right, self.below + self.height + self.above


def draw(panels: Sequence[Panel], scale: str = "panel") -> Any:
    """Return a matplotlib Figure with the panels from left to right in rows.

    The scale is one of `SCALES`.
    """
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
                draw_gates(figure, box, place)
            else:
                draw_matrix(figure, box, place, scale)
            x += box.whole[0]
        top -= height
    return figure


def boxes(panels: Sequence[Panel]) -> list[Box]:
    """Return one box per matrix and one for all gates, with space for their labels."""
    gates = [panel for panel in panels if panel.kind == "gate"]
    found = [matrix_box(panel) for panel in panels if panel.kind != "gate"]
    return [*found, gate_box(gates)] if gates else found


def matrix_box(panel: Panel) -> Box:
    """Lay out a matrix."""
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
        right=max(right, widest + GAP - width),  # a word may be longer than a line
    )


def gate_box(panels: list[Panel]) -> Box:
    """Lay out the gates."""
    scalar = panels[0].values.size(1) == 1
    vector = "mean over the channels, and the range of 80% of them"
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
    """Distribute the boxes over the rows of the figure."""
    shelves: list[list[Box]] = [[]]
    for box in all_boxes:
        if shelves[-1] and sum(b.whole[0] for b in shelves[-1]) + box.whole[0] > SHELF:
            shelves.append([])
        shelves[-1].append(box)
    return shelves


def side(tokens: int) -> float:
    """The length of an axis with that many tokens."""
    return min(max(CELL * tokens, SMALLEST), LARGEST)


def text_width(texts: Sequence[str]) -> float:
    """The approximate width of the longest text; East Asian characters count twice."""

    def wide(text: str) -> int:
        return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)

    return CHARACTER * max(map(wide, texts))


def wrapped(text: str, width: float) -> str:
    """Wrap a title at *width* inches, so that panels of the same size line up in columns."""
    characters = int(width / (WIDER_TITLE * CHARACTER))
    return "\n".join(part for line in text.split("\n") for part in textwrap.wrap(line, characters))


def shortened(labels: Sequence[str]) -> list[str]:
    """Shorten labels to leave space for the matrix."""
    return [
        text if len(text) <= LONGEST_LABEL else text[: LONGEST_LABEL - 1] + "\u2026"
        for text in labels
    ]


def add_axes(figure: Any, x: float, y: float, width: float, height: float) -> Any:
    """Add axes at a position in inches."""
    whole, tall = figure.get_size_inches()
    return figure.add_axes((x / whole, y / tall, width / whole, height / tall))


def draw_matrix(figure: Any, box: Box, place: tuple[float, float], scale: str) -> None:
    """Draw a matrix as an image. The colour scale starts at 0, or is symmetric if P is negative."""
    (panel,) = box.panels
    axes = add_axes(figure, *place, box.width, box.height)
    values = panel.values.numpy()
    largest = float(abs(values).max())
    if values.min() < -1e-6 or largest > 1 + 1e-3:
        colours = {"cmap": "RdBu_r", "vmin": -largest, "vmax": largest}
    else:
        colours = {"cmap": "Blues", "vmin": 0.0, "vmax": 1.0 if scale == "one" else largest or 1.0}
    image = axes.imshow(values, aspect="auto", interpolation="nearest", **colours)
    describe(axes, box, panel.row_title)
    label(axes.xaxis, panel.columns, box.width, rotation=90)
    label(axes.yaxis, panel.rows, box.height)
    bar = add_axes(figure, place[0] + box.width + GAP, place[1], BAR, box.height)
    figure.colorbar(image, cax=bar)
    bar.tick_params(labelsize=FONT_SIZE - 1, length=2, pad=1)


def draw_gates(figure: Any, box: Box, place: tuple[float, float]) -> None:
    """Draw lambda over the target tokens: one line per layer, and the spread of the channels."""
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
    label(axes.xaxis, box.panels[0].rows, box.width, rotation=90)
    axes.tick_params(axis="y", labelsize=FONT_SIZE)
    axes.legend(
        fontsize=FONT_SIZE, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), borderpad=0
    )
    plain_axes(axes)


def describe(axes: Any, box: Box, row_title: str) -> None:
    """Write the titles; those above and below are aligned with the axes' left edge."""
    axes.set_title(box.title, fontsize=FONT_SIZE + 1, loc="left")
    axes.set_xlabel(box.column_title, fontsize=FONT_SIZE, loc="left")
    axes.set_ylabel(row_title, fontsize=FONT_SIZE)


def label(axis: Any, labels: list[str], size: float, rotation: float = 0) -> None:
    """Label an axis with tokens: all of them, or every second, third, ... if space is short."""
    every = -(-len(labels) // max(1, int(size / LINE)))
    places = range(0, len(labels), every)
    shown = shortened(labels)
    axis.set_ticks(
        list(places),
        [shown[place] for place in places],
        fontsize=FONT_SIZE,
        rotation=rotation,
    )
    axis.set_tick_params(length=2, pad=1)
