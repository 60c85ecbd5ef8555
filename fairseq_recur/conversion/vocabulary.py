"""Which row of an embedding matrix belongs to which word, in both formats.

fairseq's dictionary begins with <s>, <pad>, </s> and <unk>; the rest is a text file with a
word a line. A row has one name there, without a space, and no name twice.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_recur.conversion.huggingface import read_json
from fairseq_recur.errors import CheckpointError, ConfigError

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")


@dataclass(frozen=True)
class Vocabulary:
    """What fairseq calls each row, and where it is in the other format.

    ``words`` are those of the dictionary's file, from index 4 on. ``rows`` has for each of
    fairseq's indices the row in Hugging Face's matrix.
    """

    words: list[str]
    rows: list[int]

    def write(self, folder: Path) -> None:
        """Write the dictionary for fairseq's ``-s source -t target``."""
        text = "".join(f"{word} 1\n" for word in self.words)
        for side in ("source", "target"):
            (folder / f"dict.{side}.txt").write_text(text, encoding="utf-8")


def named(pieces: list[str | None]) -> list[str]:
    """A dictionary's words for the rows from index 4 on.

    Rows without a piece, and pieces that the dictionary cannot have, are called madeupword
    and a number, as fairseq calls them.
    """
    words: list[str] = []
    used: set[str] = set(SPECIAL)
    taken = {piece for piece in pieces if piece is not None}
    number = 0
    for piece in pieces:
        if not piece or piece in used or any(c.isspace() for c in piece):
            while (piece := f"madeupword{number:04d}") in used | taken:
                number += 1
            number += 1
        used.add(piece)
        words.append(piece)
    return words


def t5_vocabulary(folder: Path, size: int, pad: int, eos: int) -> Vocabulary:
    """The vocabulary of a T5, whose <s> fairseq has and Hugging Face has not.

    Of the rows without a piece, with which T5's matrices are filled up, the last becomes <s>:
    so both softmax sums have the same terms. Without such a row, <s> gets a copy of the
    padding's, which a trained model never predicts either.

    Args:
        folder: with tokenizer.json or spiece.model
        size: rows of the embedding matrix
        pad, eos: rows of these symbols

    Raises:
        ConfigError: if the tokenizer is missing or larger than the matrix
    """
    pieces, unk = t5_pieces(folder, size)
    beyond = [piece for row, piece in pieces.items() if row >= size]
    if beyond:
        raise ConfigError(
            f"the tokenizer in {folder} has {len(beyond)} pieces ({', '.join(beyond[:3])}) beyond "
            f"the {size} rows of the embeddings: it is another model's; give its own"
        )
    fixed = {pad, eos, unk}
    begin = [row for row, piece in pieces.items() if piece == "<s>" and row not in fixed]
    spare = [row for row in range(size) if row not in pieces and row not in fixed]
    bos = (begin or spare[-1:] or [pad])[0]
    rest = [row for row in range(size) if row not in {bos, *fixed}]
    return Vocabulary(named([pieces.get(row) for row in rest]), [bos, pad, eos, unk, *rest])


def t5_pieces(folder: Path, size: int) -> tuple[dict[int, str], int]:
    """The tokenizer's pieces by row, and the row of the unknown one."""
    if (folder / "tokenizer.json").is_file():
        content = read_json(folder / "tokenizer.json")
        model = content.get("model") or {}
        if model.get("type") != "Unigram" or model.get("unk_id") is None:
            raise ConfigError(
                f"{folder / 'tokenizer.json'}: expected a Unigram model with an unknown piece, as "
                f"T5's are, found {model.get('type')}"
            )
        pieces = {row: entry[0] for row, entry in enumerate(model["vocab"])}
        pieces.update({t["id"]: t["content"] for t in content.get("added_tokens", [])})
        return pieces, int(model["unk_id"])
    if not (folder / "spiece.model").is_file():
        raise ConfigError(f"no tokenizer in {folder}: expected spiece.model or tokenizer.json")
    processor = read_sentencepiece(folder / "spiece.model")
    pieces = {row: processor.id_to_piece(row) for row in range(processor.get_piece_size())}
    settings: dict[str, object] = {}
    if (folder / "tokenizer_config.json").is_file():
        settings = read_json(folder / "tokenizer_config.json")
    added = settings.get("added_tokens_decoder")
    if isinstance(added, dict):
        pieces.update({int(row): token["content"] for row, token in added.items()})
    else:
        # The sentinels of T5's training, the first one last, as its tokenizer adds them.
        count, first = int(settings.get("extra_ids", 100)), len(pieces)
        for number in range(min(count, size - first)):
            pieces[first + count - 1 - number] = f"<extra_id_{number}>"
    return pieces, processor.unk_id()


def read_sentencepiece(file: Path) -> Any:
    """A SentencePiece model.

    Raises:
        CheckpointError: if it is damaged
    """
    import sentencepiece

    try:
        return sentencepiece.SentencePieceProcessor(model_file=str(file))
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{file} is damaged: {error}; get it again") from error


def default_t5_rows(size: int) -> list[int]:
    """The rows where there is no tokenizer: pad, eos and unk first, <s> last, as in T5's own."""
    return [size - 1, 0, 1, 2, *range(3, size - 1)]
