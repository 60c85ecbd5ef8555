"""Build three of the probing tasks of Conneau et al. 2018 from any text: sentence length, word
content and bigram shift.
"""

import argparse
from pathlib import Path

from fairseq_recur.errors import ConfigError, refuse
from fairseq_recur.probing.building import (
    BUILDERS,
    LENGTH_BINS,
    Bins,
    Plan,
    build_tasks,
    read_corpus,
)
from fairseq_recur.probing.tasks import SPLITS, TASKS, write_task

WORDS = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `probe make`."""
    parser.add_argument(
        "corpus", metavar="CORPUS", help="text, one sentence per line, words separated by spaces"
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="folder for the tasks")
    parser.add_argument(
        "--tasks", nargs="+", choices=BUILDERS, default=list(BUILDERS), help="tasks to build"
    )
    parser.add_argument(
        "--sizes",
        nargs=3,
        type=int,
        default=[10000, 1000, 1000],
        metavar=("TRAIN", "VALID", "TEST"),
        help="sentences per split (SentEval has 100000 10000 10000)",
    )
    parser.add_argument(
        "--words",
        type=int,
        default=WORDS,
        metavar="N",
        help="word content: number of words to distinguish (SentEval: 1000)",
    )
    parser.add_argument(
        "--bins",
        nargs="+",
        type=_parse_bin,
        metavar="LOW-HIGH",
        help="length: ranges of words per sentence, one label each (default: SentEval's 5-8 9-12 "
        "13-16 17-20 21-25 26-28); no task uses sentences of other lengths",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="random seed")


def _parse_bin(text: str) -> tuple[int, int]:
    """Parse a range such as 5-8."""
    low, dash, high = text.partition("-")
    if not (dash and low.isdecimal() and high.isdecimal() and 0 < int(low) <= int(high)):
        raise argparse.ArgumentTypeError(f"{text!r}: expected LOW-HIGH, such as 5-8")
    return int(low), int(high)


def run(args: argparse.Namespace) -> int:
    """Build all tasks, then write them."""
    plan = _plan(args)
    names = [name for name in BUILDERS if name in args.tasks]
    files = {name: Path(args.output) / TASKS[name].file for name in names}
    for file in files.values():
        if file.exists():
            raise ConfigError(f"{file} exists already; give another --output")
    corpus = read_corpus(Path(args.corpus), plan.bins)
    built = build_tasks(corpus, names, plan)
    Path(args.output).mkdir(parents=True, exist_ok=True)
    print(
        f"{args.corpus}: {corpus.lines} lines, {len(corpus.sentences)} different sentences of "
        f"{plan.bins[0][0]} to {plan.bins[-1][1]} words"
    )
    for name, splits in built.items():
        write_task(files[name], splits)
        labels = len({label for label, _ in splits["train"]})
        counts = ", ".join(f"{split} {len(splits[split])}" for split in SPLITS.values())
        print(f"{files[name]}: {name}, {labels} labels; sentences: {counts}")
    return 0


def _plan(args: argparse.Namespace) -> Plan:
    """Check the options."""
    bins: Bins = args.bins or LENGTH_BINS
    problems: list[str] = []
    if any(right[0] <= left[1] for left, right in zip(bins, bins[1:])):
        problems.append("--bins: expected each range to begin after the end of the previous one")
    if len(bins) < 2:
        problems.append("--bins: expected at least 2 ranges")
    if args.words < 2:
        problems.append(f"--words {args.words}: expected at least 2")
    if args.words != WORDS and "WordContent" not in args.tasks:
        problems.append(
            f"--words {args.words} has no effect without WordContent in --tasks; leave it out"
        )
    labels = {"Length": len(bins), "WordContent": args.words, "BigramShift": 2}
    most = max(labels[name] for name in args.tasks)
    if min(args.sizes) < most:
        sizes = " ".join(map(str, args.sizes))
        problems.append(f"--sizes {sizes}: expected at least {most} each, the number of labels")
    refuse("these options of probe make cannot be used", problems)
    return Plan(tuple(args.sizes), args.words, bins, args.seed)
