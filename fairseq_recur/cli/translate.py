"""Read raw text, one text per line, and write the model's outputs, one per line in the same order.

CHECKPOINT is the --save-dir of a training, or one checkpoint. Tokenizer, subwords and dictionaries
are found next to it or in the data folder of the training. Nothing else goes to standard output.
An empty line stays empty. Texts that are longer than the model's limit are truncated.
"""

import argparse
import math
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from typing import Any

import fairseq_recur
from fairseq_recur.compat.interactive import sentence
from fairseq_recur.errors import refuse
from fairseq_recur.modules.options import flag
from fairseq_recur.pretrained.batches import LARGEST
from fairseq_recur.text import one_line

BUFFER = 1000
"""Lines that are read before the first output; typed lines are translated one by one."""

SEARCH = ("beam", "lenpen", "max_len_a", "max_len_b", "min_len", "no_repeat_ngram_size")
TEXT = (
    "data",
    "source_lang",
    "target_lang",
    "tokenizer",
    "bpe",
    "sentencepiece_model",
    "bpe_codes",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `translate` and `summarize`."""
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", help="folder of a training, or one checkpoint")
    add("file", nargs="?", default="-", metavar="FILE", help="the texts; - is standard input")
    for name in SEARCH:
        kind = float if name in ("lenpen", "max_len_a") else int
        text = "as in fairseq-generate"
        if name == "beam":
            text += (
                "; summarize has the search of the training's --eval-rouge-args, or a beam of 4 "
                "without repeated trigrams"
            )
        add(flag(name), type=kind, metavar="N", help=text)
    add_text_arguments(parser)
    add("--batch-size", type=int, metavar="N", help="texts per batch")
    text = "tokens per batch, at least those of the longest text"
    default = "(default: 4000 without --batch-size)"
    add("--max-tokens", type=int, metavar="N", help=f"{text} {default}")
    add("--precision", choices=("fp32", "fp16", "bf16"), default="fp32", help="of the model")
    add("--cpu", action="store_true", help="do not use a GPU")


def add_text_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options in `TEXT`, which say how text becomes tokens."""
    add = parser.add_argument
    add("--data", metavar="DATA", help="folder of the dictionaries, if they are elsewhere")
    add("--source-lang", "-s", metavar="SRC", help="source language, if not that of the training")
    add("--target-lang", "-t", metavar="TGT", help="target language, if not that of the training")
    add("--tokenizer", metavar="NAME", help="moses, or none; by default that of the training")
    add("--bpe", metavar="NAME", help="kind of subwords; by default that of the dictionary")
    add("--sentencepiece-model", metavar="FILE", help="SentencePiece model, if it is elsewhere")
    add("--bpe-codes", metavar="FILE", help="BPE codes, if they are elsewhere")


def text_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options in `TEXT` that were given."""
    return {name: value for name in TEXT if (value := getattr(args, name)) is not None}


def search_problems(given: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with options, by their names, before a model is loaded.

    Args:
        given: the options of the search and of its batches that were given
    """
    for name, value in given.items():
        if name in ("beam", "batch_size", "max_tokens") and not 1 <= value <= LARGEST:
            yield f"{flag(name)} {value}: expected at least 1 and at most {LARGEST}"
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{flag(name)} {value}: expected a finite number"


def _problems(file: str, given: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the options, and with standard input if it is read."""
    yield from search_problems(given)
    if file == "-" and sys.stdin is None:
        yield "cannot read standard input, which is closed; name a text file"


def run(args: argparse.Namespace) -> int:
    """Translate or summarize each line."""
    given = {name: getattr(args, name) for name in (*SEARCH, "batch_size", "max_tokens")}
    search = {name: value for name, value in given.items() if value is not None}
    refuse(f"invalid options of {args.command}", _problems(args.file, search))
    typed = args.file == "-" and sys.stdin.isatty()
    progress = sys.stderr is not None and sys.stderr.isatty()
    stdin: Any = getattr(sys.stdin, "buffer", sys.stdin)  # of bytes, unless text replaced it
    with nullcontext(stdin) if args.file == "-" else open(args.file, "rb") as lines:
        model = fairseq_recur.from_pretrained(
            args.checkpoint, device="cpu" if args.cpu else None, precision=args.precision,
            **text_options(args),
        )  # fmt: skip
        work = model.summarize if args.command == "summarize" else model.translate
        texts = map(sentence, lines)  # only a newline ends a line
        while buffer := list(islice(texts, 1 if typed else BUFFER)):
            outputs = work(buffer, truncate=True, progress=progress, **search)
            for output in outputs:
                print(one_line(output))
            sys.stdout.flush()
    return 0
