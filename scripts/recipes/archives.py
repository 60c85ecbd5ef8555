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


BLOCK = 1 << 20


def text_of(content: bytes, where: str) -> str:
    """Decode UTF-8.

    Raises:
        ConfigError: it is something else; the message says where
    """
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: not UTF-8 ({error}); get the file again") from error


def json_of(text: str, where: str) -> Any:
    """Parse JSON.

    Raises:
        ConfigError: it is none; the message says where
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: not JSON ({error}); get the file again") from error


def read_json(file: Path) -> Any:
    """Read a JSON file.

    Raises:
        ConfigError: it is none
    """
    return json_of(text_of(file.read_bytes(), str(file)), str(file))


def tar_members(file: Path, ending: str) -> Iterator[tuple[str, str]]:
    """The texts in a .tar.gz, one after the other; nothing is unpacked on the disk.

    Args:
        file: the archive
        ending: of the members' names that are wanted

    Yields:
        a member's name without folder and ending, and its text

    Raises:
        ConfigError: the archive is damaged, or a member is not UTF-8
    """
    with named(file), gzip.open(file, "rb") as raw:
        with tarfile.open(fileobj=raw, mode="r|") as tar:
            for member in tar:
                name = PurePosixPath(member.name).name
                # macOS writes a second file ._NAME beside each.
                if not member.isfile() or not name.endswith(ending) or name.startswith("._"):
                    continue
                content = tar.extractfile(member).read()  # type: ignore[union-attr]
                yield name[: -len(ending)], text_of(content, f"{file}, {member.name}")
        while raw.read(BLOCK):  # the checksum comes last
            pass


def zip_lines(file: Path, name: str) -> Iterator[tuple[str, str]]:
    """The lines of a file in a .zip; only a newline ends a line.

    Args:
        file: the archive
        name: of the file, in whatever folder of the archive

    Yields:
        where a line is, for messages, and the line

    Raises:
        ConfigError: the archive is damaged or has not one such file, or a line is not UTF-8
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


JSON_BLOCK = 1 << 17
"""Characters that are read at once. What is left of them is copied for each object."""

LARGEST = 1 << 27
"""Characters without the end of an object after which there is taken to be none."""


def objects(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file that is one array, of whatever line breaks.

    Yields:
        where an object is, for messages, and the object

    Raises:
        ConfigError: the file is not such an array, ends early or is not UTF-8; with the line
    """
    with open(file, encoding="utf-8", newline="\n") as stream:
        try:
            yield from _objects(stream, file)
        except UnicodeDecodeError as error:
            raise ConfigError(f"{file}: not UTF-8 ({error}); get the file again") from error


def _objects(stream: TextIO, file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    decoder, text, line, count, mark = json.JSONDecoder(), "", 1, 0, "["
    while True:
        # What stands before an object: the array's beginning, or a comma; or its end.
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
    """Go on to what is no white space; the text from there, and its line."""
    rest = text.lstrip()
    while not rest and (block := stream.read(JSON_BLOCK)):
        text += block
        rest = text.lstrip()
    return rest, line + text.count("\n", 0, len(text) - len(rest))


def _parse(
    decoder: json.JSONDecoder, stream: TextIO, text: str, where: str
) -> tuple[dict[str, Any], int, str]:
    """Parse the object at the text's beginning, reading on for as long as it is not whole."""
    while True:
        try:
            value, end = decoder.raw_decode(text)
        except json.JSONDecodeError as error:
            block = stream.read(max(JSON_BLOCK, len(text))) if len(text) < LARGEST else ""
            if not block:
                raise ConfigError(
                    f"{where}: no whole object begins here ({error.msg}, {error.lineno - 1} lines"
                    " further); the file is truncated or not JSON; get it again"
                ) from error
            text += block
        else:
            if not isinstance(value, dict):
                raise ConfigError(f"{where}: expected an object, found {str(value)[:40]!r}")
            return value, end, text
