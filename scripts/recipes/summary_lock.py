"""One preparation at a time in a folder."""

import fcntl
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from fairseq_recur.errors import ConfigError


@contextmanager
def alone(work: Path, patience: float = 30.0) -> Iterator[None]:
    """Hold a folder's lock: two preparations would make the same steps, and remove each other's.

    Args:
        work: the folder, made if it is not there
        patience: seconds to wait for the lock

    Raises:
        ConfigError: it is not to be had
    """
    work.mkdir(parents=True, exist_ok=True)
    with open(work / ".lock", "w") as lock:
        end = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > end:
                    raise ConfigError(
                        f"another preparation works in {work}; wait for it, end it, or choose"
                        " another folder"
                    ) from error
                time.sleep(0.2)
        yield
