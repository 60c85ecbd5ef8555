"""Learn byte-pair encoding (BPE) from both sides together, and encode the corpus with it.

    python bpe.py DATA WORK SIZE SOURCE TARGET

SOURCE and TARGET are the suffixes of the files, such as en and de. The program reads
`DATA/{train,valid,test}.{SOURCE,TARGET}`, and writes `WORK/bpe.model` and the same files in
subwords to `WORK/pieces/`. SentencePiece reads and decodes plain text, so no tokenizer is needed.
"""

import sys
from pathlib import Path

import sentencepiece


def learn(
    data: Path, work: Path, size: int, sides: list[str]
) -> sentencepiece.SentencePieceProcessor:
    """Learn `size` subwords from both sides of the training set."""
    sentencepiece.SentencePieceTrainer.train(
        input=[str(data / f"train.{side}") for side in sides],
        model_prefix=str(work / "bpe"),
        model_type="bpe",
        vocab_size=size,
        character_coverage=0.9999,
        minloglevel=1,
    )
    return sentencepiece.SentencePieceProcessor(model_file=str(work / "bpe.model"))


def encode(processor: sentencepiece.SentencePieceProcessor, source: Path, target: Path) -> None:
    """Write the lines of a file in subwords, separated by spaces."""
    lines = source.read_text(encoding="utf-8").splitlines()
    pieces = processor.encode(lines, out_type=str)
    target.write_text("".join(" ".join(line) + "\n" for line in pieces), encoding="utf-8")
    words, count = sum(len(line.split()) for line in lines), sum(map(len, pieces))
    print(f"{source.name}: {len(lines)} lines, {words} words, {count} pieces")


def main(data: Path, work: Path, size: int, sides: list[str]) -> None:
    """Learn, then encode every file of the corpus."""
    (work / "pieces").mkdir(parents=True, exist_ok=True)
    processor = learn(data, work, size, sides)
    for name in ("train", "valid", "test"):
        for side in sides:
            encode(processor, data / f"{name}.{side}", work / "pieces" / f"{name}.{side}")


if __name__ == "__main__":
    if {"-h", "--help"} & {*sys.argv}:
        print(__doc__)
        sys.exit()
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
