"""Reporting all problems of an input in one error."""

from collections.abc import Iterator
from contextlib import contextmanager

from fairseq_recur.errors import ConfigError


class Problems:
    """Collects problems and raises one ConfigError for all of them.

    Args:
        what: what cannot be done, the heading of the message if there are several problems.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.found: list[str] = []

    def add(self, problem: str) -> None:
        """Note one problem."""
        self.found.append(problem)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Note a ConfigError from the block, and continue after the block."""
        try:
            yield
        except ConfigError as error:
            self.add(str(error))

    def raise_all(self) -> None:
        """Raise ConfigError if there are any problems."""
        if len(self.found) == 1:
            raise ConfigError(self.found[0])
        if self.found:
            raise ConfigError(f"{self.what}:\n- " + "\n- ".join(self.found))
