"""What the configurations of both formats have in common."""

from typing import Any

from torch import Tensor

from fairseq_recur.errors import CheckpointError, ConfigError

# Hugging Face's names of activation functions, and fairseq's. One of each for a function.
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_accurate",
    "tanh": "tanh",
}


def value_of(config: dict[str, Any], name: str) -> int:
    """A size from a configuration.

    Raises:
        ConfigError: if it is missing or not a positive number
    """
    value = config.get(name)
    if not isinstance(value, int) or value < 1:
        raise ConfigError(f"config.json: {name} is {value}; expected a number, at least 1")
    return value


def flags(options: dict[str, Any]) -> list[str]:
    """Options as words of a command line; those that are false are left out."""
    words: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif value is not False:
            words += [flag, str(value)]
    return words


def refuse(config: dict[str, Any], expected: dict[str, Any], name: str) -> None:
    """Raise ConfigError, with all of them, for settings that are there and not as expected."""
    wrong = [
        f"{key} is {config[key]!r}, expected {value!r}"
        for key, value in expected.items()
        if config.get(key) is not None and config[key] != value
    ]
    if wrong:
        raise ConfigError(f"this {name} cannot be converted:\n- " + "\n- ".join(wrong))


def their_activation(options: dict[str, Any]) -> str:
    """Hugging Face's name of fairseq's activation function.

    Raises:
        ConfigError: if it has none
    """
    found = [theirs for theirs, ours in ACTIVATIONS.items() if ours == options["activation_fn"]]
    if not found:
        raise ConfigError(
            f"--activation-fn {options['activation_fn']} is not known to Hugging Face; expected one "
            f"of {', '.join(ACTIVATIONS.values())}"
        )
    return found[0]


def table_of(weights: dict[str, Tensor], config: dict[str, Any]) -> Tensor:
    """The embedding matrix, taken out of the weights.

    Raises:
        CheckpointError: if it has another number of rows than the configuration says
        KeyError: if there is none
    """
    table = weights.pop("shared.weight")
    if len(table) != config["vocab_size"]:
        raise CheckpointError(
            f"shared.weight has {len(table)} rows, and config.json says vocab_size "
            f"{config['vocab_size']}; expected the same number"
        )
    return table
