"""The tokenizers of BART and CodeT5 as files for fairseq's ``--bpe gpt2``."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

from fairseq_recur.conversion.huggingface import damage_reported, read_object
from fairseq_recur.conversion.vocabulary import SPECIAL, Vocabulary, check_rows, named
from fairseq_recur.errors import CheckpointError, ConfigError

NAMED = (*SPECIAL, "<mask>")
"""Tokens that fairseq's dictionary and its encoder know by name."""


@dataclass(frozen=True)
class ByteBPE:
    """A byte-level BPE.

    Attributes:
        tokens: the row of each token
        merges: as "left right"
        added: the tokens that were added later, such as sentinels
    """

    tokens: dict[str, int]
    merges: list[str]
    added: Collection[str] = ()

    def numbers(self) -> dict[str, int]:
        """Return GPT-2's number of each token: the bytes, then the merges in their order.

        fairseq's dictionary for BART has these numbers as words, in the order of the rows. Added
        tokens come last, so that whatever a model predicts can be decoded.
        """
        made = [*bytes_to_unicode().values(), *(m.replace(" ", "") for m in self.merges)]
        numbers: dict[str, int] = {}
        for token in made:
            numbers.setdefault(token, len(numbers))
        numbers.setdefault("<|endoftext|>", len(numbers))
        for token in sorted({*self.added} - {*NAMED}, key=self.tokens.__getitem__):
            numbers.setdefault(token, len(numbers))
        return numbers

    def write(self, folder: Path) -> None:
        """Write encoder.json and vocab.bpe, which fairseq's encoder reads."""
        (folder / "encoder.json").write_text(json.dumps(self.numbers()), encoding="utf-8")
        lines = ["#version: 0.2", *self.merges]
        (folder / "vocab.bpe").write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_byte_bpe(folder: Path) -> ByteBPE:
    """Read the tokenizer of a folder, from vocab.json and merges.txt or from tokenizer.json.

    Raises:
        ConfigError: there is none, or one of another kind.
        CheckpointError: a file is damaged.
    """
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        with damage_reported(folder / "merges.txt"):
            lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
        merges = [line for line in lines[lines[0].startswith("#version") :] if line]
        tokens = read_object(folder / "vocab.json")
        extra = folder / "added_tokens.json"
        added = read_object(extra) if extra.is_file() else {}
        with damage_reported(folder / "vocab.json"):
            rows = checked_rows(tokens, folder / "vocab.json")
            return ByteBPE({**rows, **checked_rows(added, extra)}, merges, added)
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ConfigError(
            f"no tokenizer in {folder}: expected vocab.json and merges.txt, or tokenizer.json"
        )
    content = read_object(file)
    with damage_reported(file):
        model = content["model"]
        if model["type"] != "BPE":
            raise ConfigError(
                f"{file}: expected a BPE model, as BART's are, found {model['type']!r:.60}"
            )
        added = {token["content"]: token["id"] for token in content.get("added_tokens", [])}
        pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
        return ByteBPE(checked_rows({**model["vocab"], **added}, file), pairs, added)


def gpt2_files(folder: Path, target: Path) -> list[str]:
    """Write the files of ``--bpe gpt2`` for a folder's tokenizer; return the flags to give."""
    read_byte_bpe(folder).write(target)
    return [
        "--bpe", "gpt2", "--gpt2-encoder-json", "encoder.json", "--gpt2-vocab-bpe", "vocab.bpe",
    ]  # fmt: skip


def has_byte_bpe(folder: Path) -> bool:
    """Whether the tokenizer of a folder is a byte-level BPE, such as CodeT5's in a T5."""
    if (folder / "merges.txt").is_file():
        return True
    file = folder / "tokenizer.json"
    model = read_object(file).get("model") if file.is_file() else None
    return isinstance(model, dict) and model.get("type") == "BPE"


def byte_pieces(folder: Path) -> tuple[dict[int, str], int]:
    """Return the words of a byte-level BPE by row, and the row of the unknown word.

    A word is GPT-2's number of the token, and the token itself if it has none.

    Raises:
        ConfigError: there is no tokenizer, or it has no token <unk>.
        CheckpointError: a file is damaged.
    """
    bpe = read_byte_bpe(folder)
    if "<unk>" not in bpe.tokens:
        raise ConfigError(
            f"the tokenizer in {folder} has no token <unk>; give the tokenizer of a CodeT5"
        )
    numbers = bpe.numbers()
    pieces = {row: str(numbers.get(token, token)) for token, row in bpe.tokens.items()}
    return pieces, bpe.tokens["<unk>"]


def checked_rows(tokens: dict[Any, Any], file: Path) -> dict[str, int]:
    """Return a tokenizer's {token: row}.

    Raises:
        CheckpointError: they are not texts and whole numbers
    """
    if not all(isinstance(t, str) and isinstance(row, int) for t, row in tokens.items()):
        raise CheckpointError(
            f"{file} is damaged: expected a row number for each token; get the file again"
        )
    return tokens


def bart_vocabulary(bpe: ByteBPE, size: int, folder: Path) -> Vocabulary:
    """Return the vocabulary of a BART, whose rows are in fairseq's order already.

    Raises:
        ConfigError: the first four rows are not fairseq's, or the tokenizer is too large.
    """
    names = {row: token for token, row in bpe.tokens.items()}
    first = tuple(names.get(row) for row in range(4))
    if first != SPECIAL:
        raise ConfigError(
            f"the tokenizer in {folder} begins with {first}, but BART's begins with {SPECIAL}; "
            "give a tokenizer of BART"
        )
    # Models fine-tuned by fairseq have no row for the mask, but their tokenizer still has it.
    check_rows({row: token for row, token in names.items() if token != "<mask>"}, size, folder)
    numbers = bpe.numbers()
    tokens = [names.get(row) for row in range(4, size)]
    words = [str(numbers[t]) if t in numbers else t for t in tokens]
    return Vocabulary(named(words), list(range(size)))
