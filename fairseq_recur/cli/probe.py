"""Probe what encoders know of a sentence, by the tasks of Conneau et al. 2018.

run trains classifiers on the frozen encoders of checkpoints, as Hao et al. 2019 do for their
table 5, and prints their accuracy; its tasks are SentEval's files. make builds three of these
tasks from any text.
"""

import argparse
from pathlib import Path

from fairseq_recur.cli import probe_run
from fairseq_recur.errors import ConfigError
from fairseq_recur.probing.building import (
    BUILDERS,
    LENGTH_BINS,
    Bins,
    Plan,
    build_tasks,
    read_corpus,
)
from fairseq_recur.probing.tasks import SPLITS, TASKS, write_task

HELP = "classify frozen encoders' sentence representations (probing tasks)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `probe make` and `probe run`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    settings = {"formatter_class": parser.formatter_class, "allow_abbrev": False}
    help_text = "build length, word content and bigram shift from a text"
    make = actions.add_parser("make", help=help_text, description=help_text + ".", **settings)
    _add_make_arguments(make)
    help_text = "train classifiers on the encoders of checkpoints, print a table"
    run_parser = actions.add_parser("run", help=help_text, description=help_text + ".", **settings)
    probe_run.add_arguments(run_parser)


def run(args: argparse.Namespace) -> int:
    """Do what was asked for."""
    return make_tasks(args) if args.action == "make" else probe_run.run(args)


def _add_make_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `probe make`."""
    parser.add_argument(
        "corpus", metavar="CORPUS", help="text, a sentence a line, words with spaces between"
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="folder for the tasks")
    parser.add_argument(
        "--tasks", nargs="+", choices=BUILDERS, default=list(BUILDERS), help="what to build"
    )
    parser.add_argument(
        "--sizes",
        nargs=3,
        type=int,
        default=[10000, 1000, 1000],
        metavar=("TRAIN", "VALID", "TEST"),
        help="sentences of each split (SentEval's have 100000 10000 10000)",
    )
    parser.add_argument(
        "--words",
        type=int,
        default=100,
        metavar="N",
        help="word content: how many words to tell apart (SentEval: 1000)",
    )
    parser.add_argument(
        "--bins",
        nargs="+",
        type=_parse_bin,
        metavar="LOW-HIGH",
        help="length: words of a sentence, a label each (default: SentEval's 5-8 9-12 13-16 "
        "17-20 21-25 26-28); no task has sentences of other lengths",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of all that is drawn")


def _parse_bin(text: str) -> tuple[int, int]:
    """Read 5-8."""
    low, dash, high = text.partition("-")
    if not (dash and low.isdecimal() and high.isdecimal() and 0 < int(low) <= int(high)):
        raise argparse.ArgumentTypeError(f"{text!r}: expected LOW-HIGH, such as 5-8")
    return int(low), int(high)


def make_tasks(args: argparse.Namespace) -> int:
    """Build everything, then write it."""
    plan = _plan(args)
    names = [name for name in BUILDERS if name in args.tasks]
    output = Path(args.output)
    for name in names:
        if (output / TASKS[name].file).exists():
            file = output / TASKS[name].file
            raise ConfigError(f"{file} is there already; give another --output")
    corpus = read_corpus(Path(args.corpus), plan.bins)
    built = build_tasks(corpus, names, plan)
    output.mkdir(parents=True, exist_ok=True)
    print(
        f"{args.corpus}: {corpus.lines} lines, {len(corpus.sentences)} different sentences of "
        f"{plan.bins[0][0]} to {plan.bins[-1][1]} words"
    )
    for name, splits in built.items():
        path = output / TASKS[name].file
        write_task(path, splits)
        labels = len({label for label, _ in splits["train"]})
        counts = ", ".join(f"{split} {len(splits[split])}" for split in SPLITS.values())
        print(f"{path}: {name}, {labels} labels; sentences: {counts}")
    return 0


def _plan(args: argparse.Namespace) -> Plan:
    """Check what is to be built."""
    bins: Bins = args.bins or LENGTH_BINS
    problems: list[str] = []
    if any(right[0] <= left[1] for left, right in zip(bins, bins[1:])):
        problems.append("--bins: each must begin above the end of the one before")
    if len(bins) < 2:
        problems.append("--bins: at least 2 are needed")
    if args.words < 2:
        problems.append(f"--words {args.words}: at least 2 are needed")
    labels = {"Length": len(bins), "WordContent": args.words, "BigramShift": 2}
    most = max(labels[name] for name in args.tasks)
    if min(args.sizes) < most:
        sizes = " ".join(map(str, args.sizes))
        problems.append(f"--sizes {sizes}: each must be at least {most}, the number of labels")
    if problems:
        raise ConfigError("\n- ".join(["probe make:", *problems]) if problems[1:] else problems[0])
    return Plan(tuple(args.sizes), args.words, bins, args.seed)
