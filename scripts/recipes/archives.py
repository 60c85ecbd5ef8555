"""Taking files out of archives, read as streams, so that nothing else is unpacked."""

import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fairseq_recur.errors import ConfigError

DAMAGED = (EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, OSError)
"""What reading a truncated archive, or another file, raises (gzip.BadGzipFile is an OSError)."""

NAMED = 20  # members that an error names


@contextmanager
def named(archive: Path) -> Iterator[None]:
    """Turn what reading a damaged archive raises into an error that names it.

    Raises:
        ConfigError: the archive is truncated, or is none
    """
    try:
        yield
    except DAMAGED as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # no room, no permission: nothing that the archive is guilty of
        raise ConfigError(
            f"{archive} is truncated or damaged, or another kind of file"
            f" ({error or type(error).__name__}); remove it and get it again"
        ) from error


def extract(archive: Path, wanted: Mapping[str, Path]) -> None:
    """Take files out of an archive.

    Args:
        archive: a .zip, or a tar that is compressed by gzip, bzip2 or xz, or not at all
        wanted: for each member's name the file to write

    Raises:
        ConfigError: the archive is truncated, is none, or has no such member
    """
    left = dict(wanted)
    there: list[str] = []
    with named(archive):
        for name, content in _members(archive):
            there.append(name)
            if name not in left:
                continue
            with left.pop(name).open("wb") as file:
                shutil.copyfileobj(content, file, 1 << 20)
            if not left:
                return
    shown = ", ".join(there[:NAMED]) + (" ..." if len(there) > NAMED else "")
    raise ConfigError(
        f"{archive} has no {', '.join(left)}; it has: {shown or 'nothing'}; get it again"
    )


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The names and contents of an archive's files, in its order; each is read at once."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as opened:
            for info in opened.infolist():
                if not info.is_dir():
                    with opened.open(info) as content:
                        yield _plain(info.filename), content
        return
    with archive.open("rb") as raw, tarfile.open(fileobj=raw, mode="r|*") as stream:
        for member in stream:
            content = stream.extractfile(member) if member.isfile() else None
            if content is not None:
                yield _plain(member.name), content


def _plain(name: str) -> str:
    """A member's name without the ./ that some archivers write."""
    return name[2:] if name.startswith("./") else name
