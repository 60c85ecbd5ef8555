"""Settings of a table from environment variables."""

import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, TypeVar

from fairseq_recur.errors import refuse
from fairseq_recur.experiments.schema import fill

SET_BY_PROGRAM: dict[str, tuple[str, ...]] = {
    "--seed": ("seeds",),
    "--arch": ("systems",),
    "-a": ("systems",),
    "--lr": ("rate", "lr"),
    "--max-epoch": ("epochs", "updates"),
    "--max-update": ("epochs", "updates"),
    "--save-dir": (),
    "--log-file": (),
    "--restore-file": (),
    "--finetune-from-model": (),
}
"""Flags of a training that a program sets, and the settings that choose their values."""

NEEDED_BY_TABLES = (
    "--no-save", "--disable-validation", "--validate-interval", "--valid-subset", "--log-format"
)  # fmt: skip
"""Flags that would keep from a table what it reads: checkpoints, and the log of validations."""

T = TypeVar("T")


class Words(list[str]):
    """The words of a variable; messages show them as the user gave them."""

    def __str__(self) -> str:
        return " ".join(self)


def read_variables(
    kind: type[T], lists: Sequence[str], refused: Mapping[str, str] = MappingProxyType({})
) -> T:
    """Read settings from environment variables, which have their names in capitals.

    Args:
        kind: a dataclass of `schema.setting` fields; a field ``options`` has flags of a training
        lists: the fields whose values blanks separate
        refused: flags that ``options`` must not have, besides `SET_BY_PROGRAM` and
            `NEEDED_BY_TABLES`, and why

    Raises:
        ConfigError: lists all variables that are wrong
    """
    known = kind.__dataclass_fields__  # type: ignore[attr-defined]
    given: dict[str, Any] = {n: os.environ[n.upper()] for n in known if n.upper() in os.environ}
    given.update({name: Words(given[name].split()) for name in lists if name in given})
    for name in lists:  # nothing is a list where nothing is the default
        if given.get(name) == [] and known[name].default_factory() == []:
            del given[name]
    problems: list[str] = []
    settings = fill(kind, given, problems, environment=True)
    try:
        words = shlex.split(given.get("options", ""))
        problems += unwanted(words, {**set_by_program(known), **refused})
    except ValueError as error:
        problems.append(
            f"OPTIONS={given['options']}: {error}; expected flags of fairseq-train, correct the "
            "quotes"
        )
    refuse("variables that cannot be used", problems)
    assert settings is not None, "what cannot be read is a problem"
    for name in lists:  # what is named twice is trained once, and counts once
        setattr(settings, name, list(dict.fromkeys(getattr(settings, name))))
    return settings


def set_by_program(known: Collection[str]) -> dict[str, str]:
    """Return why OPTIONS must not have flags of the program, given the names of the settings."""
    remedies = {
        flag: next((f"choose it with {n.upper()}" for n in names if n in known), "leave it out")
        for flag, names in SET_BY_PROGRAM.items()
    }
    own = {flag: f"each training has its own; {remedy}" for flag, remedy in remedies.items()}
    return {
        **dict.fromkeys(NEEDED_BY_TABLES, "the table is read from what it changes; leave it out"),
        **own,
    }


def unwanted(words: Sequence[str], refused: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with the flags of OPTIONS.

    Args:
        words: of OPTIONS
        refused: flags, and why there must be none
    """
    for flag in dict.fromkeys(word.partition("=")[0] for word in words):
        if flag in refused:
            yield f"OPTIONS has {flag}: {refused[flag]}"


def as_variables(settings: Any, without: Sequence[str]) -> dict[str, str]:
    """Return variables that determine results: all but those *without* an effect on them."""
    return {
        name.upper(): " ".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in asdict(settings).items()
        if name not in without
    }


def without_effect(reasons: Mapping[str, str]) -> list[str]:
    """Return a message for each environment variable that is set although nothing reads it.

    Args:
        reasons: variable -> on what, or without what, it has no effect
    """
    return [
        f"{name}={os.environ[name]}: has no effect {why}; unset it"
        for name, why in reasons.items()
        if name in os.environ
    ]
