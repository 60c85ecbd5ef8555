"""Reading archives and large JSON files as streams."""

import gzip
import json
import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, TextIO

from fairseq_recur.errors import ConfigError

DAMAGED = (EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, OSError)
"""Errors of reading a truncated or wrong archive (gzip.BadGzipFile is an OSError)."""

NAMED = 20  # members that an error lists


@contextmanager
def named(archive: Path) -> Iterator[None]:
    """Convert the errors of reading a damaged archive into one that names the archive.

    Raises:
        ConfigError: the archive is truncated, or not an archive
    """
    try:
        yield
    except DAMAGED as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # a full disk or a missing permission, not a damaged archive
        raise ConfigError(
            f"{archive} is truncated or damaged, or not such an archive"
            f" ({error or type(error).__name__}); remove it and get it again"
        ) from error


def extract(archive: Path, wanted: Mapping[str, Path]) -> None:
    """Extract single files from an archive.

    Args:
        archive: a .zip, or a tar, possibly compressed by gzip, bzip2 or xz
        wanted: name of a member -> output file

    Raises:
        ConfigError: the archive is truncated, not an archive, or lacks a member
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
    """Yield the names and contents of an archive's files; read each before the next."""
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
    """Return a member's name without the ./ that some archivers write."""
    return name[2:] if name.startswith("./") else name


BLOCK = 1 << 20


def text_of(content: bytes, where: str) -> str:
    """Decode UTF-8, without a byte order mark at the beginning.

    Raises:
        ConfigError: the content is not UTF-8; the message says where
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: not UTF-8 ({error}); get the file again") from error


def json_of(text: str, where: str) -> Any:
    """Parse JSON.

    Raises:
        ConfigError: the text is not JSON; the message says where
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: not JSON ({error}); get the file again") from error


def read_json(file: Path) -> Any:
    """Read a JSON file.

    Raises:
        ConfigError: the content is not JSON
    """
    return json_of(text_of(file.read_bytes(), str(file)), str(file))


def tar_members(file: Path, ending: str) -> Iterator[tuple[str, str]]:
    """Yield the texts in a .tar.gz without unpacking it on the disk.

    Args:
        file: the archive
        ending: suffix of the names of the wanted members

    Yields:
        a member's name without folder and suffix, and its text

    Raises:
        ConfigError: the archive is damaged, or a member is not UTF-8
    """
    with named(file), gzip.open(file, "rb") as raw:
        with tarfile.open(fileobj=raw, mode="r|") as tar:
            for member in tar:
                name = PurePosixPath(member.name).name
                # macOS adds a file ._NAME to each file.
                if not member.isfile() or not name.endswith(ending) or name.startswith("._"):
                    continue
                content = tar.extractfile(member).read()  # type: ignore[union-attr]
                yield name[: -len(ending)], text_of(content, f"{file}, {member.name}")
        while raw.read(BLOCK):  # the checksum comes last
            pass


def zip_lines(file: Path, name: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of a file in a .zip; only a newline ends a line.

    Args:
        file: the archive
        name: name of the file, in any folder of the archive

    Yields:
        the place of a line, for messages, and the line

    Raises:
        ConfigError: the archive is damaged, does not have exactly one such file, or a line is
            not UTF-8
    """
    with named(file), zipfile.ZipFile(file) as archive:
        found = [
            m for m in archive.namelist()
            if PurePosixPath(m).name == name and not m.startswith("__MACOSX")
        ]  # fmt: skip
        if len(found) != 1:
            raise ConfigError(f"{file}: expected one {name} in it, found {len(found)}")
        with archive.open(found[0]) as lines:
            for number, line in enumerate(lines, 1):
                where = f"{file}, {found[0]}, line {number:,}"
                if line.strip():
                    yield where, text_of(line, where)


def zip_members(file: Path, folder: str) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of a folder's files in a .zip, in the order of their names.

    Args:
        file: the archive
        folder: the last parts of the folder's path in the archive

    Raises:
        ConfigError: the archive is damaged, has no such files, or one is not UTF-8
    """
    with named(file), zipfile.ZipFile(file) as archive:
        found = [m for m in archive.namelist() if PurePosixPath(m).match(f"{folder}/*.txt")]
        if not found:
            raise ConfigError(f"{file}: expected files {folder}/*.txt in it; get it again")
        for member in sorted(found):
            yield PurePosixPath(member).stem, text_of(archive.read(member), f"{file}, {member}")


def json_lines(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a file with one JSON object per line.

    Yields:
        the place of an object, for messages, and the object

    Raises:
        ConfigError: a line is not UTF-8 or not an object
    """
    with open(file, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"{file}, line {number:,}"
            try:
                item = json.loads(text_of(line, where))
            except json.JSONDecodeError as error:
                raise ConfigError(
                    f"{where}: not JSON ({error}); the file is truncated or damaged; get it again"
                ) from error
            if not isinstance(item, dict):
                raise ConfigError(f"{where}: expected an object; get the file again")
            yield where, item


JSON_BLOCK = 1 << 17
"""Characters that are read at once; the rest of them is copied for each object."""

LARGEST = 1 << 27
"""Maximum number of characters of an object."""


def objects(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a file that holds a JSON array, which may be too large for memory.

    Yields:
        the place of an object, for messages, and the object

    Raises:
        ConfigError: the file is not such an array, is truncated or not UTF-8; names the line
    """
    with open(file, encoding="utf-8-sig", newline="\n") as stream:
        try:
            yield from _objects(stream, file)
        except UnicodeDecodeError as error:
            raise ConfigError(f"{file}: not UTF-8 ({error}); get the file again") from error


def _objects(stream: TextIO, file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    decoder, text, line, count, mark = json.JSONDecoder(), "", 1, 0, "["
    while True:
        # Before an object: the beginning of the array, or a comma. After the last one: its end.
        text, line = _fill(stream, text, line)
        where = f"{file}, line {line:,}"
        if count and text[:1] == "]" and not (text[1:] + stream.read(JSON_BLOCK)).strip():
            return
        if text[:1] != mark:
            found = repr(text[0]) if text else "the end of the file: it is truncated"
            raise ConfigError(f"{where}: expected {mark!r} after {count:,} objects, found {found}")
        text, line = _fill(stream, text[1:], line)
        where = f"{file}, line {line:,}"
        value, end, text = _parse(decoder, stream, text, where)
        yield where, value
        line += text.count("\n", 0, end)
        text, mark, count = text[end:], ",", count + 1


def _fill(stream: TextIO, text: str, line: int) -> tuple[str, int]:
    """Skip white space; return the remaining text and its line."""
    rest = text.lstrip()
    while not rest and (block := stream.read(JSON_BLOCK)):
        text += block
        rest = text.lstrip()
    return rest, line + text.count("\n", 0, len(text) - len(rest))


def _parse(
    decoder: json.JSONDecoder, stream: TextIO, text: str, where: str
) -> tuple[dict[str, Any], int, str]:
    """Parse the object at the beginning of the text, reading on until it is complete."""
    while True:
        try:
            value, end = decoder.raw_decode(text)
        except json.JSONDecodeError as error:
            block = stream.read(max(JSON_BLOCK, len(text))) if len(text) < LARGEST else ""
            if not block:
                raise ConfigError(
                    f"{where}: no complete object begins here ({error.msg}, {error.lineno - 1}"
                    " lines further); the file is truncated or not JSON; get it again"
                ) from error
            text += block
        else:
            if not isinstance(value, dict):
                raise ConfigError(f"{where}: expected an object, found {str(value)[:40]!r}")
            return value, end, text
