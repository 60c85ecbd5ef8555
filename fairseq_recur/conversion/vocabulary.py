"""Which row of an embedding matrix belongs to which word, in both formats.

fairseq's dictionary begins with <s>, <pad>, </s> and <unk>; the rest is a text file with one
word per line. Each row has a unique name without white space there.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_recur.conversion.huggingface import damage_reported, read_object
from fairseq_recur.errors import CheckpointError, ConfigError, first_items

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")


@dataclass(frozen=True)
class Vocabulary:
    """The names and rows of fairseq's words.

    Attributes:
        words: of the dictionary's file, from index 4 on.
        rows: row in Hugging Face's matrix for each of fairseq's indices.
    """

    words: list[str]
    rows: list[int]

    def write(self, folder: Path) -> None:
        """Write the dictionaries for fairseq's ``-s source -t target``."""
        text = "".join(f"{word} 1\n" for word in self.words)
        for side in ("source", "target"):
            (folder / f"dict.{side}.txt").write_text(text, encoding="utf-8")


def named(pieces: Sequence[str | None]) -> list[str]:
    """Return a dictionary's words for the rows from index 4 on.

    Rows without a piece, and pieces that the dictionary cannot hold, are called madeupword
    and a number, as in fairseq.
    """
    words: list[str] = []
    used: set[str] = set(SPECIAL)
    taken = {piece for piece in pieces if piece is not None}
    number = 0
    for piece in pieces:
        word = piece or ""
        # JSON can hold what UTF-8 cannot encode: halves of surrogate pairs.
        if not word or word in used or re.search(r"\s|[\ud800-\udfff]", word):
            while (word := f"madeupword{number:04d}") in used or word in taken:
                number += 1
            number += 1
        used.add(word)
        words.append(word)
    return words


def check_rows(pieces: Mapping[int, str], size: int, folder: Path) -> None:
    """Raise ConfigError if a tokenizer has rows that the matrix of ``size`` rows lacks."""
    beyond = [piece for row, piece in pieces.items() if not 0 <= row < size]
    if beyond:
        raise ConfigError(
            f"the tokenizer in {folder} has {len(beyond)} tokens ({first_items(beyond, 3)}) beyond "
            f"the {size} rows of the embeddings: it belongs to another model; give the right one"
        )


def t5_vocabulary(
    pieces: Mapping[int, str], unk: int, size: int, pad: int, eos: int, folder: Path
) -> Vocabulary:
    """Return the vocabulary of a T5, which has no <s> in Hugging Face's format.

    T5's matrices are filled up with rows without a piece. The last of them becomes <s>, so
    both softmax sums have the same terms. Without such a row, <s> gets a copy of the
    padding's, which a trained model never predicts either. CodeT5 has an <s>, which is used.

    Args:
        pieces: of the tokenizer, by row.
        unk, pad, eos: rows of these symbols.
        size: rows of the embedding matrix.
        folder: of the tokenizer, for messages.

    Raises:
        ConfigError: the tokenizer is larger than the matrix, or is not a T5's.
    """
    check_rows(pieces, size, folder)
    fixed = {pad, eos, unk}
    if len(fixed) < 3:
        raise ConfigError(
            f"padding, end of sentence and unknown word of {folder} have the rows {pad}, {eos} and "
            f"{unk}; expected three different rows"
        )
    begin = [row for row, piece in pieces.items() if piece == "<s>" and row not in fixed]
    spare = [row for row in range(size) if row not in pieces and row not in fixed]
    bos = (begin or spare[-1:] or [pad])[0]
    rest = [row for row in range(size) if row not in {bos, *fixed}]
    return Vocabulary(named([pieces.get(row) for row in rest]), [bos, pad, eos, unk, *rest])


def t5_pieces(folder: Path, size: int) -> tuple[dict[int, str], int]:
    """Return the tokenizer's pieces by row, and the row of the unknown piece.

    Args:
        folder: with tokenizer.json or spiece.model.
        size: rows of the embedding matrix.

    Raises:
        ConfigError: the tokenizer is missing, or of another kind.
        CheckpointError: a file of the tokenizer is damaged.
    """
    file = folder / "tokenizer.json"
    if file.is_file():
        content = read_object(file)
        with damage_reported(file):
            model = content["model"]
            unk = model.get("unk_id")
            if model["type"] != "Unigram" or unk is None:
                raise ConfigError(
                    f"{file}: expected a Unigram model with an unknown piece, as T5's are, found "
                    f"{model['type']!r:.60}"
                )
            pieces = {row: str(piece) for row, (piece, _) in enumerate(model["vocab"])}
            added = content.get("added_tokens", [])
            pieces.update({int(t["id"]): str(t["content"]) for t in added})
            pieces[unk]  # the unknown piece has a row
            return pieces, unk
    if not (folder / "spiece.model").is_file():
        raise ConfigError(f"no tokenizer in {folder}: expected spiece.model or tokenizer.json")
    processor = read_sentencepiece(folder / "spiece.model")
    pieces = {row: processor.id_to_piece(row) for row in range(processor.get_piece_size())}
    file = folder / "tokenizer_config.json"
    settings = read_object(file) if file.is_file() else {}
    with damage_reported(file):
        added = settings.get("added_tokens_decoder")
        if isinstance(added, dict):
            pieces.update({int(row): str(token["content"]) for row, token in added.items()})
        else:
            # The sentinels of T5's training, the first one last, as its tokenizer adds them.
            count, first = int(settings.get("extra_ids", 100)), len(pieces)
            for number in range(min(count, size - first)):
                pieces[first + count - 1 - number] = f"<extra_id_{number}>"
    return pieces, processor.unk_id()


def read_sentencepiece(file: Path) -> Any:
    """Load a SentencePiece model.

    Raises:
        CheckpointError: the file is damaged.
    """
    import sentencepiece

    try:
        return sentencepiece.SentencePieceProcessor(model_file=str(file))
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{file} is damaged: {error}; get the file again") from error
