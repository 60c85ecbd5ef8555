"""Write pairs of a text and its first words, in the pieces of the example's data.

    python lead.py DATA WORK WORDS

Reads `DATA/{train,valid,test}.source` and what prepare.sh of the quick start has written to WORK.
Writes the first WORDS words of each text to `WORK/lead/text/{train,valid,test}.target`, and the
same in pieces, with their sources, to `WORK/lead/pieces`.
"""

import argparse
import shutil
import sys
from pathlib import Path

import sentencepiece

from fairseq_recur.errors import ConfigError
from fairseq_recur.scoring.generation import read_lines

SETS = ("train", "valid", "test")


def first_words(text: str, count: int) -> str:
    """Return the first words of a text."""
    return " ".join(text.split()[:count])


def write(data: Path, work: Path, count: int) -> None:
    """Write all files.

    Raises:
        ConfigError: texts or pieces are missing.
    """
    model = work / "bpe.model"
    texts = {name: read_lines(data / f"{name}.source") for name in SETS}
    if not model.is_file():
        raise ConfigError(f"no {model}; expected the folder that prepare.sh has written")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    text, pieces = work / "lead" / "text", work / "lead" / "pieces"
    for folder in (text, pieces):
        folder.mkdir(parents=True, exist_ok=True)
    for name, sources in texts.items():
        first = [first_words(source, count) for source in sources]
        encoded = processor.encode(first, out_type=str)
        for folder, lines in ((text, first), (pieces, map(" ".join, encoded))):
            file = folder / f"{name}.target"
            file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        shutil.copyfile(work / "pieces" / f"{name}.source", pieces / f"{name}.source")


def main(words: list[str]) -> int:
    """Write the pairs; return the exit status, 2 for wrong input."""
    parser = argparse.ArgumentParser("python lead.py", description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, metavar="DATA", help="folder of the texts")
    parser.add_argument("work", type=Path, metavar="WORK", help="folder of the prepared data")
    parser.add_argument("count", type=int, metavar="WORDS", help="number of words to copy")
    args = parser.parse_args(words)
    if args.count < 1:
        parser.error(f"WORDS is {args.count}; expected at least 1")
    try:
        write(args.data, args.work, args.count)
    except ConfigError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
