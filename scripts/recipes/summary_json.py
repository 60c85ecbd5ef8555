"""Reading the objects of a JSON array that is too large for memory, one after the other."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from fairseq_recur.errors import ConfigError

BLOCK = 1 << 17
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
        if count and text[:1] == "]" and not (text[1:] + stream.read(BLOCK)).strip():
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
    while not rest and (block := stream.read(BLOCK)):
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
            block = stream.read(max(BLOCK, len(text))) if len(text) < LARGEST else ""
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
