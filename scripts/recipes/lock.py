"""One preparation at a time in a folder."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairseq_recur.errors import ConfigError


@contextmanager
def alone(work: Path) -> Iterator[None]:
    """Hold a folder's lock: two preparations would make the same steps, and remove each other's.

    It is of lockf, which ends with its process and which processes that it started do not inherit.

    Args:
        work: the folder, made if it is not there

    Raises:
        ConfigError: another process has it
    """
    work.mkdir(parents=True, exist_ok=True)
    with (work / ".lock").open("w") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"another preparation works in {work}; wait for its end, or choose another folder"
            ) from error
        yield
