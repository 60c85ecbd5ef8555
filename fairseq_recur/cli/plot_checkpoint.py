"""Draw what checkpoints of RSA (or Toeplitz) models have learned: gates, kernels, memory lengths
and recurrence encoding matrices.
"""

import argparse

from fairseq_recur.cli.plot_curves import run_labels
from fairseq_recur.plotting.figures import add_output_arguments, check_output, save
from fairseq_recur.plotting.matrices import SHOWN, draw


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
        "head's kernel; kernels: each head over the lags; matrices: P itself",
    )
    parser.add_argument(
        "--layer",
        metavar="NAME",
        help="show kernels and matrices of one layer, such as encoder.0 (default: the kernels of "
        "all layers, the matrices of the first)",
    )
    parser.add_argument("--lags", type=int, default=50, metavar="N", help="number of lags to draw")


def run(args: argparse.Namespace) -> int:
    """Read all checkpoints, then draw."""
    output = check_output(args.output)
    labels = run_labels(args.label, args.files)
    save(draw(list(zip(labels, args.files)), args.show, args.layer, args.lags), output)
    return 0
