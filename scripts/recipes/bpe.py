"""BPE by subword-nmt, learned on counts of words."""

import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from fairseq_recur.errors import ConfigError


def read_counts(files: Iterable[Path]) -> "Counter[str]":
    """The sum of files that `write_counts` wrote."""
    total: Counter[str] = Counter()
    for file in files:
        with file.open(encoding="utf-8", newline="\n") as lines:
            for line in lines:
                word, count = line.rstrip("\n").split(" ")
                total[word] += int(count)
    return total


def write_counts(counts: Mapping[str, int], file: Path) -> None:
    """Write a word and its number a line, the most frequent first, then in order."""
    with file.open("w", encoding="utf-8", newline="\n") as out:
        for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            out.write(f"{word} {count}\n")


def learn(counts: Mapping[str, int], size: int, file: Path) -> None:
    """Learn BPE merges and write them.

    Args:
        counts: of words
        size: the number of merges; fewer if no two pieces occur together twice
        file: to write
    """
    if not counts:
        raise ConfigError(
            "there are no words to learn BPE on: no pair of the corpora was kept; "
            "check MIN_LENGTH and MAX_LENGTH"
        )
    words = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    text = io.StringIO("".join(f"{word} {count}\n" for word, count in words), newline="\n")
    with file.open("w", encoding="utf-8", newline="\n") as out:
        learn_bpe(text, out, size, is_dict=True)


def pieces_of(counts: Mapping[str, int], codes: Path) -> "Counter[str]":
    """How often each piece occurs in a text with these words."""
    bpe = read(codes)
    total: Counter[str] = Counter()
    for word, count in counts.items():
        for piece in bpe.segment_tokens([word]):
            total[piece] += count
    return total


def read(codes: Path, vocabulary: set[str] | None = None) -> BPE:
    """The BPE of a file of merges, which makes no piece that is not in the vocabulary."""
    with codes.open(encoding="utf-8", newline="\n") as lines:
        return BPE(lines, vocab=vocabulary)


class Apply:
    """Lines to lines of pieces.

    Args:
        codes: a file of merges
        vocabulary: a file of `write_counts`
        threshold: how often a piece must be in the vocabulary to be made; 0 for any
    """

    def __init__(self, codes: Path, vocabulary: Path, threshold: int) -> None:
        allowed = None
        if threshold > 0:
            counts = read_counts([vocabulary])
            allowed = {piece for piece, count in counts.items() if count >= threshold}
        self._segment: Callable[[list[str]], list[str]] = read(codes, allowed).segment_tokens

    def __call__(self, line: str) -> str:
        return " ".join(self._segment(line.split(" ")))
