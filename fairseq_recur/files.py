"""Files that are written completely or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file that gets its name only when it is complete and on the disk.

    A reader sees either the old file or the whole new one. After an error nothing of the new file
    remains. After a kill PATH.tmp remains, which the next call overwrites.

    Args:
        path: the final name; its folder is created

    Yields:
        a file open for writing bytes

    Raises:
        OSError: the file cannot be written
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.tmp")
    try:
        with unfinished.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise
