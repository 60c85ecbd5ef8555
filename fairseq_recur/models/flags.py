"""Options as their flags on the command line, and what is wrong with a single one."""

from argparse import ArgumentParser, Namespace
from collections.abc import Container, Iterator
from dataclasses import Field, fields
from typing import Any

from fairseq.dataclass import FairseqDataclass

from fairseq_recur.integration import from_checkpoint


def flag(name: str) -> str:
    """The command-line flag of an option."""
    return "--" + name.replace("_", "-")


def read_numbers(parser: ArgumentParser, names: Container[str]) -> None:
    """Let the parser refuse what is no whole number in options that follow another one.

    Their default is a text, ``${...}``, and fairseq reads what is given as a text, too.

    Args:
        parser: with the flags of these options
        names: the options
    """
    for action in parser._actions:
        if action.dest in names:
            action.type = int


def given(cfg: Namespace, *defaults: FairseqDataclass) -> set[str]:
    """The options that somebody has set: those with a value that is the default of none.

    Args:
        cfg: the model's options, flat
        defaults: the model's configuration without a preset, and the preset's

    Returns:
        their names; none where a checkpoint is loaded, in which the defaults of its time stand
    """
    if from_checkpoint():
        return set()
    return {
        f.name
        for f in fields(defaults[0])
        if f.name != "_name"
        and all(getattr(cfg, f.name) != getattr(values, f.name) for values in defaults)
    }


def unknown_choices(cfg: Namespace, options: dict[str, "Field[Any]"]) -> Iterator[str]:
    """Values that are none of an option's choices, and probabilities that are none."""
    for name, option in options.items():
        value = getattr(cfg, name)
        choices = [e.value for e in option.type] if hasattr(option.type, "__members__") else None
        if choices and value not in choices:
            yield f"{flag(name)} {value}: choose one of {', '.join(choices)}"
        if name.endswith("_dropout") or name == "dropout":
            if not choices and not 0 <= float(value) < 1:
                yield f"{flag(name)} {value}: a probability is at least 0 and less than 1"
