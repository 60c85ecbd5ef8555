"""Looking at text before it is made into binary data: what would shift lines, or stop half-way."""

from collections.abc import Sequence

from fairseq_recur.errors import ConfigError


def check_parallel(names: Sequence[str]) -> None:
    """Look through files whose lines belong together.

    Raises:
        ConfigError: they have different numbers of lines, or none; or as `count_lines`
    """
    counts = [count_lines(name) for name in names]
    if len(set(counts)) > 1:
        found = " and ".join(f"{name} has {count:,}" for name, count in zip(names, counts))
        raise ConfigError(
            f"{found} lines; line N of one belongs to line N of the other, so expected the same "
            "number"
        )
    if not any(counts):
        raise ConfigError(
            f"{' and '.join(names)}: found no lines, and a training cannot read empty data; "
            "expected text, one sentence a line: look at the step that wrote it"
        )


def count_lines(name: str) -> int:
    """Count the lines of a text as fairseq will.

    Raises:
        ConfigError: it is not UTF-8, or has a carriage return within a line, at which fairseq
            ends the line, so that all lines behind it belong to the wrong ones
    """
    number = 0
    with open(name, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ConfigError(
                    f"{name}, line {number}: byte {line[error.start]:#04x} at {error.start + 1} is "
                    "not UTF-8; convert the file (iconv -f ENCODING -t UTF-8), or mend the line"
                ) from None
            if b"\r" in line.removesuffix(b"\n").removesuffix(b"\r"):
                raise ConfigError(
                    f"{name}, line {number}: a carriage return within the line, at which fairseq "
                    "begins a new one, so that the lines behind it no longer belong together; "
                    f"replace it: tr '\\r' ' ' < {name} > NEW"
                )
    return number
