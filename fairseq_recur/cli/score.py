"""Score translations with sacrebleu, and summaries with rouge-score: one row for each system,
with the signatures.

A system's FILE is plain text (one sentence a line) or the output of generate or
interactive: of that the detokenized D- lines are read, or the H- lines where there are
none, put in the order of their ids; of an n-best list, the best."""

import argparse
import json
from pathlib import Path
from typing import Dict, List, Sequence

from fairseq_recur.errors import ConfigError
from fairseq_recur.scoring.generation import read_hypotheses, read_lines
from fairseq_recur.scoring.metrics import (
    METRICS,
    TOKENIZERS,
    Score,
    build_metric,
    score_corpus,
    score_table,
)
from fairseq_recur.scoring.sentences import SEPARATOR

HELP = "score translations with BLEU, chrF and TER, summaries with ROUGE"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `score`."""
    parser.add_argument(
        "--reference",
        action="append",
        required=True,
        metavar="FILE",
        help="reference translation or summary, plain text; give it again for further references",
    )
    parser.add_argument(
        "--system",
        action="append",
        required=True,
        metavar="NAME=FILE",
        help="a system's name and output; give it again for further systems",
    )
    parser.add_argument(
        "--metrics", nargs="+", choices=METRICS, default=["bleu", "chrf"], help="what to compute"
    )
    parser.add_argument(
        "--tokenize",
        choices=TOKENIZERS,
        default="13a",
        metavar="NAME",
        help=f"BLEU's tokenizer: {', '.join(TOKENIZERS)}",
    )
    parser.add_argument(
        "--lowercase",
        action="store_true",
        help="ignore case in BLEU and chrF (TER does so always, as in sacrebleu, and ROUGE)",
    )
    parser.add_argument(
        "--separator",
        default=SEPARATOR,
        metavar="TEXT",
        help="ROUGE: what stands between the sentences of a summary, such as %(default)s or \\t; "
        "where it does not occur, or is empty, sentences are found by rules for English",
    )
    parser.add_argument("--json", metavar="OUT", help="write the scores to this file as well")


def run(args: argparse.Namespace) -> int:
    """Read everything, score every system, print the table."""
    files = _systems(args.system)
    references = _references(args.reference)
    systems = {name: read_hypotheses(file, len(references[0])) for name, file in files.items()}
    metrics = [
        build_metric(name, args.tokenize, args.lowercase, args.separator)
        for name in dict.fromkeys(args.metrics)
    ]
    scores = {name: score_corpus(text, references, metrics) for name, text in systems.items()}
    print(score_table(scores))
    if args.json:
        _write_json(args, files, len(references[0]), scores)
    return 0


def _systems(given: Sequence[str]) -> Dict[str, str]:
    """Split NAME=FILE; a bare FILE is its own name."""
    files: Dict[str, str] = {}
    for item in given:
        name, equals, file = item.partition("=")
        if not equals:
            name = file = item
        if not name or not file:
            raise ConfigError(f"--system {item!r}: expected NAME=FILE")
        if name in files:
            raise ConfigError(f"--system {name!r} is there twice; give each system its own name")
        files[name] = file
    return files


def _references(files: Sequence[str]) -> List[List[str]]:
    """Read the references, which must all have as many lines as the first."""
    references = [read_lines(file) for file in files]
    for file, lines in zip(files, references):
        if len(lines) != len(references[0]):
            raise ConfigError(
                f"{file} has {len(lines)} lines, but {files[0]} has {len(references[0])}; "
                "references of one test set have one line for each of its sentences"
            )
    return references


def _write_json(
    args: argparse.Namespace,
    files: Dict[str, str],
    sentences: int,
    scores: Dict[str, List[Score]],
) -> None:
    """Write what was printed, and from which files it comes."""
    report = {
        "references": args.reference,
        "sentences": sentences,
        "systems": {
            name: {
                "file": files[name],
                "scores": [
                    {"metric": s.name, "score": s.value, "signature": s.signature} for s in of_one
                ],
            }
            for name, of_one in scores.items()
        },
    }
    Path(args.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
