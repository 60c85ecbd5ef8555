"""Learn byte-pair encoding (BPE) from both sides together, and encode the corpus with it.

    python bpe.py DATA WORK SIZE SOURCE TARGET [NORMALIZATION]

SOURCE and TARGET are the suffixes of the files, such as en and de. The program reads
`DATA/{train,valid,test}.{SOURCE,TARGET}`, and writes `WORK/bpe.model` and the same files in
subwords to `WORK/pieces/`. SentencePiece reads and decodes plain text, so no tokenizer is needed.
NORMALIZATION is one of SentencePiece's rules: nmt_nfkc by default, or identity, which keeps all
characters, such as the full-width punctuation of Chinese.
"""

import sys
from pathlib import Path

import sentencepiece

from fairseq_recur.errors import ConfigError
from fairseq_recur.scoring.generation import read_lines

RULES = ("nmt_nfkc", "identity")


def learn(
    data: Path, work: Path, size: int, sides: list[str], rule: str
) -> sentencepiece.SentencePieceProcessor:
    """Learn `size` subwords from both sides of the training set."""
    sentencepiece.SentencePieceTrainer.train(
        input=[str(data / f"train.{side}") for side in sides],
        model_prefix=str(work / "bpe"),
        model_type="bpe",
        vocab_size=size,
        character_coverage=0.9999,
        normalization_rule_name=rule,
        minloglevel=1,
    )
    return sentencepiece.SentencePieceProcessor(model_file=str(work / "bpe.model"))


def encode(processor: sentencepiece.SentencePieceProcessor, source: Path, target: Path) -> None:
    """Write the lines of a file in subwords, separated by spaces."""
    lines = read_lines(source)
    pieces = processor.encode(lines, out_type=str)
    target.write_text("".join(" ".join(line) + "\n" for line in pieces), encoding="utf-8")
    words, count = sum(len(line.split()) for line in lines), sum(map(len, pieces))
    print(f"{source.name}: {len(lines)} lines, {words} words, {count} pieces")


def encode_corpus(
    data: Path, work: Path, size: int, sides: list[str], rule: str = "nmt_nfkc"
) -> None:
    """Learn, then encode every file of the corpus.

    Raises:
        ConfigError: a file is missing or not UTF-8, or there is no such rule
    """
    if rule not in RULES:
        raise ConfigError(f"NORMALIZATION {rule}: expected {' or '.join(RULES)}")
    files = [f"{name}.{side}" for name in ("train", "valid", "test") for side in sides]
    for name in files:
        read_lines(data / name)
    (work / "pieces").mkdir(parents=True, exist_ok=True)
    processor = learn(data, work, size, sides, rule)
    for name in files:
        encode(processor, data / name, work / "pieces" / name)


def main(words: list[str]) -> int:
    """Run the program; return the exit status, 2 for wrong input."""
    if {"-h", "--help"} & {*words}:
        print(__doc__)
        return 0
    if len(words) not in (5, 6):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        encode_corpus(Path(words[0]), Path(words[1]), int(words[2]), words[3:5], *words[5:])
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
