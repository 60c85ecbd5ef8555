"""Figures that need no display; matplotlib is an extra of this package and imported here alone."""

import logging
from typing import Any

from fairseq_recur.errors import ConfigError

# Colours that people with colour blindness can tell apart (Okabe and Ito).
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]


def new_figure(width: float, height: float) -> Any:
    """Make an empty matplotlib Figure, its size in inches.

    Raises ConfigError if matplotlib is not installed.
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
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain_axes(axes: Any) -> None:
    """Give axes a light grid behind the curves and no frame."""
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
