"""Draw forecasts beside the actual values, from the CSV file that `forecast` wrote."""

import argparse

from fairseq_recur.errors import Problems
from fairseq_recur.plotting.figures import add_output_arguments, check_output, save
from fairseq_recur.plotting.forecast import draw, read_forecasts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `plot forecast`."""
    parser.add_argument("file", metavar="FILE", help="CSV file of forecasts")
    add_output_arguments(parser)
    parser.add_argument(
        "--variable",
        nargs="+",
        metavar="NAME",
        help="variables to draw, each in a panel (default: the last)",
    )
    parser.add_argument(
        "--windows", type=int, default=7, metavar="N", help="number of windows to draw"
    )
    parser.add_argument(
        "--first", type=int, default=0, metavar="N", help="the first of them, counted from 0"
    )


def run(args: argparse.Namespace) -> int:
    """Read the file, then draw."""
    problems = Problems("these forecasts cannot be drawn")
    with problems.gathered():
        output = check_output(args.output)
    with problems.gathered():
        data = read_forecasts(args.file)
    problems.raise_all()
    save(draw(data, args.variable, args.first, args.windows), output)
    return 0
