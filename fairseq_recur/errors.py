"""The errors that a user's input can cause, and how several of them become one.

A message says what was found, then what was expected or what to do: "--recurrence-steps 0:
expected at least 1", "no data folder bin; give the --destdir of ...". It begins in lower case, ends
without a full stop, and uses only names from the documentation. A test reads all messages from the
source and checks these rules.
"""

import errno
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

INTERRUPTED = 128 + signal.SIGINT
"""Exit status after Ctrl-C, as in a shell."""


class ConfigError(ValueError):
    """Options that are invalid or incompatible; the message lists all of them."""


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be used: damaged, foreign, or refused as unsafe."""


class ProcessError(RuntimeError):
    """Another process of the same training has ended, so this one cannot continue."""


class InstallationError(ImportError):
    """Installed libraries that do not work together; the message says what to install."""


INPUT_ERRORS = (
    ConfigError,
    CheckpointError,
    InstallationError,
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
"""Errors that input, or installed libraries, can cause. Another exception keeps its traceback."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors that mean that a disk is full."""

REMEDIES = {
    **dict.fromkeys(FULL, "free some space and run the same command again"),
    errno.EROFS: "write to another folder",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.ENOENT: "give a path that exists",
    errno.EEXIST: "give another name, or remove it",
    errno.ENOTDIR: "expected a folder; give another path",
    errno.EISDIR: "expected a file; give another path",
    **dict.fromkeys((errno.EACCES, errno.EPERM), "change its permissions, or give another path"),
}
"""What to do about each of these errors. Another one that is no input error is a defect."""

SHOWN = 5
"""Items that a message names before it counts the rest."""


def first_items(items: Sequence[object], most: int = SHOWN, count: int | None = None) -> str:
    """Return the first items for a message, and the number of the rest: "a, b and 3 more".

    Args:
        items: all, or at least those that are named
        most: how many are named
        count: how many there are, if not all are given
    """
    first = ", ".join(str(item) for item in items[:most])
    return " ".join([first, *_rest(len(items) if count is None else count, most)])


def first_lines(lines: Sequence[str], most: int = SHOWN) -> list[str]:
    """Return the first lines of a message, and if there are more, one with their number."""
    return [*lines[:most], *_rest(len(lines), most)]


def _rest(count: int, most: int) -> list[str]:
    """Return "and N more", if so many of *count* items are not shown."""
    return [f"and {count - most} more"] if count > most else []


def refuse(what: str, problems: Iterable[str]) -> None:
    """Raise one ConfigError for all problems; do nothing if there are none.

    Args:
        what: what cannot be done, the heading of the message
        problems: a message each; of equal ones, one is shown
    """
    found = list(dict.fromkeys(problems))
    if found:
        raise ConfigError(f"{what}:\n- " + "\n- ".join(found))


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
        refuse(self.what, self.found)
