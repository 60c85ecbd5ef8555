"""Other libraries' loggers."""

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_users: Counter[str] = Counter()
_levels: dict[str, int] = {}


@contextmanager
def quiet(*names: str) -> Iterator[None]:
    """Keep libraries' messages below a warning out of the log.

    Several threads may be in here at once: the last one to leave restores the levels.
    """
    with _lock:
        for name in names:
            _users[name] += 1
            if _users[name] == 1:
                _levels[name] = logging.getLogger(name).level
                logging.getLogger(name).setLevel(logging.WARNING)
    try:
        yield
    finally:
        with _lock:
            for name in names:
                _users[name] -= 1
                if not _users[name]:
                    logging.getLogger(name).setLevel(_levels.pop(name))
