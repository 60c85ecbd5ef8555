"""Text to the symbols of a dictionary and back, by fairseq's tokenizers and subwords."""

import re
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary, encoders
from fairseq.data.encoders.gpt2_bpe import GPT2BPE
from fairseq.registry import REGISTRIES
from omegaconf import DictConfig
from torch import Tensor

from fairseq_recur.errors import ConfigError, InstallationError

Options = Namespace | DictConfig | None
"""The options of a tokenizer or of subwords with its name: of a command line, or a section of a
configuration; None for no tokenizer or subwords."""


MANY_UNKNOWN = 0.1
"""Share of unknown subwords above which a warning suggests to check how text was divided."""


class Codec:
    """Divides text into pieces, and joins pieces to text.

    Args:
        tokenizer: of fairseq, or None
        bpe: subwords of fairseq, or None
        detokenizer: a tokenizer of fairseq that only joins, or None
    """

    def __init__(self, tokenizer: Any = None, bpe: Any = None, detokenizer: Any = None) -> None:
        self.tokenizer, self.bpe, self.detokenizer = tokenizer, bpe, detokenizer

    def pieces(self, text: str) -> str:
        """Return the pieces of a text, separated by spaces; line breaks count as spaces."""
        text = one_line(text).strip()
        for encoder in (self.tokenizer, self.bpe):
            text = text if encoder is None else encoder.encode(text)
        return text

    def text(self, pieces: str) -> str:
        """Return the text of pieces."""
        for decoder in (self.bpe, self.tokenizer, self.detokenizer):
            pieces = pieces if decoder is None else decoder.decode(pieces)
        return pieces


@dataclass(eq=False)
class Text:
    """One side of a model: its dictionary, and how text becomes its tokens.

    Attributes:
        dictionary: of this side
        codec: divides text into the dictionary's symbols
        files: with the rules of the subwords
    """

    dictionary: Dictionary
    codec: Codec
    files: Sequence[Path] = ()

    def pieces(self, text: str) -> str:
        """Return the symbols of a text, separated by spaces; line breaks count as spaces."""
        return self.codec.pieces(text)

    def encode(self, text: str) -> Tensor:
        """Return the ids of a text, (L,) int64, with the end-of-sentence symbol."""
        return self.dictionary.encode_line(self.pieces(text), add_if_not_exist=False).long()

    def decode(self, tokens: Tensor) -> str:
        """Return the detokenized text for ids (L,)."""
        return self.codec.text(self.dictionary.string(tokens.int()))

    def labels(self, tokens: Tensor, words: Sequence[str] = ()) -> list[str]:
        """Return readable symbols for ids (L,).

        Args:
            tokens: the ids
            words: what the first ids were before the dictionary; it follows an unknown symbol
        """
        symbols = [self.dictionary[token] for token in tokens.tolist()]
        for index, token in enumerate(tokens.tolist()):
            if token == self.dictionary.unk() and index < len(words):
                symbols[index] = f"{symbols[index]} {words[index]}"
            elif isinstance(self.codec.bpe, GPT2BPE) and symbols[index].isdecimal():  # unreadable
                symbols[index] = self.codec.bpe.decode(symbols[index]).replace(" ", "\u2581")
        return symbols


def build_codec(tokenizer: Options, bpe: Options, what: str, detokenizer: Options = None) -> Codec:
    """Build a codec, and try it.

    Args:
        tokenizer: options of a tokenizer
        bpe: options of subwords
        what: what needs it, the beginning of an error message
        detokenizer: options of a tokenizer that only joins

    Raises:
        ConfigError: an option or a file is missing or malformed
        InstallationError: the library of the tokenizer or of the subwords is not installed
    """
    groups = {"tokenizer": tokenizer, "bpe": bpe, "detokenizer": detokenizer}
    try:
        codec = Codec(
            encoders.build_tokenizer(tokenizer),
            encoders.build_bpe(bpe),
            encoders.build_tokenizer(detokenizer),
        )
        codec.pieces("a b")  # some codes fail only here
    except ImportError as error:
        raise InstallationError(
            f"{what}: the library of {described(groups)} is not installed ({error}); install it"
        ) from error
    # subword-nmt ends the process for malformed codes.
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{what}: {described(groups)} cannot be built ({type(error).__name__}: {error}); give "
            "the files and options of the training"
        ) from error
    return codec


def described(groups: dict[str, Options]) -> str:
    """Describe tokenizers and subwords for an error: their names, and the options that have text.

    Args:
        groups: "tokenizer", "bpe" or "detokenizer", and its options
    """
    found: list[str] = []
    for group, options in groups.items():
        registry = "tokenizer" if group == "detokenizer" else group
        name = chosen(options, registry)
        if name is None:
            continue
        found.append(f"{group}={name!r}")
        kind = REGISTRIES[registry]["dataclass_registry"].get(name)
        names = [field.name for field in fields(kind)] if kind else []
        values = {option: value_of(options, option) for option in names if option != "_name"}
        found += [f"{k}={v}" for k, v in values.items() if isinstance(v, str) and v != "???"]
    return ", ".join(found)


def chosen(options: Options, registry: str) -> str | None:
    """Return the name of the tokenizer or of the subwords in its options, if there is one."""
    return value_of(options, "_name" if isinstance(options, DictConfig) else registry)


def value_of(options: Options, name: str) -> Any:
    """Return an option, or None."""
    if isinstance(options, DictConfig):
        return options[name] if name in options else None
    return getattr(options, name, None)


def section(whole: DictConfig | None, group: str) -> DictConfig | None:
    """Return the options of what ``--bpe`` or ``--tokenizer`` (the group) chooses, or None."""
    options = None if whole is None else whole.get(group)
    return options if options is not None and options.get("_name") else None


def codec_of(whole: DictConfig | None, what: str, detokenizer: Options = None) -> Codec:
    """Build the codec that a command's configuration asks for.

    Args:
        whole: the configuration, or None
        what: what needs it, the beginning of an error message
        detokenizer: options of a tokenizer that only joins

    Raises:
        ConfigError: as `build_codec`
        InstallationError: as `build_codec`
    """
    return build_codec(section(whole, "tokenizer"), section(whole, "bpe"), what, detokenizer)


def one_line(text: str) -> str:
    """Return a text without line breaks: each becomes a space. Other white space stays."""
    return re.sub(r"[\r\n]+", " ", text)


def truncated(ids: Tensor, limit: int | None) -> Tensor:
    """Truncate a text (L,), but keep its last id, the end of the sentence.

    Args:
        ids: of the text
        limit: the most ids, at least 1; None for no limit
    """
    if limit is None or len(ids) <= limit:
        return ids
    return torch.cat([ids[: limit - 1], ids[-1:]])
