"""Test whether systems differ significantly from a baseline, by paired bootstrap resampling or
approximate randomization. sacrebleu does this for BLEU, chrF and TER; for ROUGE, COMET and
error rates the same tests use the scores of the texts.

FILE is as in `score`: plain text, or the output of generate or interactive. The tests compare two
outputs; they do not measure how much a system varies with the training seed.
"""

import argparse
import json
import os

from fairseq_recur.cli.scoring_options import (
    add_metric_arguments,
    add_text_arguments,
    build_metrics,
    input_files,
    read_texts,
    split_names,
)
from fairseq_recur.errors import Problems
from fairseq_recur.files import check_outputs, write_text
from fairseq_recur.scoring.comparison import BOOTSTRAP, as_json, comparison_table
from fairseq_recur.scoring.resampling import DEFAULT_SEED
from fairseq_recur.scoring.significance import (
    SEED_VARIABLE,
    TESTS,
    check_draws,
    compare_systems,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `compare`."""
    add_text_arguments(parser)
    parser.add_argument(
        "--baseline", required=True, metavar="NAME=FILE", help="the baseline's name and output"
    )
    add_metric_arguments(parser)
    parser.add_argument("--test", choices=TESTS, default=BOOTSTRAP, help="significance test")
    parser.add_argument(
        "--samples",
        type=int,
        metavar="N",
        help="resamples per test (default, as in sacrebleu: bootstrap 1000, randomization 10000)",
    )
    parser.add_argument(
        "--seed",
        metavar="N",
        help="random seed, or none for different resamples each time (default: the variable "
        f"{SEED_VARIABLE}, as for sacrebleu, or {DEFAULT_SEED})",
    )
    parser.add_argument("--json", metavar="OUT", help="also write all results to this file")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")


def run(args: argparse.Namespace) -> int:
    """Read all texts, run the tests, write the results and print the table."""
    problems = Problems("the systems cannot be compared")
    seed = _seed(args.seed, problems)
    check_draws(args.test, args.samples, seed, problems)
    files = split_names([args.baseline, *args.system], problems)
    with problems.gathered():
        check_outputs(args.json, inputs=input_files(args, files))
    texts = read_texts(args, files, problems)
    metrics = build_metrics(args, texts, problems)
    baseline = next(iter(texts.systems))
    found = compare_systems(
        texts.systems, texts.references, metrics, baseline, args.test, args.samples, seed
    )
    if args.json:  # before the table, which standard output may refuse
        report = {"references": args.reference, "files": texts.files, **as_json(found)}
        text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
        write_text(args.json, text)
    print(comparison_table(found, args.markdown))
    return 0


def _seed(given: str | None, problems: Problems) -> int | None:
    """Return the seed from the option, the environment or sacrebleu's default; None for "none"."""
    name = "--seed" if given is not None else SEED_VARIABLE
    text = given if given is not None else os.environ.get(SEED_VARIABLE, str(DEFAULT_SEED))
    if text.lower() == "none":
        return None
    try:
        return int(text)
    except ValueError:
        problems.add(f"{name}: found {text!r}, expected a positive integer or none")
        return None
