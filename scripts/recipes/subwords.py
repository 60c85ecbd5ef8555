"""Pieces of SentencePiece, and of GPT-2's BPE by fairseq."""

import io
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import sentencepiece
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

from fairseq_recur.errors import ConfigError

KINDS = ("gpt2", "t5", "sentencepiece")
GPT2_FILES = ("encoder.json", "vocab.bpe")
SPIECE = "spiece.model"

MOST_LINES = 10_000_000
"""Lines from which a SentencePiece model is learned; longer texts are sampled evenly."""


def train_sentencepiece(sentences: Iterable[str], size: int, file: Path, **options: Any) -> None:
    """Learn a BPE model of SentencePiece and write it.

    One thread learns, so the result does not depend on the machine. A text with fewer subwords
    than asked for gets all of them, and a warning.

    Args:
        sentences: training text
        size: number of subwords, characters included
        file: output
        options: further options of SentencePieceTrainer

    Raises:
        ConfigError: the text has more characters than subwords are asked for
    """
    model = io.BytesIO()  # not a file, whose name would become part of the model
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences), model_writer=model, model_type="bpe",
            vocab_size=size, hard_vocab_limit=False, num_threads=1, minloglevel=2, **options,
        )  # fmt: skip
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"SentencePiece cannot learn {size:,} subwords from this text: {error}; "
            "choose another BPE_SIZE (translation), VOCABULARY (summarization) or PIECES "
            "(continued.sh)"
        ) from error
    file.write_bytes(model.getvalue())
    reached = SentencePieces(file).processor.get_piece_size()
    if reached < size:
        print(
            f"warning: the text has only {reached:,} subwords, not {size:,}; choose fewer, as "
            "the rarest are unknown in other texts",
            file=sys.stderr,
        )


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
        ConfigError: the text has more characters than subwords are asked for
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
