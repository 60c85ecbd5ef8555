"""Locked files, which say that a process works in a folder."""

import errno
import fcntl
import os
import socket
import time
from pathlib import Path
from typing import IO

MOMENT = 0.05
"""Seconds, longer than `is_locked` takes."""


def hold(path: Path, *, inherited: bool = True) -> IO[str] | None:
    """Lock a file.

    Args:
        path: the file; its folder is made
        inherited: whether child processes keep the lock when this process dies, so that a
            training that outlives its parent still holds its folder

    Returns:
        the open file, which holds the lock until it is closed; None if another process has it

    Raises:
        OSError: the file cannot be opened, or its file system has no locks
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = open(path, "a+", encoding="utf-8")
    try:
        taken = _take(lock, inherited)
        if not taken:  # it may be `is_locked`, which has it for a moment
            time.sleep(MOMENT)
            taken = _take(lock, inherited)
    except OSError:
        lock.close()
        raise
    if taken:
        return lock
    lock.close()
    return None


def _take(lock: IO[str], inherited: bool) -> bool:
    """Lock an open file; return False if another process has it."""
    try:
        (fcntl.flock if inherited else fcntl.lockf)(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return False
    return True


def is_locked(path: Path) -> bool:
    """Return whether a process holds a file that `hold` locks with *inherited*.

    The file may be one that this process cannot write. If there is none, nobody holds it.

    Raises:
        OSError: the file cannot be read, or its file system has no locks
    """
    try:
        lock = open(path, encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return False
    with lock:
        try:  # not LOCK_EX, for which some file systems need a file that is open for writing
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            return True
    return False


def name_holder(lock: IO[str], process: int | None = None) -> None:
    """Write into a locked file which process holds it: this one, or the one that it is given to."""
    lock.truncate(0)
    holder = os.getpid() if process is None else process
    print(f"{holder} on {socket.gethostname()}", file=lock, flush=True)
