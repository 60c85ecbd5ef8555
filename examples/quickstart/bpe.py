"""Learn byte-pair encoding (BPE) from both sides together, and encode the corpus with it.

Reads `DATA/{train,valid,test}.{SOURCE,TARGET}`, and writes `WORK/bpe.model` and the same files in
subwords to `WORK/pieces/`. SentencePiece reads and decodes plain text, so no tokenizer is needed.
"""

import argparse
import sys
from pathlib import Path

import sentencepiece

from fairseq_recur.errors import ConfigError
from fairseq_recur.scoring.generation import read_lines


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser("python bpe.py", description=__doc__)
    add = found.add_argument
    add("data", type=Path, metavar="DATA", help="folder of the text")
    add("work", type=Path, metavar="WORK", help="folder of the output")
    add("size", type=int, metavar="SIZE", help="number of subwords")
    add("sides", nargs=2, metavar=("SOURCE", "TARGET"), help="suffixes, such as en de")
    add(
        "rule", nargs="?", choices=["nmt_nfkc", "identity"], default="nmt_nfkc",
        help="SentencePiece's normalization (default: nmt_nfkc); identity keeps all characters, "
        "such as the full-width punctuation of Chinese",
    )  # fmt: skip
    return found


def learn(
    data: Path, work: Path, size: int, sides: list[str], rule: str
) -> sentencepiece.SentencePieceProcessor:
    """Learn `size` subwords from both sides of the training set, or all that a small set has.

    Raises:
        ConfigError: the text has more characters than subwords are asked for
    """
    try:
        sentencepiece.SentencePieceTrainer.train(
            input=[str(data / f"train.{side}") for side in sides],
            model_prefix=str(work / "bpe"),
            model_type="bpe",
            vocab_size=size,
            hard_vocab_limit=False,
            character_coverage=0.9999,
            normalization_rule_name=rule,
            minloglevel=1,
        )
    except RuntimeError as error:
        raise ConfigError(
            f"SentencePiece cannot learn {size} subwords from {data} ({error}); choose another SIZE"
        ) from error
    processor = sentencepiece.SentencePieceProcessor(model_file=str(work / "bpe.model"))
    if (reached := processor.get_piece_size()) < size:
        print(
            f"warning: {data} has only {reached:,} subwords, not {size:,}; choose fewer, as "
            "the rarest are unknown in other texts",
            file=sys.stderr,
        )
    return processor


def encode(processor: sentencepiece.SentencePieceProcessor, lines: list[str], target: Path) -> None:
    """Write the lines of a file in subwords, separated by spaces."""
    pieces = processor.encode(lines, out_type=str)
    target.write_text("".join(" ".join(line) + "\n" for line in pieces), encoding="utf-8")
    characters, count = sum(map(len, lines)), sum(map(len, pieces))
    print(f"{target.name}: {len(lines)} lines, {characters} characters, {count} subwords")


def main(words: list[str]) -> int:
    """Learn, then encode every file of the corpus; return the exit status, 2 for wrong input."""
    args = parser().parse_args(words)
    names = [f"{name}.{side}" for name in ("train", "valid", "test") for side in args.sides]
    try:
        texts = {name: read_lines(args.data / name) for name in names}
        (args.work / "pieces").mkdir(parents=True, exist_ok=True)
        processor = learn(args.data, args.work, args.size, args.sides, args.rule)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, lines in texts.items():
        encode(processor, lines, args.work / "pieces" / name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
