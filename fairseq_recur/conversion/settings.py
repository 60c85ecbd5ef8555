"""Settings from a file that somebody else wrote, checked for type and range.

The values stay data: they are assigned to fairseq's configuration and never pass through a
parser of command lines, where a value such as ``--user-dir=evil`` would be an option.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fairseq_recur.errors import CheckpointError, ConfigError, refuse

Value = int | float | str

# Hugging Face's names of activation functions and fairseq's, one of each per function.
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_accurate", "tanh": "tanh"}
WIDEST = 2**20
MOST_WORDS = 2**24


@dataclass(frozen=True)
class Settings:
    """A configuration that is not trusted; every value is checked when it is read.

    A value of null counts as absent. All methods raise ConfigError for a value of another type
    or outside the range, and for one that is absent without a default.

    Attributes:
        values: by name, as the file has them.
        source: the file's name for error messages.
    """

    values: Mapping[str, Any]
    source: str = "config.json"

    def integer(
        self, name: str, default: int | None = None, low: int = 1, high: int = WIDEST
    ) -> int:
        """Return a whole number from ``low`` to ``high``."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ConfigError(self._problem(name, value, f"a whole number from {low} to {high}"))
        return value

    def probability(self, name: str, default: float) -> float:
        """Return a number from 0 to 1."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ConfigError(self._problem(name, value, "a number from 0 to 1"))
        return value

    def boolean(self, name: str, default: bool) -> bool:
        """Return true or false."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise ConfigError(self._problem(name, value, "true or false"))
        return value

    def choice(self, name: str, choices: Collection[str], default: str | None = None) -> str:
        """Return one of ``choices``."""
        value = self._value(name, default)
        if not isinstance(value, str) or value not in choices:
            raise ConfigError(self._problem(name, value, f"one of {', '.join(choices)}"))
        return value

    def refuse_other_than(self, expected: Mapping[str, Any], model: str) -> None:
        """Raise ConfigError, naming all of them, for settings that are not as expected."""
        wrong = [
            f"{name} is {self.values[name]!r:.60}, expected {value!r}"
            for name, value in expected.items()
            if self.values.get(name) is not None and self.values[name] != value
        ]
        refuse(f"this {model} cannot be converted", wrong)

    def _value(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        return default if value is None else value

    def _problem(self, name: str, found: Any, expected: str) -> str:
        return f"{self.source}: {name} is {found!r:.60}, expected {expected}"


def huggingface_activation(options: Mapping[str, Any]) -> str:
    """Return Hugging Face's name of fairseq's activation function.

    Raises:
        ConfigError: Hugging Face has no such function.
    """
    ours = Settings(options, "the checkpoint").choice("activation_fn", ACTIVATIONS.values())
    return next(theirs for theirs, name in ACTIVATIONS.items() if name == ours)


def check_sizes(config: Settings, weights: Mapping[str, Tensor], layers: int) -> None:
    """Refuse a configuration that claims more than its weights hold; *layers* of both stacks.

    This comes before anything is built: the time and memory of a conversion depend on the size
    of the files, not on the numbers in config.json.

    Raises:
        CheckpointError: another vocabulary, or more layers than tensors.
        KeyError: there is no embedding matrix.
    """
    rows, claimed = len(weights["shared.weight"]), config.integer("vocab_size", high=MOST_WORDS)
    if rows != claimed:
        raise CheckpointError(
            f"shared.weight has {rows} rows, but vocab_size in config.json is {claimed}; "
            "expected the same number"
        )
    if layers > len(weights):
        raise CheckpointError(
            f"config.json asks for {layers} layers, but there are only {len(weights)} tensors; "
            "give config.json and weights of one model"
        )
