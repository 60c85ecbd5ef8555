"""How a part declares its options: name, type, default, help, range and condition, once.

A part has a dataclass ``Options`` whose fields are made by `option`. The model's flat
configuration, its flags, its documentation and its checks are assembled from these classes, and
a subclass of a part inherits them. What a part is stands in its attribute ``about``, for the help
of the flag that chooses it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, cast

LARGEST = 2**31 - 1
"""Upper end of the range of a whole number that declares none."""


def option(
    default: Any,
    help: str,
    within: tuple[float, float] | None = None,
    needs: Mapping[str, Sequence[Any]] | None = None,
    of_model: bool = False,
) -> Any:
    """Declare an option of a part.

    Args:
        default: its value where the user gives none
        help: the text of ``--help`` and of the documentation
        within: smallest and largest value of a number, both allowed; by default a whole number
            is at least 0
        needs: values of other options under which this one has an effect, besides the choice of
            a part that declares it
        of_model: whether the model around the part reads it, so that a part by itself lacks it

    Returns:
        a dataclass field
    """
    metadata: dict[str, Any] = {"help": help}
    if within is not None:
        metadata["within"] = within
    if needs is not None:
        metadata["needs"] = {name: tuple(values) for name, values in needs.items()}
    if of_model:
        metadata["of_model"] = True
    return field(default=default, metadata=metadata)


@dataclass
class NoOptions:
    """The options of a part that has none."""


def declared(part: Any) -> "dict[str, Field[Any]]":
    """The options of a part by name, inherited ones included."""
    return {f.name: f for f in fields(getattr(part, "Options", NoOptions))}


def listed(table: Mapping[str, Any]) -> str:
    """The parts of a slot for its help, each with what it says ``about`` itself.

    A subclass does not say what its parent says.
    """
    said = {name: vars(part).get("about") for name, part in table.items()}
    return ", ".join(f"{name} ({about})" if about else name for name, about in said.items())


def unknown_choices(cfg: Any, options: "Mapping[str, Field[Any]]") -> Iterator[str]:
    """Values that are not among an option's choices."""
    for name, made in options.items():
        if hasattr(made.type, "__members__"):
            choices = [e.value for e in cast(Any, made.type)]
            if getattr(cfg, name) not in choices:
                yield f"{flag(name)} {getattr(cfg, name)}: choose one of {', '.join(choices)}"


def out_of_range(cfg: Any, options: "Mapping[str, Field[Any]]") -> Iterator[str]:
    """Numbers outside the range that their option declares, NaN included."""
    for name, made in options.items():
        value = getattr(cfg, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        whole = (0, LARGEST) if isinstance(value, int) else (-1e30, 1e30)
        low, high = made.metadata.get("within", whole)
        if not low <= value <= high:
            shown = " to ".join(f"{x:g}" if isinstance(x, float) else str(x) for x in (low, high))
            yield f"{flag(name)} {value}: expected {shown}; give a value in this range"


def without_effect(
    cfg: Any, name: str, made: "Field[Any]", parts: Iterable[tuple[str, Any]]
) -> Iterator[str]:
    """Why an option that a user gave has no effect beside the others, one message each.

    Args:
        cfg: all options, flat
        name: of the option
        made: its declaration
        parts: the chosen parts, each with its side
    """
    found = f"{flag(name)} {getattr(cfg, name)} has no effect"
    for other, values in made.metadata.get("needs", {}).items():
        if getattr(cfg, other) not in values:
            wanted = " or ".join(map(str, values))
            yield (
                f"{found} with {flag(other)} {getattr(cfg, other)}; it needs {flag(other)} "
                f"{wanted}, or leave it out"
            )
    reasons = [unread(part, cfg, side).get(name) for side, part in parts if name in declared(part)]
    if reasons and all(reasons):
        yield f"{found}: {reasons[0]}; leave it out, or change the other option"


def unread(part: Any, cfg: Any, side: str) -> dict[str, str]:
    """Options of a part that it does not read beside the others: {option: reason}.

    They are what its class method `unread_options` yields, if it has one.
    """
    return dict(part.unread_options(cfg, side)) if hasattr(part, "unread_options") else {}


def flag(name: str) -> str:
    """The command-line flag of an option: ``segment_size`` is ``--segment-size``."""
    return "--" + name.replace("_", "-")
