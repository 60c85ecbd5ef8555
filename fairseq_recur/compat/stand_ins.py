"""Pure-Python stand-ins for the classes that a checkpoint names besides torch's own.

A pickle file calls a class's constructor and its ``__setstate__`` with arguments of its choice.
The C code of numpy, for one, trusts them: a hostile state of `numpy.ndarray` corrupts memory. So
torch's allow-list holds none of the real classes. It maps their names to the classes below, which
accept only what fairseq writes. `plain` then replaces each stand-in by the value it describes.

Nothing in a file is trusted: not its arguments, not their types, not the order of its instructions.
"""

import math
import sys
from argparse import Namespace
from pickle import UnpicklingError
from typing import Any

import numpy

DTYPES = ("i4", "i8", "f4", "f8")
MOST_DIMENSIONS = 8
NATIVE = "<" if sys.byteorder == "little" else ">"

OMEGACONF_CONTAINERS = ("dictconfig.DictConfig", "listconfig.ListConfig")
OMEGACONF_NODES = "AnyNode StringNode IntegerNode FloatNode BooleanNode EnumNode BytesNode PathNode"
OMEGACONF_METADATA = ("ContainerMetadata", "Metadata")
BUILTINS = "dict list tuple int float str bool"


class StandIn:
    """An object in a file: made without arguments, given one state, replaced by a plain value."""

    __hash__ = None  # type: ignore[assignment]  # it is no key of a dictionary
    _value: Any

    def __new__(cls, *args: Any) -> Any:
        """Refuse arguments from the file."""
        if args:
            raise UnpicklingError(f"{cls.__name__} has arguments, expected none")
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        """Take the state from the file, once."""
        if "_value" in self.__dict__:
            raise UnpicklingError(f"{type(self).__name__} has two states, expected one")
        self._value = self.read(state)

    def read(self, state: Any) -> Any:
        """Return the value that a state describes.

        Raises:
            UnpicklingError: fairseq does not write such a state
        """
        raise UnpicklingError(f"{type(self).__name__} has a state, expected none")

    def value(self) -> Any:
        """Return the value that this object stands for; its parts may be stand-ins."""
        if "_value" not in self.__dict__:
            raise UnpicklingError(f"{type(self).__name__} has no state, expected one")
        return self._value


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise UnpicklingError(f"{what} is not what fairseq saves")


class DType(StandIn):
    """`numpy.dtype` of one of `DTYPES`, in this machine's byte order."""

    name: str

    def __new__(cls, *args: Any) -> Any:
        """Accept (name, False, True), as numpy writes it."""
        _require(len(args) == 3 and type(args[0]) is str and args[0] in DTYPES, "a numpy.dtype")
        _require(args[1] in (False, 0) and args[2] in (True, 1), "a numpy.dtype")
        made = super().__new__(cls)
        made.name = args[0]
        return made

    def read(self, state: Any) -> Any:
        """Accept the state of a dtype without fields, subarray, alignment or flags."""
        expected = (3, NATIVE, None, None, None, -1, -1, 0)
        _require(type(state) is tuple and state == expected, "a numpy.dtype's state")
        return numpy.dtype(self.name)


class Array(StandIn):
    """`numpy.ndarray`."""

    def read(self, state: Any) -> Any:
        """Accept (1, shape, dtype, column-major, content) with the exact number of bytes."""
        _require(type(state) is tuple and len(state) == 5, "a numpy.ndarray's state")
        version, shape, dtype, column_major, content = state
        _require(type(version) is int and version == 1, "a numpy.ndarray's state")
        _require(type(shape) is tuple and len(shape) <= MOST_DIMENSIONS, "a numpy.ndarray's shape")
        _require(all(type(n) is int and 0 <= n < 2**40 for n in shape), "a numpy.ndarray's shape")
        _require(type(column_major) is bool, "a numpy.ndarray's order")
        values = _values(dtype, content, math.prod(shape))
        return values.reshape(shape, order="F" if column_major else "C").copy(order="K")


def _values(dtype: Any, content: Any, count: int) -> Any:
    """Return *count* numbers as a read-only array of one dimension.

    Raises:
        UnpicklingError: the dtype or the number of bytes is another
    """
    _require(type(dtype) is DType and type(content) is bytes, "a numpy value")
    kind = dtype.value()
    _require(len(content) == count * kind.itemsize, "the number of bytes of a numpy value")
    return numpy.frombuffer(content, kind, count) if count else numpy.zeros(0, kind)


class Reconstruct(StandIn):
    """numpy's ``_reconstruct``, which makes an array without content."""

    def __new__(cls, *args: Any) -> Any:
        """Accept (numpy.ndarray, (0,), b"b"), as numpy writes it."""
        known = len(args) == 3 and args[0] is Array and type(args[1]) is tuple
        _require(known and args[1] == (0,) and args[2] in (b"b", "b"), "a numpy.ndarray")
        return Array()


class Scalar(StandIn):
    """numpy's ``scalar``, which makes a number of a type such as `numpy.float64`."""

    def __new__(cls, *args: Any) -> Any:
        """Accept (dtype, content)."""
        _require(len(args) == 2, "a numpy scalar")
        return _values(args[0], args[1], 1)[0]


class Options(StandIn):
    """`argparse.Namespace`."""

    def read(self, state: Any) -> Any:
        """Accept the names and values of options."""
        _require(type(state) is dict and all(type(k) is str for k in state), "a Namespace's state")
        return Namespace(**state)


class OmegaContainer(StandIn):
    """A container of omegaconf, which becomes a plain dictionary or list."""

    def read(self, state: Any) -> Any:
        """Accept a state with a content; the metadata is not needed."""
        _require(type(state) is dict and "_content" in state, "an omegaconf container's state")
        return state["_content"]


class OmegaNode(StandIn):
    """A value of omegaconf, which becomes a plain value."""

    def read(self, state: Any) -> Any:
        """Accept a state with a value."""
        _require(type(state) is dict and "_val" in state, "an omegaconf value's state")
        return state["_val"]


class OmegaMetadata(StandIn):
    """Metadata of omegaconf, which is not needed."""

    def read(self, state: Any) -> Any:
        """Ignore the state."""
        return None


class DefaultDict(StandIn):
    """`collections.defaultdict` in omegaconf's metadata; its factory is never called."""

    def __new__(cls, *args: Any) -> Any:
        """Make an empty dictionary in place of it."""
        return {}


class Named(StandIn):
    """A type that omegaconf's metadata names, and that is never called."""

    def __new__(cls, *args: Any) -> Any:
        """Refuse every call."""
        raise UnpicklingError("a type is called, expected only its name")


def _named(base: type[StandIn], path: str) -> type[StandIn]:
    """Return a subclass of *base*, or *base* itself, under the name that a file uses."""
    module, _, name = path.rpartition(".")
    return type(name, (base,), {"__module__": module, "__qualname__": name})


def stand_ins() -> list[type[StandIn]]:
    """Return the stand-ins for torch's allow-list, which finds each by its module and name."""
    for stand_in, name in ((Array, "ndarray"), (DType, "dtype")):  # compared by identity above
        stand_in.__module__, stand_in.__name__, stand_in.__qualname__ = "numpy", name, name
    return [Array, DType, *_SUBCLASSES]


_SUBCLASSES = [
    *(  # numpy 1 and 2 write different modules
        _named(base, f"numpy.{core}.multiarray.{name}")
        for core in ("core", "_core")
        for base, name in ((Reconstruct, "_reconstruct"), (Scalar, "scalar"))
    ),
    _named(Options, "argparse.Namespace"),
    *(_named(OmegaContainer, f"omegaconf.{name}") for name in OMEGACONF_CONTAINERS),
    *(_named(OmegaNode, f"omegaconf.nodes.{name}") for name in OMEGACONF_NODES.split()),
    *(_named(OmegaMetadata, f"omegaconf.base.{name}") for name in OMEGACONF_METADATA),
    _named(DefaultDict, "collections.defaultdict"),
    *(_named(Named, f"builtins.{name}") for name in BUILTINS.split()),
    _named(Named, "typing.Any"),
]


def plain(value: Any, seen: dict[int, Any] | None = None) -> Any:
    """Replace the stand-ins within a loaded value; dictionaries and lists change in place.

    Raises:
        UnpicklingError: a stand-in has no state
    """
    seen = {} if seen is None else seen
    if id(value) in seen:
        return seen[id(value)]
    if isinstance(value, StandIn):
        content = value.value()
        seen[id(value)] = content  # a container that holds itself ends here
        seen[id(value)] = content = plain(content, seen)
        return content
    if isinstance(value, type) and issubclass(value, StandIn):
        raise UnpicklingError(f"a value is the type {value.__name__}, expected no type")
    if isinstance(value, tuple) and type(value) is tuple:
        seen[id(value)] = content = tuple(plain(v, seen) for v in value)
        return content  # kept above: tuples within tuples would double with each level
    seen[id(value)] = value
    if isinstance(value, dict):
        for key, item in value.items():  # replaces values, adds no key
            value[key] = plain(item, seen)
    elif isinstance(value, list):
        value[:] = [plain(item, seen) for item in value]
    elif isinstance(value, Namespace):
        plain(vars(value), seen)
    return value
