"""Subwords: BPE by subword-nmt, GPT-2's BPE by fairseq, and SentencePiece."""

import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import sentencepiece
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from fairseq_recur.errors import ConfigError

KINDS = ("gpt2", "t5", "sentencepiece")
GPT2_FILES = ("encoder.json", "vocab.bpe")
SPIECE = "spiece.model"

MOST_LINES = 10_000_000
"""Lines from which a SentencePiece model is learned; longer texts are sampled evenly."""


# --- BPE of subword-nmt -------------------------------------------------------------------------


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


# --- SentencePiece and GPT-2 --------------------------------------------------------------------


def train_sentencepiece(sentences: Iterable[str], size: int, file: Path, **options: Any) -> None:
    """Learn a BPE model of SentencePiece and write it.

    One thread learns, so the result does not depend on the machine.

    Args:
        sentences: training text
        size: number of subwords, characters included
        file: output
        options: further options of SentencePieceTrainer

    Raises:
        ConfigError: the text does not have as many subwords
    """
    model = io.BytesIO()  # not a file, whose name would become part of the model
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences), model_writer=model, model_type="bpe",
            vocab_size=size, num_threads=1, minloglevel=2, **options,
        )  # fmt: skip
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"SentencePiece cannot learn {size:,} subwords from this text: {error}; "
            "choose another BPE_SIZE (translation) or VOCABULARY (summarization)"
        ) from error
    file.write_bytes(model.getvalue())


def learn_from_lines(
    lines: Iterable[str], count: int, size: int, coverage: float, file: Path
) -> None:
    """Learn SentencePiece from sentences, for translation.

    Args:
        lines: text
        count: number of lines
        size: number of subwords, characters included
        coverage: share of the text's characters that get a subword
        file: output

    Raises:
        ConfigError: the text does not have as many subwords
    """
    distance = -(-count // MOST_LINES)
    chosen = islice(lines, 0, None, distance)
    options = {"character_coverage": coverage, "normalization_rule_name": "identity"}
    train_sentencepiece(chosen, size, file, **options)


class Gpt2:
    """The subwords of GPT-2, which fairseq writes as numbers.

    Args:
        folder: with encoder.json and vocab.bpe

    Raises:
        ConfigError: the files cannot be read
    """

    def __init__(self, folder: Path) -> None:
        try:
            self.encoder = get_encoder(*(str(folder / name) for name in GPT2_FILES))
        except (ValueError, OSError) as error:
            raise ConfigError(
                f"{folder}: no usable GPT-2 BPE ({error}); run prepare.sh again"
            ) from error

    def encode(self, text: str) -> list[str]:
        """Return the subwords of a text."""
        return [str(piece) for piece in self.encoder.encode(text)]

    def decode(self, pieces: list[str]) -> str:
        """Return the text of subwords; symbols such as <unk> are left out."""
        return self.encoder.decode(
            [int(p) for p in pieces if p.isdigit() and int(p) in self.encoder.decoder]
        )


class SentencePieces:
    """The subwords of a SentencePiece model.

    Args:
        file: the model

    Raises:
        ConfigError: the file is missing or damaged
    """

    def __init__(self, file: Path) -> None:
        try:
            self.processor = sentencepiece.SentencePieceProcessor(model_file=str(file))
        except (RuntimeError, OSError) as error:
            raise ConfigError(
                f"{file}: not a SentencePiece model ({error}); run prepare.sh again"
            ) from error

    def encode(self, text: str) -> list[str]:
        """Return the subwords of a text."""
        return self.processor.encode(text, out_type=str)

    def decode(self, pieces: list[str]) -> str:
        """Return the text of subwords; <unk> is left out."""
        return self.processor.decode_pieces([p for p in pieces if p != "<unk>"])

    def __call__(self, line: str) -> str:
        """Return a line of text in subwords."""
        return " ".join(self.encode(line))


def load_pieces(kind: str, folder: Path) -> Gpt2 | SentencePieces:
    """Load what encodes and decodes texts.

    Args:
        kind: one of KINDS
        folder: with the files of that kind
    """
    return Gpt2(folder) if kind == "gpt2" else SentencePieces(folder / SPIECE)
