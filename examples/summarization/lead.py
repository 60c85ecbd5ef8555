"""Write pairs of a text and its first words, as plain text and in pieces.

    python lead.py TEXTS MODEL PIECES OUTPUT WORDS

Reads `TEXTS/{train,valid,test}.source`, the SentencePiece model MODEL, and from PIECES the sources
in its pieces. Writes the first WORDS words of each text to `OUTPUT/text/{train,valid,test}.target`,
and the same in pieces, with their sources, to `OUTPUT/pieces`.
"""

import argparse
import shutil
import sys
from pathlib import Path

import sentencepiece

from fairseq_recur.errors import ConfigError
from fairseq_recur.scoring.generation import read_lines

SETS = ("train", "valid", "test")


def write(texts: Path, model: Path, pieces: Path, output: Path, count: int) -> None:
    """Write all files.

    Raises:
        ConfigError: a text is missing or cannot be read.
        OSError: so is the model, or the pieces.
        RuntimeError: the model is damaged.
    """
    sources = {name: read_lines(texts / f"{name}.source") for name in SETS}
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.read_bytes())
    for kind in ("text", "pieces"):
        (output / kind).mkdir(parents=True, exist_ok=True)
    for name, lines in sources.items():
        first = [" ".join(line.split()[:count]) for line in lines]
        in_pieces = map(" ".join, processor.encode(first, out_type=str))
        for kind, targets in (("text", first), ("pieces", in_pieces)):
            file = output / kind / f"{name}.target"
            file.write_text("".join(line + "\n" for line in targets), encoding="utf-8")
        shutil.copyfile(pieces / f"{name}.source", output / "pieces" / f"{name}.source")


def main(words: list[str]) -> int:
    """Write the pairs; return the exit status, 2 for wrong input."""
    parser = argparse.ArgumentParser("python lead.py", description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path, metavar="TEXTS", help="folder of the texts")
    parser.add_argument("model", type=Path, metavar="MODEL", help="SentencePiece model")
    parser.add_argument("pieces", type=Path, metavar="PIECES", help="folder of the texts in pieces")
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="folder to write to")
    parser.add_argument("count", type=int, metavar="WORDS", help="number of words to copy")
    args = parser.parse_args(words)
    if args.count < 1:
        parser.error(f"WORDS is {args.count}; expected at least 1")
    try:
        write(args.texts, args.model, args.pieces, args.output, args.count)
    except (ConfigError, OSError, RuntimeError) as error:
        parser.error(f"{error}; prepare the data first, as run.sh does")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
