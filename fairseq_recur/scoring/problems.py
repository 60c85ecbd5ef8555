"""All that is wrong with an input, told at once."""

from collections.abc import Iterator
from contextlib import contextmanager

from fairseq_recur.errors import ConfigError


class Problems:
    """Gather what is wrong, then raise one ConfigError with all of it.

    Args:
        what: what cannot be done, the head of the message if there are several problems.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.found: list[str] = []

    def add(self, problem: str) -> None:
        """Note one problem."""
        self.found.append(problem)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Note a ConfigError that the block raises, and go on behind the block."""
        try:
            yield
        except ConfigError as error:
            self.add(str(error))

    def raise_all(self) -> None:
        """Raise ConfigError if anything was found."""
        if len(self.found) == 1:
            raise ConfigError(self.found[0])
        if self.found:
            raise ConfigError(f"{self.what}:\n- " + "\n- ".join(self.found))
