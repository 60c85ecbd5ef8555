"""Show which dilations fit a series or a text, for --rsa-dilations.

The left panels show the autocorrelation of a series by lag, or of a text the share of positions
whose token occurs as many positions earlier. Lags that stand out are marked, and printed with
their values: those are dilations to try. The right panels are recurrence plots: a point wherever
two positions are alike.
"""

import argparse
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy

from fairseq_recur.errors import ConfigError, Problems
from fairseq_recur.plotting.figures import add_output_arguments, check_output, save
from fairseq_recur.plotting.recurrence import Array, Track, draw
from fairseq_recur.tasks.series_data import read_series

KINDS = ("series", "words", "characters")
RANGES = {"lags": (3, 10_000), "positions": (10, 10**7), "shown": (2, 2000)}
THRESHOLD = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `plot recurrence`."""
    parser.add_argument("file", metavar="FILE", help="a text, or a CSV file with a column of dates")
    add_output_arguments(parser)
    parser.add_argument(
        "--kind",
        choices=KINDS,
        help="what the positions of the file are: rows of a series, words between white space, or "
        "characters with line breaks (default: series for .csv, otherwise words)",
    )
    parser.add_argument(
        "--variable",
        nargs="+",
        metavar="NAME",
        help="series: variables to draw, each in a row (default: the last)",
    )
    parser.add_argument("--lags", type=int, default=200, metavar="N", help="largest lag")
    parser.add_argument(
        "--positions",
        type=int,
        default=1_000_000,
        metavar="N",
        help="positions to read, from the beginning of the file",
    )
    parser.add_argument(
        "--shown", type=int, default=300, metavar="N", help="positions of the recurrence plot"
    )
    parser.add_argument(
        "--threshold",
        type=float,
        metavar="X",
        help="series: difference of values that are alike, in standard deviations "
        f"(default: {THRESHOLD})",
    )


def run(args: argparse.Namespace) -> int:
    """Read the file, then draw."""
    kind = args.kind or ("series" if Path(args.file).suffix == ".csv" else "words")
    problems = Problems("invalid options of plot recurrence")
    with problems.gathered():
        output = check_output(args.output)
    for problem in _problems(args, kind):
        problems.add(problem)
    problems.raise_all()
    if kind == "series":
        tracks = series_tracks(args.file, args.variable, args.positions)
    else:
        name = f"{Path(args.file).name}, {kind}"
        tracks = [Track(name, read_tokens(args.file, kind, args.positions), is_text=True)]
    count, least = len(tracks[0].values), RANGES["lags"][0]
    if count <= least:
        raise ConfigError(
            f"{args.file} has {count} positions; expected more than {least}, the smallest --lags: "
            "give a longer file"
        )
    if count <= args.lags:
        raise ConfigError(
            f"--lags {args.lags} needs more positions than the {count} of {args.file} (of which "
            f"--positions {args.positions} are read); reduce --lags"
        )
    threshold = THRESHOLD if args.threshold is None else args.threshold
    figure, said = draw(tracks, args.lags, args.shown, threshold)
    save(figure, output)
    print("\n".join(said))
    return 0


def _problems(args: argparse.Namespace, kind: str) -> Iterator[str]:
    """Yield all that is wrong with the options, for a file that is read as one of `KINDS`."""
    for name, (low, high) in RANGES.items():
        if not low <= getattr(args, name) <= high:
            yield (
                f"--{name} {getattr(args, name)}: expected {low} to {high}; give a number in this "
                "range"
            )
    if args.threshold is not None and not 0 <= args.threshold <= 100:
        yield (
            f"--threshold {args.threshold}: expected 0 to 100; give a number in this range, such "
            f"as {THRESHOLD}"
        )
    if not Path(args.file).is_file():
        yield f"{args.file}: no such file; expected a text, or a CSV file of a series"
    for name in ("variable", "threshold") if kind != "series" else ():
        if getattr(args, name) is not None:
            yield (
                f"--{name} needs a series, but {args.file} is read as {kind}; leave it out, or "
                "give --kind series"
            )


def series_tracks(file: str, variables: list[str] | None, count: int) -> list[Track]:
    """Return the variables of a series, the last one by default.

    Raises:
        ConfigError: the file is not a series, lacks a variable, or has a constant one
    """
    series = read_series(file, variables or ())
    tracks = []
    for name in variables or series.names[-1:]:
        values = series.values[:count, series.names.index(name)]
        if (values == values[0]).all():
            raise ConfigError(f"{file}: {name} is constant; choose another --variable")
        tracks.append(Track(name, values, is_text=False))
    return tracks


def read_tokens(file: str, kind: str, count: int) -> Array:
    """Return the numbers of the first words or characters of a text: (n,).

    Raises:
        ConfigError: the file is not UTF-8
    """
    numbers: dict[str, int] = {}
    try:
        with open(file, encoding="utf-8-sig", newline="\n") as text:
            words = (word for line in text for word in line.split())
            tokens: Iterable[str] = islice(words, count) if kind == "words" else text.read(count)
            found = [numbers.setdefault(token, len(numbers)) for token in tokens]
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text ({error}); convert it to UTF-8") from error
    return numpy.array(found, dtype=numpy.int64)
