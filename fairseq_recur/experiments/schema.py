"""Settings with types, ranges and choices: OmegaConf checks the types, this module reports."""

import math
from collections.abc import Collection, Mapping
from dataclasses import Field, field, fields, is_dataclass
from typing import Any, TypeVar, get_args, get_origin

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

T = TypeVar("T")

TEXTS = (str, str | None, list[str], dict[str, str])
"""The types of settings that are texts."""


def setting(
    default: Any = MISSING,
    expected: str = "",
    *,
    choices: Collection[str] = (),
    least: float | None = None,
) -> Any:
    """Declare a field of a settings dataclass.

    Args:
        default: value if the user gives none; without a default the setting is required
        expected: what the value must be, for messages; choices and numbers describe themselves
        choices: allowed values, or allowed items of a list
        least: smallest allowed number
    """
    metadata = {"expected": expected, "choices": choices, "least": least}
    if isinstance(default, (list, dict)):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def in_file(name: str, value: Any, expected: str) -> str:
    """Describe a wrong value of a file: ``seeds: []; expected ...``."""
    return f"{name}: {value!r}; expected {expected}"


def fill(
    schema: type[T], given: Any, problems: list[str], where: str = "", environment: bool = False
) -> T | None:
    """Convert and check settings.

    A field whose type is a dataclass takes a dictionary of its settings; a field whose type is
    ``dict[str, DATACLASS]`` takes one such dictionary per name.

    Args:
        schema: dataclass; `setting` declares the fields that a user can give
        given: values by name, as YAML, the environment or the command line has them
        problems: receives a line for each unknown name, missing value and wrong value
        where: prefix of the names in messages, such as ``score.``
        environment: whether the names are those of environment variables, in capitals

    Returns:
        an instance of the dataclass, or None if anything is wrong
    """
    known = {f.name: f for f in fields(schema) if f.metadata}  # type: ignore[arg-type]
    if not isinstance(given, Mapping):
        problems.append(in_file(where.rstrip("."), given, "the keys " + ", ".join(known)))
        return None
    config, values, before = OmegaConf.structured(schema), {}, len(problems)
    for key in given:
        if key not in known:
            problems.append(f"unknown key {where}{key}; expected {', '.join(known)}")
    for name, declared in known.items():
        inner, expected = _inner_schema(declared), _expected(declared)
        label = name.upper() if environment else where + name
        if name not in given:
            if declared.default == MISSING:
                problems.append(f"{label} is missing: expected {expected}")
            continue
        value = given[name]
        wrong = in_file(label, value, expected)
        if environment:
            wrong = f"{label}={value}: expected {expected}"
        if _is_unquoted(declared, value):
            problems.append(
                f"{wrong}; put it in quotes, for YAML reads no and yes as false and true"
            )
        elif inner is None:
            values[name] = _convert(config, declared, value, wrong, problems)
        elif isinstance(value, Mapping):
            values[name] = _fill_inner(declared, inner, value, problems, f"{where}{name}.")
        elif value is not None or declared.default is not None:
            problems.append(wrong)
    return None if len(problems) > before else schema(**values)


def _convert(
    config: DictConfig, declared: Field[Any], value: Any, wrong: str, problems: list[str]
) -> Any:
    """Return a value in the type of its field; note the problem *wrong* if it is not allowed."""
    try:
        config[declared.name] = value
        found = _plain(config[declared.name])
    except (OmegaConfBaseException, ValueError):
        problems.append(wrong)
        return None
    if not _allowed(declared, found):
        problems.append(wrong)
    return found


def _fill_inner(
    declared: Field[Any], inner: type[T], given: Mapping[str, Any], problems: list[str], where: str
) -> T | dict[str, T | None] | None:
    """Convert and check the settings of the dataclass in a field's type, or of several by name."""
    if get_origin(declared.type) is not dict:
        return fill(inner, given, problems, where)
    return {name: fill(inner, own, problems, f"{where}{name}.") for name, own in given.items()}


def _inner_schema(declared: Field[Any]) -> type[Any] | None:
    """Return the dataclass in a field's type, or None."""
    kinds = (declared.type, *get_args(declared.type))
    return next((k for k in kinds if isinstance(k, type) and is_dataclass(k)), None)


def _is_unquoted(declared: Field[Any], value: Any) -> bool:
    """Return whether YAML has read a text, or one of several, as true or false."""
    items = value.values() if isinstance(value, Mapping) else value
    items = items if isinstance(value, (list, Mapping)) else [value]
    return declared.type in TEXTS and any(isinstance(item, bool) for item in items)


def _plain(value: Any) -> Any:
    """Return lists and dictionaries without OmegaConf's types."""
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def _allowed(declared: Field[Any], value: Any) -> bool:
    """Return whether a value, or each item of a list, is in the range and among the choices."""
    least, choices = declared.metadata["least"], declared.metadata["choices"]
    if value is None or isinstance(value, dict):
        return True
    items = value if isinstance(value, list) else [value]
    if least is not None and not all(least <= item < math.inf for item in items):
        return False
    return bool(items) and (not choices or set(items) <= set(choices))


def _expected(declared: Field[Any]) -> str:
    """Describe the allowed values of a setting."""
    described: str = declared.metadata["expected"]
    if described:
        return described
    if declared.metadata["choices"]:
        return "one of " + ", ".join(declared.metadata["choices"])
    kinds = {declared.type, *get_args(declared.type)}
    kind = "a whole number" if int in kinds else "a number" if float in kinds else "a text"
    least = declared.metadata["least"]
    return kind if least is None else f"{kind}, at least {least:g}"
