"""Print how many segments the texts of a prepared training set have.

    PYTHONPATH=scripts python -m recipes.summary_segments PIECES SEGMENT TARGET_LENGTH

PIECES has train.source and train.target in pieces. A warning names better values where there are
too many segments.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean, median

FEWEST, MOST = 4, 16
"""How many segments there should be on average."""

TEXTS = 20_000
"""How many of the texts are counted: the first ones, because all may take a minute."""

MOST_UNREAD = 0.1
"""The share of texts that may have segments which are not read."""


def lengths(file: Path) -> list[int]:
    """Return the number of pieces of each of the first lines, with the end symbol.

    Raises:
        OSError: the file cannot be read
    """
    with open(file, encoding="utf-8", newline="\n") as lines:
        return [len(line.split()) + 1 for line in islice(lines, TEXTS)]


def segments(sources: Sequence[int], size: int) -> list[int]:
    """Return the number of segments of `size` pieces in sources of these lengths."""
    return [-(-length // size) for length in sources]


def suggest(sources: Sequence[int], targets: Sequence[int]) -> tuple[int, int]:
    """Return a segment size with which there are 4 to 8 segments on average, and a target length.

    The size is a power of two. Texts of less than four pieces have fewer segments. The target
    length is that of the median summary, or more, so that nine of ten texts are read whole.

    Args:
        sources, targets: number of pieces of each text and of each summary
    """
    size = 1
    while fmean(segments(sources, size)) > 2 * FEWEST:
        size *= 2
    counts = sorted(segments(sources, size))
    read = counts[math.ceil((1 - MOST_UNREAD) * len(counts)) - 1]
    return size, max(round(median(targets)), read)


def describe(
    sources: Sequence[int], targets: Sequence[int], size: int, target_length: int
) -> tuple[str, str]:
    """Return what is printed about the segments, and a warning or "".

    Args:
        sources, targets: number of pieces of each text and of each summary
        size: of a segment, in pieces
        target_length: the number of segments that are read at most
    """
    counts = segments(sources, size)
    average = fmean(counts)
    unread = sum(count > target_length for count in counts) / len(counts)
    report = (
        f"segments of {size} pieces: the training texts have {average:.1f} on average, at most "
        f"{max(counts):,}; {unread:.1%} have more than {target_length}, the target length"
    )
    if average <= MOST and unread <= MOST_UNREAD:
        return report, ""
    other, length = suggest(sources, targets)
    return report, (
        f"warning: there should be {FEWEST} to {MOST} segments on average, and no more than the "
        f"target length, or some are never read; with segments of {other} and a target length of "
        f"{length} there would be {fmean(segments(sources, other)):.1f}"
    )


def main(words: list[str] | None = None) -> int:
    """Print the report, and the warning on stderr; return 0, or 2 for files that are missing."""
    parser = argparse.ArgumentParser("recipes.summary_segments", description=__doc__.split("\n")[0])
    parser.add_argument("pieces", type=Path, metavar="PIECES")
    parser.add_argument("size", type=int, metavar="SEGMENT")
    parser.add_argument("target_length", type=int, metavar="TARGET_LENGTH")
    args = parser.parse_args(words)
    try:
        sides = [lengths(args.pieces / f"train.{side}") for side in ("source", "target")]
    except OSError as error:
        print(f"error: {error}; prepare the data first", file=sys.stderr)
        return 2
    report, warning = describe(*sides, args.size, args.target_length)
    print(report, flush=True)
    if warning:
        print(warning, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
