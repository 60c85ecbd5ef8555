"""Test whether systems differ from a baseline by more than chance: paired bootstrap resampling and
approximate randomization, by sacrebleu for BLEU, chrF and TER; for ROUGE and COMET the same on
the scores of the texts.

FILE is as in `score`: plain text, or the output of generate or interactive. The tests compare
two outputs; they know nothing of how much a system changes when it is trained with another
seed.
"""

import argparse
import json
import os
from pathlib import Path

from fairseq_recur.cli.scoring_input import (
    add_metric_arguments,
    add_text_arguments,
    build_metrics,
    check_output,
    read_texts,
    split_names,
)
from fairseq_recur.scoring.comparison import BOOTSTRAP, as_json, comparison_table
from fairseq_recur.scoring.problems import Problems
from fairseq_recur.scoring.significance import (
    DEFAULT_SEED,
    SEED_VARIABLE,
    TESTS,
    check_draws,
    compare_systems,
)

HELP = "test whether systems differ from a baseline by more than chance"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `compare`."""
    add_text_arguments(parser)
    parser.add_argument(
        "--baseline",
        required=True,
        metavar="NAME=FILE",
        help="the output that the others are compared with, and its name",
    )
    parser.add_argument(
        "--system",
        action="append",
        required=True,
        metavar="NAME=FILE",
        help="a system's name and output; give it again for further systems",
    )
    add_metric_arguments(parser)
    parser.add_argument("--test", choices=TESTS, default=BOOTSTRAP, help="which test to do")
    parser.add_argument(
        "--samples",
        type=int,
        metavar="N",
        help="how often each test draws (default, as in sacrebleu: bootstrap 1000, "
        "randomization 10000)",
    )
    parser.add_argument(
        "--seed",
        metavar="N",
        help=f"seed of the draws, or none to draw anew each time (default: {SEED_VARIABLE}, as "
        f"for sacrebleu, or else {DEFAULT_SEED})",
    )
    parser.add_argument("--json", metavar="OUT", help="write everything to this file as well")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")


def run(args: argparse.Namespace) -> int:
    """Read everything, do the tests, print the table."""
    problems = Problems("the systems cannot be compared")
    seed = _seed(args.seed, problems)
    check_draws(args.test, args.samples, seed, problems)
    check_output(args.json, problems)
    texts = read_texts(args, split_names([args.baseline, *args.system], problems), problems)
    metrics = build_metrics(args, texts, problems)
    baseline = next(iter(texts.systems))
    found = compare_systems(
        texts.systems, texts.references, metrics, baseline, args.test, args.samples, seed
    )
    print(comparison_table(found, args.markdown))
    if args.json:
        report = {"references": args.reference, "files": texts.files, **as_json(found)}
        text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
        Path(args.json).write_text(text, encoding="utf-8")
    return 0


def _seed(given: str | None, problems: Problems) -> int | None:
    """Return the seed of the option, of the environment or of sacrebleu; None for "none"."""
    name = "--seed" if given is not None else SEED_VARIABLE
    text = given if given is not None else os.environ.get(SEED_VARIABLE, str(DEFAULT_SEED))
    if text.lower() == "none":
        return None
    try:
        return int(text)
    except ValueError:
        problems.add(f"{name}: found {text!r}, expected a number from 1, or none")
        return None
