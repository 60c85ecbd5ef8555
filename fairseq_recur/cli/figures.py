"""Figures that need no display; matplotlib is an extra of this package and imported here alone."""

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_recur.errors import ConfigError

logger = logging.getLogger(__name__)

# Colours that people with colour blindness can tell apart (Okabe and Ito).
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
SUFFIXES = (".png", ".pdf", ".svg")


def check_output(output: str) -> Path:
    """Return where a figure is to be written.

    Raises ConfigError if the name does not tell the format, or matplotlib is not installed.
    """
    path = Path(output)
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"--output {output}: expected a name that ends in .png, .pdf or .svg")
    new_figure(1.0, 1.0)
    return path


def new_figure(width: float, height: float, layout: str = "constrained") -> Any:
    """Make an empty matplotlib Figure, its size in inches; layout "none" leaves it to the caller.

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
    figure = Figure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(figure)
    return figure


def save(figure: Any, output: Path) -> None:
    """Write a figure, and print where."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        # `fonts_for` has said it once for all characters.
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from")
        figure.savefig(output, dpi=150)
    print(output)


def plain_axes(axes: Any) -> None:
    """Give axes a light grid behind the curves and no frame."""
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def fonts_for(texts: Sequence[str]) -> tuple[list[str], str]:
    """Choose font families that have all characters, as far as the machine's fonts do.

    Returns the families, matplotlib's own first, and the characters that none has.
    """
    from matplotlib import font_manager

    default = font_manager.FontProperties(family="DejaVu Sans")
    families = ["DejaVu Sans"]
    missing = {c for text in texts for c in text if not c.isspace()}
    missing -= characters(font_manager.findfont(default))
    for font in sorted(font_manager.fontManager.ttflist, key=lambda font: font.name):
        if not missing:
            break
        # matplotlib brings a font that has a box for everything.
        if font.name not in families and not font.name.startswith("Last Resort"):
            has = characters(font.fname) & missing
            if has:
                families.append(font.name)
                missing -= has
    return families, "".join(sorted(missing))


def characters(font: str) -> set[str]:
    """The characters that a font's file has."""
    from matplotlib.font_manager import get_font

    try:
        return {chr(code) for code in get_font(font).get_charmap()}
    except RuntimeError:  # a damaged file among the machine's fonts
        return set()
