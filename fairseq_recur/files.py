"""Files that are written as a whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which gets its name when all is written and on the disk.

    A reader sees what was there before, or the whole new file. After an error nothing is left
    of the new one; after a kill PATH.tmp, over which the next call writes.

    Args:
        path: the name; its folder is made

    Yields:
        open for writing bytes

    Raises:
        OSError: it cannot be written
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
