"""BPE by subword-nmt: counted, learned and applied."""

import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from fairseq_recur.errors import ConfigError


def read_counts(files: Iterable[Path]) -> "Counter[str]":
    """Read and add up the counts of files that `write_counts` wrote."""
    total: Counter[str] = Counter()
    for file in files:
        with file.open(encoding="utf-8", newline="\n") as lines:
            for line in lines:
                word, count = line.rstrip("\n").split(" ")
                total[word] += int(count)
    return total


def write_counts(counts: Mapping[str, int], file: Path) -> None:
    """Write ``WORD COUNT`` lines, the most frequent word first."""
    with file.open("w", encoding="utf-8", newline="\n") as out:
        out.writelines(f"{word} {count}\n" for word, count in _sorted(counts))


def _sorted(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Sort words by descending count, then alphabetically."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def learn_codes(counts: Mapping[str, int], size: int, file: Path) -> None:
    """Learn BPE merges and write them.

    Args:
        counts: word counts
        size: number of merges; there are fewer if no pair of subwords occurs twice
        file: output

    Raises:
        ConfigError: there are no words
    """
    if not counts:
        raise ConfigError(
            "there are no words to learn BPE from: no pair of the corpora was kept; "
            "check MIN_LENGTH and MAX_LENGTH"
        )
    text = io.StringIO("".join(f"{word} {count}\n" for word, count in _sorted(counts)), "\n")
    with file.open("w", encoding="utf-8", newline="\n") as out:
        learn_bpe(text, out, size, is_dict=True)


def count_subwords(counts: Mapping[str, int], codes: Path) -> "Counter[str]":
    """Count the subwords of a text with the given word counts."""
    bpe = read_codes(codes)
    total: Counter[str] = Counter()
    for word, count in counts.items():
        for piece in bpe.segment_tokens([word]):
            total[piece] += count
    return total


def read_codes(codes: Path, vocabulary: set[str] | None = None) -> BPE:
    """Read a file of merges; the BPE produces only subwords of the vocabulary, if one is given."""
    with codes.open(encoding="utf-8", newline="\n") as lines:
        return BPE(lines, vocab=vocabulary)


class ApplyBpe:
    """Splits a line of words into subwords.

    Args:
        codes: file of merges
        vocabulary: file of `write_counts`
        threshold: how often the vocabulary must have a subword; 0 for any subword
    """

    def __init__(self, codes: Path, vocabulary: Path, threshold: int) -> None:
        allowed = None
        if threshold > 0:
            counts = read_counts([vocabulary])
            allowed = {piece for piece, count in counts.items() if count >= threshold}
        self._segment: Callable[[list[str]], list[str]] = read_codes(codes, allowed).segment_tokens

    def __call__(self, line: str) -> str:
        """Return a line of words in subwords."""
        return " ".join(self._segment(line.split(" ")))
