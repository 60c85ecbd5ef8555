"""Scripts that draw the figure of an experiment's results."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fairseq_recur.errors import ConfigError

Results = dict[str, Any]


def read_results(file: Path, rows: str) -> Results:
    """Read the results of an experiment.

    Args:
        file: a results.json
        rows: the key of what has been finished, such as "runs"

    Raises:
        ConfigError: the file has none
    """
    try:
        results: Results = json.loads(file.read_text(encoding="utf-8"))
        if results[rows]:
            return results
    except (ValueError, KeyError, TypeError):
        pass
    raise ConfigError(f"{file}: expected the results.json of an experiment with finished {rows}")


def draw_results(
    draw: Callable[[Results, Path], None],
    about: str | None,
    rows: str = "runs",
    words: Sequence[str] | None = None,
) -> int:
    """Run as a program with the arguments RESULTS.json and FIGURE.png.

    Args:
        draw: writes the figure of results to a file
        about: what the program says of itself
        rows: as in `read_results`
        words: the arguments; by default the command line's

    Returns:
        The exit status: 0, or 2 for files that cannot be used.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, metavar="RESULTS.json")
    parser.add_argument("figure", type=Path, metavar="FIGURE.png")
    args = parser.parse_args(words)
    try:
        draw(read_results(args.results, rows), args.figure)
    except (OSError, ValueError) as error:  # also of a format that matplotlib does not know
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
