"""Write pairs of a text and its first words, as plain text and in pieces.

    PYTHONPATH=scripts python lead.py TEXTS MODEL PIECES OUTPUT

Reads the texts and summaries in TEXTS, the SentencePiece model MODEL, and from PIECES the sources
in its pieces. Writes the first words of each text, as many as the average training summary has, to
`OUTPUT/text/{train,valid,test}.target`, and the same in pieces, with their sources, to
`OUTPUT/pieces`.
"""

import argparse
import shutil
import sys
from pathlib import Path

import sentencepiece
from recipes.summary_extracts import average_words, lead

from fairseq_recur.errors import ConfigError
from fairseq_recur.scoring.generation import read_lines

SETS = ("train", "valid", "test")


def write(texts: Path, model: Path, pieces: Path, output: Path) -> None:
    """Write all files.

    Raises:
        ConfigError: a text is missing or cannot be read, or the model is damaged.
        OSError: the model or the pieces are missing or cannot be read.
    """
    sources = {name: read_lines(texts / f"{name}.source") for name in SETS}
    words = average_words(texts)
    content = model.read_bytes()
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    except RuntimeError as error:
        raise ConfigError(
            f"{model} is not a SentencePiece model ({error}); expected that of the pieces"
        ) from error
    for kind in ("text", "pieces"):
        (output / kind).mkdir(parents=True, exist_ok=True)
    for name, lines in sources.items():
        first = [lead(line, words) for line in lines]
        in_pieces = map(" ".join, processor.encode(first, out_type=str))
        for kind, targets in (("text", first), ("pieces", in_pieces)):
            file = output / kind / f"{name}.target"
            file.write_text("".join(line + "\n" for line in targets), encoding="utf-8")
        shutil.copyfile(pieces / f"{name}.source", output / "pieces" / f"{name}.source")


def main(words: list[str]) -> int:
    """Write the pairs; return the exit status, 2 for wrong input."""
    parser = argparse.ArgumentParser("python lead.py", description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path, metavar="TEXTS", help="folder of texts and summaries")
    parser.add_argument("model", type=Path, metavar="MODEL", help="SentencePiece model")
    parser.add_argument("pieces", type=Path, metavar="PIECES", help="folder of the texts in pieces")
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="folder to write to")
    args = parser.parse_args(words)
    try:
        write(args.texts, args.model, args.pieces, args.output)
    except ConfigError as error:
        parser.error(f"{error}; prepare the data again, as run.sh does")
    except OSError as error:
        parser.error(f"{error}; prepare the data first, as run.sh does")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
