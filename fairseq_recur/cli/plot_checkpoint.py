"""Draw what models with RSA, or with toeplitz or full_matrix in its place, have learned: gates,
kernels, memory lengths and matrices.
"""

import argparse
from collections.abc import Iterator

from fairseq_recur.cli.plot_curves import run_labels
from fairseq_recur.errors import Problems
from fairseq_recur.plotting.figures import add_output_arguments, check_output, save
from fairseq_recur.plotting.matrices import SHOWN, draw

LAGS = 50
MOST_LAGS = 10_000
MOST_POSITIONS = 2000
"""The greatest --lags with matrices, whose size is its square."""
OF_KERNELS = ("layer", "lags")
"""Options that only act on kernels and matrices."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `plot checkpoint`."""
    parser.add_argument("files", nargs="+", metavar="CHECKPOINT", help="checkpoints to compare")
    add_output_arguments(parser, labels=True)
    parser.add_argument(
        "--show",
        nargs="+",
        choices=SHOWN,
        default=list(SHOWN[:3]),
        help="gates: the matrix's share in each layer; memory: lags that hold 95%% of each "
        "head's kernel; kernels: each head over the lags; matrices: P itself; boxes: a box over "
        "the layers' gates for each checkpoint",
    )
    parser.add_argument(
        "--layer",
        metavar="NAME",
        help="show kernels and matrices of one layer, such as encoder.0 (default: the kernels of "
        "all layers, the matrices of the first)",
    )
    parser.add_argument(
        "--lags",
        type=int,
        metavar="N",
        help=f"number of lags of kernels, and of positions of matrices (default: {LAGS})",
    )


def run(args: argparse.Namespace) -> int:
    """Read all checkpoints, then draw."""
    problems = Problems("these checkpoints cannot be drawn")
    with problems.gathered():
        output = check_output(args.output)
    with problems.gathered():
        labels = run_labels(args.label, args.files)
    for problem in _problems(args):
        problems.add(problem)
    problems.raise_all()
    lags = LAGS if args.lags is None else args.lags
    save(draw(list(zip(labels, args.files)), args.show, args.layer, lags), output)
    return 0


def _problems(args: argparse.Namespace) -> Iterator[str]:
    """Yield the values that cannot be used, and the options without effect."""
    if args.lags is not None and args.lags < 2:
        yield f"--lags {args.lags}: expected at least 2"
    elif args.lags is not None and args.lags > MOST_POSITIONS and "matrices" in args.show:
        yield (
            f"--lags {args.lags}: expected at most {MOST_POSITIONS} with matrices in --show, and "
            f"{MOST_LAGS} without"
        )
    elif args.lags is not None and args.lags > MOST_LAGS:
        yield f"--lags {args.lags}: expected at most {MOST_LAGS}"
    if {"kernels", "matrices"} & set(args.show):
        return
    for name in OF_KERNELS:
        value = getattr(args, name)
        if value is not None:
            yield (
                f"--{name} {value} has no effect with --show {' '.join(args.show)}; leave it out, "
                "or add kernels or matrices to --show"
            )
