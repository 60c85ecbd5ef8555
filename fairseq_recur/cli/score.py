"""Score translations with sacrebleu and COMET, summaries with rouge-score: one row for each
system, with the signatures.

A system's FILE is plain text (one sentence a line) or the output of generate or
interactive: of that the detokenized D- lines are read, or the H- lines where there are
none, put in the order of their ids; of an n-best list, the best.
"""

import argparse
import json
from pathlib import Path

from fairseq_recur.cli.scoring_input import (
    Texts,
    add_metric_arguments,
    add_text_arguments,
    build_metrics,
    check_output,
    read_texts,
    split_names,
)
from fairseq_recur.scoring.metrics import Score, score_corpus, score_table
from fairseq_recur.scoring.problems import Problems

HELP = "score translations with BLEU, chrF, TER and COMET, summaries with ROUGE"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `score`."""
    add_text_arguments(parser)
    parser.add_argument(
        "--system",
        action="append",
        required=True,
        metavar="NAME=FILE",
        help="a system's name and output; give it again for further systems",
    )
    add_metric_arguments(parser)
    parser.add_argument("--json", metavar="OUT", help="write the scores to this file as well")


def run(args: argparse.Namespace) -> int:
    """Read everything, score every system, print the table."""
    problems = Problems("the systems cannot be scored")
    check_output(args.json, problems)
    texts = read_texts(args, split_names(args.system, problems), problems)
    metrics = build_metrics(args, texts, problems)
    scores = {
        name: score_corpus(lines, texts.references, metrics)
        for name, lines in texts.systems.items()
    }
    print(score_table(scores))
    if args.json:
        _write_json(args, texts, scores)
    return 0


def _write_json(args: argparse.Namespace, texts: Texts, scores: dict[str, list[Score]]) -> None:
    """Write what was printed, and from which files it comes."""
    report = {
        "references": args.reference,
        "sentences": len(texts.references[0]),
        "systems": {
            name: {
                "file": texts.files[name],
                "scores": [
                    {"metric": s.name, "score": s.value, "signature": s.signature} for s in of_one
                ],
            }
            for name, of_one in scores.items()
        },
    }
    Path(args.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
