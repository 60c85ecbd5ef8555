"""Texts in pieces, as BART, T5 or a SentencePiece model of one's own has them."""

import io
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import sentencepiece
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

from fairseq_recur.errors import ConfigError
from recipes.parallel import chunks, in_order
from recipes.summary_data import SPLITS
from recipes.summary_texts import SIDES

KINDS = ("gpt2", "t5", "sentencepiece")
GPT2_FILES = ("encoder.json", "vocab.bpe")
SPIECE = "spiece.model"
CHUNK = 200
"""Words of a text that SentencePiece learns from at once: it leaves out long lines."""

LEARNT_FROM = 20_000_000
"""Chunks are skipped at equal distances so that about so many words are learnt from."""


class Gpt2:
    """fairseq's GPT-2 pieces, which are numbers.

    Args:
        folder: with encoder.json and vocab.bpe

    Raises:
        ConfigError: they are not what they should be
    """

    def __init__(self, folder: Path) -> None:
        try:
            self.encoder = get_encoder(*(str(folder / name) for name in GPT2_FILES))
        except (ValueError, OSError) as error:
            raise ConfigError(
                f"{folder}: no GPT-2 pieces ({error}); run prepare.sh again"
            ) from error

    def encode(self, text: str) -> list[str]:
        """A text's pieces."""
        return [str(piece) for piece in self.encoder.encode(text)]

    def decode(self, pieces: list[str]) -> str:
        """The text of pieces; what is none, such as <unk>, is left out."""
        return self.encoder.decode(
            [int(p) for p in pieces if p.isdigit() and int(p) in self.encoder.decoder]
        )


class SentencePieces:
    """Pieces of a SentencePiece model.

    Args:
        folder: with spiece.model

    Raises:
        ConfigError: it is none
    """

    def __init__(self, folder: Path) -> None:
        try:
            self.processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / SPIECE))
        except (RuntimeError, OSError) as error:
            raise ConfigError(
                f"{folder / SPIECE}: no SentencePiece model ({error}); run prepare.sh again"
            ) from error

    def encode(self, text: str) -> list[str]:
        """A text's pieces."""
        return self.processor.encode(text, out_type=str)

    def decode(self, pieces: list[str]) -> str:
        """The text of pieces; <unk> is left out."""
        return self.processor.decode_pieces([p for p in pieces if p != "<unk>"])


def load_pieces(kind: str, folder: Path) -> Any:
    """What encodes and decodes.

    Args:
        kind: one of KINDS
        folder: with the kind's files
    """
    return Gpt2(folder) if kind == "gpt2" else SentencePieces(folder)


def learn(texts: Path, folder: Path, size: int) -> None:
    """Learn SentencePiece's byte-pair encoding from both sides of the training set.

    Args:
        texts: with train.source and train.target
        folder: where spiece.model is written
        size: how many pieces

    Raises:
        ConfigError: the texts have not so many
    """
    words = sum(len(line.split()) for line in _training_lines(texts))
    distance = max(1, -(-words // LEARNT_FROM))
    model = io.BytesIO()  # and no file: its name would be part of the model
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=islice(_chunks(texts), 0, None, distance),
            model_writer=model,
            model_type="bpe",
            vocab_size=size,
            character_coverage=0.9999,
            num_threads=1,  # the result does not hang on the machine
            minloglevel=1,
        )
    except RuntimeError as error:
        raise ConfigError(
            f"{size:,} pieces cannot be learnt from {texts}: {error}; choose a smaller VOCABULARY"
        ) from error
    (folder / SPIECE).write_bytes(model.getvalue())


def _training_lines(texts: Path) -> Iterator[str]:
    for side in SIDES:
        with open(texts / f"train.{side}", encoding="utf-8", newline="\n") as lines:
            yield from lines


def _chunks(texts: Path) -> Iterator[str]:
    for line in _training_lines(texts):
        words = line.split()
        for begin in range(0, len(words), CHUNK):
            yield " ".join(words[begin : begin + CHUNK])


class Encode:
    """Turns lines into lines of pieces.

    Args:
        kind: one of KINDS
        model: the folder with the kind's files
        limit: the most pieces of a line; 0 for any number
    """

    def __init__(self, kind: str, model: Path, limit: int) -> None:
        self.encode, self.limit = load_pieces(kind, model).encode, limit

    def __call__(self, lines: list[str]) -> list[tuple[str, bool]]:
        """Each line in pieces, and whether it was cut."""
        return [self.line(line) for line in lines]

    def line(self, line: str) -> tuple[str, bool]:
        """A line in pieces, and whether it was cut."""
        pieces = self.encode(line)
        cut = bool(self.limit) and len(pieces) > self.limit
        return " ".join(pieces[: self.limit] if cut else pieces), cut


def _words(lines: Iterable[str], limit: int) -> Iterator[str]:
    """Lines without the words that cannot be within a limit, as each has a piece at least."""
    for line in lines:
        yield " ".join(line.split(None, limit + 1)[: limit + 1]) if limit else line.rstrip("\n")


def encode_all(
    kind: str, model: Path, texts: Path, folder: Path, limits: dict[str, int], workers: int
) -> None:
    """Write all texts in pieces, line by line.

    Sources are cut everywhere, summaries in the training set alone: others are compared with.

    Args:
        kind: one of KINDS
        model: the folder with the kind's files
        texts: with SPLIT.source and SPLIT.target
        folder: where files of the same names are written
        limits: the most pieces of a source and of a target, each without the end of the sentence
        workers: processes
    """
    for split in SPLITS:
        for side in SIDES:
            limit = limits[side] if side == "source" or split == "train" else 0
            name, count = f"{split}.{side}", 0
            with (
                open(texts / name, encoding="utf-8", newline="\n") as lines,
                open(folder / name, "w", encoding="utf-8", newline="\n") as out,
            ):
                parts = chunks(_words(lines, limit))
                for part in in_order(Encode, (kind, model, limit), parts, workers, name):
                    for pieces, cut in part:
                        out.write(pieces + "\n")
                        count += cut
            if limit:
                print(f"{name}: {count:,} texts are cut to {limit:,} pieces", flush=True)
