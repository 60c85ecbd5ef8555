"""Dictionaries: a byte order mark is dropped, and errors name the file and the line."""

import io
from pathlib import Path

import pytest
from fairseq.data import Dictionary

import fairseq_recur  # noqa: F401  (applies the mends)
from fairseq_recur.errors import ConfigError

WORDS = "the 9\nof 5\ncafé 2\n".encode()


@pytest.mark.parametrize("content", [WORDS, b"\xef\xbb\xbf" + WORDS, WORDS.replace(b"\n", b"\r\n")])
def test_a_byte_order_mark_is_no_part_of_a_word(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "dict.en.txt"
    file.write_bytes(content)
    words = Dictionary.load(str(file))
    assert words.symbols[words.nspecial :] == ["the", "of", "café"]
    assert words.count[words.nspecial :] == [9, 5, 2]


def test_files_are_read_as_by_fairseq_otherwise(tmp_path: Path) -> None:
    file = tmp_path / "dict.en.txt"
    file.write_text("a 3\n<s> 1 #fairseq:overwrite\n")
    words = Dictionary.load(str(file))
    assert words.symbols[words.nspecial :] == ["a", "<s>"]
    assert Dictionary.load(io.StringIO("a 3\n")).index("a") == words.index("a")
    with pytest.raises(FileNotFoundError):
        Dictionary.load(str(tmp_path / "none"))


@pytest.mark.parametrize(
    "added, said",
    [
        (b"x\n", "line 4: 'x' is not a word, a space and a count; give the dict"),
        (b"x 1\n\n", "line 5: '' is not a word, a space and a count"),
        (b"x 1.5\n", "line 4: 'x 1.5' is not a word"),
        (b"of 5\n", "line 4: 'of 5' repeats a word"),
        (b"x 1\ncaf\xe9 1\n", "line 5: byte 0xe9 is not UTF-8; give the dict"),
    ],
)
def test_a_damaged_line_is_named(added: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "dict.en.txt"
    file.write_bytes(b"\xef\xbb\xbf" + WORDS + added)
    with pytest.raises(ConfigError) as error:
        Dictionary.load(str(file))
    assert f"{file}, {said}" in str(error.value)
