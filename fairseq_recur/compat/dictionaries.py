"""Dictionaries: a byte order mark is no part of a word, and an error names the damaged line."""

import io
from pathlib import Path
from typing import Any

from fairseq_recur.compat.registry import Function, mend
from fairseq_recur.errors import ConfigError

dictionary_files = mend(
    "dictionary files",
    reason="a byte order mark at the beginning of a dictionary becomes a part of its first, most "
    "frequent word, which is then unknown everywhere; and errors in a dictionary name neither the "
    "line nor, mostly, the file",
    until="a fairseq whose Dictionary.add_from_file opens files as utf-8-sig and names the line",
)


@dictionary_files.patch("fairseq.data.dictionary:Dictionary.add_from_file")
def add_from_file(add: Function, self: Any, f: Any) -> None:
    """Add the words of a dictionary; an open file is read as fairseq does.

    Raises:
        ConfigError: the file is not UTF-8, or a line is not a new word and its count
        OSError: the file cannot be read
    """
    if not isinstance(f, str):
        add(self, f)
        return
    from fairseq.file_io import PathManager

    lines, before = io.StringIO(), len(self)
    try:
        text = Path(PathManager.get_local_path(f)).read_bytes().decode("utf-8-sig")
        lines = io.StringIO(text, newline=None)
        add(self, lines)
        return
    except UnicodeDecodeError as error:
        number = error.object.count(b"\n", 0, error.start) + 1
        problem = f"byte {error.object[error.start]:#04x} is not UTF-8"
    except (ValueError, RuntimeError) as error:
        number = len(self) - before + 1  # every line before it has added a word
        line = lines.getvalue().split("\n")[number - 1]
        twice = isinstance(error, RuntimeError)
        wrong = "repeats a word" if twice else "is not a word, a space and a count"
        problem = f"{line[:60]!r} {wrong}"
    raise ConfigError(f"{f}, line {number}: {problem}; give the dict.*.txt of the training")
