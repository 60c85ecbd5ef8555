"""BART's tokenizer as files for fairseq's ``--bpe gpt2``."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

from fairseq_recur.conversion.huggingface import read_json
from fairseq_recur.conversion.vocabulary import SPECIAL, Vocabulary, named
from fairseq_recur.errors import CheckpointError, ConfigError


@dataclass(frozen=True)
class ByteBPE:
    """A byte-level BPE: the rows of its tokens, and its merges, "left right" each."""

    tokens: dict[str, int]
    merges: list[str]

    def numbers(self) -> dict[str, int]:
        """GPT-2's numbers of the tokens: the bytes, then the merges in their order.

        fairseq's dictionary for BART has these numbers as words, in the order of the rows.
        """
        made = [*bytes_to_unicode().values(), *(m.replace(" ", "") for m in self.merges)]
        numbers: dict[str, int] = {}
        for token in made:
            numbers.setdefault(token, len(numbers))
        numbers.setdefault("<|endoftext|>", len(numbers))
        return numbers

    def write(self, folder: Path) -> None:
        """Write encoder.json and vocab.bpe, which fairseq's encoder reads."""
        (folder / "encoder.json").write_text(json.dumps(self.numbers()), encoding="utf-8")
        lines = ["#version: 0.2", *self.merges]
        (folder / "vocab.bpe").write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_byte_bpe(folder: Path) -> ByteBPE:
    """The tokenizer of a folder, from vocab.json and merges.txt or from tokenizer.json.

    Raises:
        ConfigError: if there is none, or one of another kind
        CheckpointError: if a file is damaged
    """
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
        merges = [line for line in lines[lines[0].startswith("#version") :] if line]
        return ByteBPE(rows_of(read_json(folder / "vocab.json"), folder), merges)
    if not (folder / "tokenizer.json").is_file():
        raise ConfigError(
            f"no tokenizer in {folder}: expected vocab.json and merges.txt, or tokenizer.json"
        )
    content = read_json(folder / "tokenizer.json")
    model = content.get("model") or {}
    if model.get("type") != "BPE":
        raise ConfigError(
            f"{folder / 'tokenizer.json'}: expected a BPE model, as BART's are, found "
            f"{model.get('type')}"
        )
    tokens = rows_of(model.get("vocab"), folder)
    tokens.update({token["content"]: token["id"] for token in content.get("added_tokens", [])})
    pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    return ByteBPE(tokens, pairs)


def rows_of(tokens: Any, folder: Path) -> dict[str, int]:
    """A tokenizer's {token: row}."""
    if not isinstance(tokens, dict) or not all(isinstance(row, int) for row in tokens.values()):
        raise CheckpointError(
            f"the tokenizer in {folder} is damaged: it has no rows of its tokens; get it again"
        )
    return dict(tokens)


def bart_vocabulary(bpe: ByteBPE, size: int, folder: Path) -> Vocabulary:
    """The vocabulary of a BART, whose rows are in fairseq's order already.

    Raises:
        ConfigError: if the first four are not fairseq's, or the tokenizer is too large
    """
    names = {row: token for token, row in bpe.tokens.items()}
    first = tuple(names.get(row) for row in range(4))
    if first != SPECIAL:
        raise ConfigError(
            f"the tokenizer in {folder} begins with {first}; BART's begins with {SPECIAL}; "
            "give a tokenizer of BART"
        )
    # Models fine-tuned by fairseq have no row for the mask, which their tokenizer still has.
    beyond = [token for row, token in names.items() if row >= size and token != "<mask>"]
    if beyond:
        raise ConfigError(
            f"the tokenizer in {folder} has {len(beyond)} tokens ({', '.join(beyond[:3])}) beyond "
            f"the {size} rows of the embeddings: it is another model's; give its own"
        )
    numbers = bpe.numbers()
    tokens = [names.get(row) for row in range(4, size)]
    words = [str(numbers[t]) if t in numbers else t for t in tokens]
    return Vocabulary(named(words), list(range(size)))
