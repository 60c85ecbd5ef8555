"""Other libraries' loggers."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_users: dict[str, int] = {}
_levels: dict[str, int] = {}


@contextmanager
def quiet(*names: str) -> Iterator[None]:
    """Keep libraries' messages below a warning out of the log.

    Several threads may be in here at once: the last one to leave restores the levels.
    """
    for name in names:
        _enter(logging.getLogger(name))
    try:
        yield
    finally:
        for name in names:
            _leave(logging.getLogger(name))


def _enter(logger: logging.Logger) -> None:
    """Silence a logger, unless another thread has done so."""
    with _lock:
        _users[logger.name] = _users.get(logger.name, 0) + 1
        if _users[logger.name] == 1:
            _levels[logger.name] = logger.level
            logger.setLevel(logging.WARNING)


def _leave(logger: logging.Logger) -> None:
    """Restore the level of a logger, unless another thread silences it."""
    with _lock:
        _users[logger.name] -= 1
        if not _users[logger.name]:
            logger.setLevel(_levels.pop(logger.name))
