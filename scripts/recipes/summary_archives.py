"""Reading archives from front to back; one that is truncated or damaged is named."""

import gzip
import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from fairseq_recur.errors import ConfigError
from recipes.archives import named

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
