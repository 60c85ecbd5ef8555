"""Score translations with sacrebleu and COMET, summaries with rouge-score, pronunciations by word
and phone error rate. The table has one row per system, and the metrics' signatures.

A system's FILE is plain text, one sentence per line, or the output of generate or interactive.
From such output the detokenized D- lines are read, or the H- lines if there are none, sorted by
sentence number; of an n-best list, the best.
"""

import argparse
from collections.abc import Sequence

from fairseq_recur.cli.scoring_options import (
    Texts,
    add_metric_arguments,
    add_text_arguments,
    build_metrics,
    input_files,
    read_texts,
    split_names,
)
from fairseq_recur.errors import Problems
from fairseq_recur.files import check_outputs, write_json
from fairseq_recur.scoring.metrics import Score, score_corpus, score_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `score`."""
    add_text_arguments(parser)
    add_metric_arguments(parser)
    parser.add_argument("--json", metavar="OUT", help="also write the scores to this file")


def run(args: argparse.Namespace) -> int:
    """Read all texts, score each system, write the scores and print the table."""
    problems = Problems("the systems cannot be scored")
    files = split_names(args.system, problems)
    with problems.gathered():
        check_outputs(args.json, inputs=input_files(args, files))
    texts = read_texts(args, files, problems)
    metrics = build_metrics(args, texts, problems)
    scores: dict[str, Sequence[Score]] = {
        name: score_corpus(lines, texts.references, metrics)
        for name, lines in texts.systems.items()
    }
    if args.json:  # before the table, which standard output may refuse
        _write_json(args, texts, scores)
    print(score_table(scores))
    return 0


def _write_json(args: argparse.Namespace, texts: Texts, scores: dict[str, Sequence[Score]]) -> None:
    """Write the scores with the names of the files."""
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
    write_json(args.json, report)
