"""Boxes, arrows and maps for the figures of the documentation."""

from collections.abc import Sequence

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.patches import FancyBboxPatch  # noqa: E402

HOST, SLOT, RECURRENT = "#e8eaed", "#c9dcf5", "#fbdcb8"
"""Colours: fairseq's Transformer; a slot with exchangeable parts; what is recurrent."""

BACK = "#b3541e"
"""The colour of an arrow from a state back to what computes the next one."""

# The same file each time: no date, no random names.
plt.rcParams.update(
    {"svg.hashsalt": "fairseq_recur", "font.size": 9, "mathtext.fontset": "dejavusans"}
)


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A page of so many inches, on which a unit is an inch."""
    figure = plt.figure(figsize=(width, height))
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, width), ylim=(0, height))
    ax.axis("off")
    return figure, ax


def box(
    ax: Axes, x: float, y: float, text: str, colour: str = HOST, w: float = 1.7, h: float = 0.42
) -> None:
    """A box around its middle (x, y), with text in it."""
    shape = FancyBboxPatch(
        (x - w / 2, y - h / 2), w, h, boxstyle="round,pad=0,rounding_size=0.06",
        facecolor=colour, edgecolor="#5f6368", linewidth=0.8,
    )  # fmt: skip
    ax.add_patch(shape)
    ax.text(x, y, text, ha="center", va="center")


def layers(ax: Axes, x: float, low: float, high: float, count: str) -> None:
    """A frame around the sublayers of a layer, with the number of layers at its side."""
    ax.add_patch(FancyBboxPatch(
        (x - 0.97, low), 1.94, high - low, boxstyle="round,pad=0,rounding_size=0.06",
        facecolor="none", edgecolor="#5f6368", linewidth=0.8, linestyle=":",
    ))  # fmt: skip
    ax.text(x - 1.03, (low + high) / 2, count, ha="right", va="center")


def arrow(ax: Axes, *points: tuple[float, float], colour: str = "#3c4043") -> None:
    """A line through the points, with its head at the last one."""
    for start, end in zip(points[:-2], points[1:-1]):
        ax.plot(*zip(start, end), color=colour, linewidth=1)
    ax.annotate(
        "", xy=points[-1], xytext=points[-2],
        arrowprops={
            "arrowstyle": "-|>", "color": colour, "linewidth": 1, "shrinkA": 0, "shrinkB": 0
        },
    )  # fmt: skip


def column(
    ax: Axes, x: float, y: float, boxes: Sequence[tuple[str, str]], step: float = 0.72
) -> None:
    """Boxes one above the other, from the bottom, joined by arrows."""
    for i, (text, colour) in enumerate(boxes):
        box(ax, x, y + i * step, text, colour)
        if i:
            arrow(ax, (x, y + (i - 1) * step + 0.21), (x, y + i * step - 0.21))


def bare_map(ax: Axes, values: object, title: str, **options: object) -> None:
    """A matrix as colours, rows downwards, without numbers at its sides."""
    ax.imshow(values, **options)
    ax.set(xticks=[], yticks=[])
    ax.set_title(title, fontsize=9)
