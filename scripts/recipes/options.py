"""What a translation recipe can be told, by environment variables."""

import importlib.util
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fairseq_recur.errors import ConfigError
from recipes.clean import Rules
from recipes.recipe import Recipe

CHOICES: dict[str, list[str]] = {
    "tokenizer": ["moses", "sentencepiece"],
    "segmentation": ["jieba", "characters"],
    "bpe": ["joint", "separate"],
    "dictionary": ["separate", "joined"],
    "normalise": ["0", "1"],
    "dashes": ["0", "1"],
}
NUMBERS: dict[str, Callable[[str], Any]] = {
    "bpe_size": int, "bpe_threshold": int, "min_length": int, "max_length": int, "workers": int,
    "ratio": float,
}  # fmt: skip
LEAST: dict[str, float] = {
    "bpe_size": 1, "bpe_threshold": 0, "min_length": 1, "max_length": 1, "workers": 1, "ratio": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """How to prepare a recipe; each is the environment variable of the same name in capitals.

    Attributes:
        source, target: the direction
        tokenizer: Moses's, before BPE, or none: SentencePiece on the text itself
        segmentation: what are words in Chinese, with Moses
        normalise: whether punctuation is normalised, with Moses
        dashes: whether words are split at dashes, with Moses
        bpe: one model for both languages, or one each
        bpe_size: merges with Moses; pieces with SentencePiece
        bpe_threshold: how often a language must have a piece of a joint BPE for BPE to make it
        dictionary: one of fairseq for each language, or one for both
        min_length, max_length, ratio: what pairs are kept for training
        workers: processes
        work: the folder for everything
        wmt_mirror: a folder or address with the archives
    """

    source: str
    target: str
    work: Path
    max_length: int
    ratio: float
    bpe: str
    tokenizer: str = "moses"
    segmentation: str = "jieba"
    normalise: str = "1"
    dashes: str = "1"
    bpe_size: int = 32000
    bpe_threshold: int = 0
    dictionary: str = "separate"
    min_length: int = 1
    workers: int = os.cpu_count() or 1
    wmt_mirror: str | None = None

    @property
    def direction(self) -> str:
        """Such as "en-de"."""
        return f"{self.source}-{self.target}"

    @property
    def rules(self) -> Rules:
        """Of cleaning."""
        return Rules(self.min_length, self.max_length, self.ratio)


def read_options(recipe: Recipe, given: Mapping[str, str]) -> Options:
    """The options from environment variables and a recipe's defaults, all checked.

    Raises:
        ConfigError: one or more are wrong; the message has all
    """
    texts = dict(recipe.defaults)
    for field in fields(Options):
        if given.get(field.name.upper()):
            texts[field.name] = given[field.name.upper()]
    problems: list[str] = []
    if (texts["bpe"], texts.get("tokenizer", "moses")) != ("joint", "moses"):
        texts["bpe_threshold"] = "0"
        if given.get("BPE_THRESHOLD", "0") not in ("", "0"):
            problems.append("BPE_THRESHOLD is of BPE=joint with TOKENIZER=moses; leave it out")
    values: dict[str, Any] = {}
    for name, text in texts.items():
        values[name] = _value(name, text, problems)
    if "work" not in values:
        problems.append("WORK is not set: expected the folder for everything")
    if not problems:
        options = Options(**values)
        problems += _together(recipe, options)
    if problems:
        raise ConfigError("\n".join(problems))
    return options


def _value(name: str, text: str, problems: list[str]) -> Any:
    """An option's value; what is wrong with it is added to the problems."""
    if name in CHOICES and text not in CHOICES[name]:
        problems.append(f"{name.upper()}={text}: expected {' or '.join(CHOICES[name])}")
    if name in NUMBERS:
        kind = "a whole number" if NUMBERS[name] is int else "a number"
        try:
            value = NUMBERS[name](text)
        except ValueError:
            value = None
        if value is None or not LEAST[name] <= value < float("inf"):
            problems.append(f"{name.upper()}={text}: expected {kind} from {LEAST[name]:g} on")
        return value
    return Path(text).absolute() if name == "work" else text


def _together(recipe: Recipe, options: Options) -> list[str]:
    """What is wrong with options that are right one by one."""
    problems = []
    if {options.source, options.target} != set(recipe.languages):
        first, second = recipe.languages
        problems.append(
            f"SOURCE={options.source} TARGET={options.target}: expected {first} and {second}, or"
            f" {second} and {first}"
        )
    if options.dictionary == "joined" and options.bpe == "separate":
        problems.append("DICTIONARY=joined has a use with BPE=joint only; expected separate")
    if options.min_length > options.max_length:
        problems.append(
            f"MIN_LENGTH={options.min_length} is above MAX_LENGTH={options.max_length}; give less"
        )
    for package in _packages(options):
        if importlib.util.find_spec(package) is None:
            problems.append(
                f"the package {package} is needed for these options and is not installed:"
                " pip install '.[recipes]' in the project's folder"
            )
    return problems


def _packages(options: Options) -> list[str]:
    if options.tokenizer == "sentencepiece":
        return []
    chinese = "zh" in (options.source, options.target) and options.segmentation == "jieba"
    return ["sacremoses", "jieba"] if chinese else ["sacremoses"]
