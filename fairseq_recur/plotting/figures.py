"""Figures without a display. Only this module imports matplotlib, an optional dependency."""

import argparse
import contextlib
import logging
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_recur.errors import ConfigError
from fairseq_recur.files import behind_link, check_outputs, whole_file

logger = logging.getLogger(__name__)

# Colours that people with colour blindness can distinguish (Okabe and Ito).
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
SUFFIXES = (".png", ".pdf", ".svg")


def add_output_arguments(parser: argparse.ArgumentParser, labels: bool = False) -> None:
    """Declare --output, and --label for figures of several files."""
    parser.add_argument(
        "--output", required=True, metavar="FILE", help="figure to write: .png, .pdf or .svg"
    )
    if labels:
        parser.add_argument(
            "--label",
            action="append",
            metavar="NAME",
            help="label of a file, in the order of the files (default: the file's name)",
        )


def check_output(output: str) -> Path:
    """Return the path of the figure to write.

    Raises:
        ConfigError: the suffix is not a supported format, the file cannot be written, or
            matplotlib is not installed
    """
    path = Path(output)
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"--output {output}: expected a name that ends in .png, .pdf or .svg")
    check_outputs(path)
    new_figure(1.0, 1.0)
    return path


def new_figure(width: float, height: float, layout: Any = "constrained") -> Any:
    """Create an empty matplotlib Figure; its sizes are in inches.

    Args:
        layout: matplotlib's layout engine; "none" leaves the layout to the caller

    Raises:
        ConfigError: matplotlib is not installed
    """
    # At level INFO it reports its search for fonts.
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(f"plot needs matplotlib ({error}): pip install matplotlib") from error
    figure = Figure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(figure)
    return figure


def save(figure: Any, output: Path) -> None:
    """Write a figure and print its path.

    No text is an equation: file names, columns and labels may have any number of ``$``. So the
    powers at a logarithmic axis are plain numbers.
    """
    from matplotlib.text import Text
    from matplotlib.ticker import LogFormatterMathtext, NullFormatter, StrMethodFormatter

    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if isinstance(axis.get_major_formatter(), LogFormatterMathtext):
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.set_minor_formatter(NullFormatter())
    texts = figure.findobj(Text)
    for text in texts:
        text.set_parse_math(False)
    set_fonts(texts)
    with whole_file(behind_link(output)) as file, warnings.catch_warnings():
        # `set_fonts` gives one warning for all characters.
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from")
        figure.savefig(file, dpi=150, format=output.suffix[1:])
    print(output)


def plain_axes(axes: Any) -> None:
    """Give axes a light grid behind the curves, and no frame at the top and right."""
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def add_legend(axes: Any, **look: Any) -> None:
    """Give axes a legend of all lines, also of those whose label begins with "_"."""
    lines = list(axes.lines)
    # matplotlib leaves out such labels, and its older versions even if they are given here.
    legend = axes.legend(lines, ["line"] * len(lines), frameon=False, **look)
    for text, line in zip(legend.get_texts(), lines):
        text.set_text(line.get_label())


def ranges(
    middles: Sequence[float], values: Sequence[Sequence[float]]
) -> tuple[list[float], list[float]] | None:
    """Return how far each middle is from its smallest and its largest value, for error bars.

    A single value has no range, and no bar. None if no middle has a range: a curve without bars has
    none in the legend either.
    """
    if all(len(v) < 2 for v in values):
        return None
    several = [m if len(v) > 1 else math.nan for m, v in zip(middles, values)]
    return (
        [m - min(v) for m, v in zip(several, values)],
        [max(v) - m for m, v in zip(several, values)],
    )


def set_fonts(texts: Sequence[Any]) -> None:
    """Give matplotlib's texts fonts that have their characters.

    One warning is logged if no installed font has some of them.
    """
    families, missing = fonts_for([text.get_text() for text in texts])
    for text in texts if len(families) > 1 else []:
        text.set_fontfamily(families)
    if missing:
        logger.warning(
            "no installed font has the characters %s, so the figure shows boxes; install one "
            "(Debian, Ubuntu: apt install %s)",
            missing,
            font_package(missing),
        )


def fonts_for(texts: Sequence[str]) -> tuple[list[str], str]:
    """Choose font families that together have all characters of the texts.

    Returns:
        the families, matplotlib's own first, and the characters that no installed font has
    """
    from matplotlib import font_manager

    default = font_manager.FontProperties(family="DejaVu Sans")
    families = ["DejaVu Sans"]
    missing = {c for text in texts for c in text if not c.isspace()}
    missing -= characters(font_manager.findfont(default))
    if missing:
        _add_new_fonts()
    for font in sorted(font_manager.fontManager.ttflist, key=lambda font: font.name):
        if not missing:
            break
        # matplotlib includes a font that has a box for every character.
        if font.name not in families and not font.name.startswith("Last Resort"):
            found = characters(font.fname) & missing
            if found:
                families.append(font.name)
                missing -= found
    return families, "".join(sorted(missing))


def _add_new_fonts() -> None:
    """Register the fonts installed since matplotlib stored its list of them."""
    from matplotlib import font_manager

    manager = font_manager.fontManager
    listed = {font.fname for font in manager.ttflist}
    for path in set(font_manager.findSystemFonts()) - listed:
        with contextlib.suppress(RuntimeError, OSError):  # a damaged font file
            manager.addfont(path)


def font_package(missing: str) -> str:
    """Return the Debian package with a font for characters that no installed font has."""
    cjk = any(
        "\u2e80" <= c <= "\u9fff" or "\uac00" <= c <= "\ud7ff" or c > "\uff00" for c in missing
    )
    return "fonts-noto-cjk" if cjk else "fonts-noto"


def characters(font: str) -> set[str]:
    """Return the characters in a font file."""
    from matplotlib.font_manager import get_font

    try:
        return {chr(code) for code in get_font(font).get_charmap()}
    except (RuntimeError, OSError):  # a damaged font file, or one that was removed
        return set()
