"""SentencePiece, as a second way from text to pieces."""

import io
from collections.abc import Iterable
from pathlib import Path

import sentencepiece

from fairseq_recur.errors import ConfigError

MOST = 10_000_000
"""Lines that a model is learned on; of more, evenly chosen ones."""


def learn(lines: Iterable[str], count: int, size: int, coverage: float, file: Path) -> None:
    """Learn a BPE model and write it.

    Args:
        lines: text
        count: how many lines these are
        size: the number of pieces, characters among them
        coverage: the part of the text's characters that pieces are made for
        file: to write

    Raises:
        ConfigError: so many pieces cannot be had from this text
    """
    apart = -(-count // MOST)
    chosen = (line for number, line in enumerate(lines) if number % apart == 0)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=chosen, model_writer=model, vocab_size=size, model_type="bpe",
            character_coverage=coverage, normalization_rule_name="identity", num_threads=1,
            minloglevel=2,
        )  # fmt: skip
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"SentencePiece makes no model with BPE_SIZE={size} of {count:,} lines: {error}; "
            "choose another BPE_SIZE"
        ) from error
    file.write_bytes(model.getvalue())


class Apply:
    """Lines to lines of pieces, by a model's file."""

    def __init__(self, model: Path) -> None:
        self._model = sentencepiece.SentencePieceProcessor(model_file=str(model))

    def __call__(self, line: str) -> str:
        return " ".join(self._model.encode(line, out_type=str))
