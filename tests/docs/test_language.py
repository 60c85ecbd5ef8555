"""Sentences and lines of the pages are short."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.commands import ROOT, markdown_files

LONGEST = 25
"""Words of a sentence."""

WIDEST = 120
"""Characters of a line of prose."""

LEFT_OUT = r"^ *```.*?^ *```|<!--.*?-->|^ {4}.*?$|^ *[|#].*?$"
"""Code, marks, tables and titles."""

# Lists of changes, licences in others' words, and pages that a program writes.
OTHERS = ("CHANGELOG.md", "LICENSES.md", "flags.md", "commands.md", "results")
PAGES = [path for path in markdown_files() if not {*OTHERS} & {*path.relative_to(ROOT).parts}]


def sentences(text: str) -> Iterator[str]:
    """The sentences and clauses of a page, without its tables and code.

    A colon or a semicolon ends a clause, as in a list. Links are their text, code is one word.
    """
    text = re.sub(LEFT_OUT, "\n\n", text, flags=re.M | re.S)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        line = re.sub(r"`[^`]+`|\$[^$]+\$", "CODE", " ".join(block.split()))
        line = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", line)
        line = re.sub(r"et al\. (?![A-Z])", "et al ", line)
        yield from re.split(r"(?<=[.!?:;·])[\"”)*_]* ", line)


def words(sentence: str) -> int:
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sentences_are_short(path: Path) -> None:
    found = [s for s in sentences(path.read_text("utf-8")) if words(s) > LONGEST]
    assert not found


def wide(text: str) -> list[str]:
    """The lines of prose that are too long, without those that only have a picture."""
    prose = re.sub(LEFT_OUT, "", text, flags=re.M | re.S)
    return [line for line in prose.split("\n") if len(line) > WIDEST and line[:2] != "!["]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_are_narrow(path: Path) -> None:
    assert not wide(path.read_text("utf-8"))


def test_what_counts_as_a_line() -> None:
    for line in ("x" * 121, f"- {'x ' * 60}y", "±" * 121):
        assert wide(f"short\n{line}\nshort") == [line]
    long = "x" * 121
    for line in ("x" * 120, "±" * 120, f"| {long} |", f"    {long}", f"![{long}](a)"):
        assert not wide(f"short\n{line}\nshort")


def test_what_counts_as_a_sentence() -> None:
    long = "word " * 26
    for text in (f"{long}.", f"- {long}", f"[{long}](page.md) is long.", f"A title\n\n{long}"):
        assert max(map(words, sentences(text))) > LONGEST, text
    half = "word " * 20
    for text in (f"{half.strip()}. {half}", f"{half.strip()}; {half}", f"| {long} |", f"    {long}",
                 f"```bash\n{long}\n```", f"- {half}\n- {half}", f"`{long}`"):  # fmt: skip
        assert max(map(words, sentences(text))) <= LONGEST, text
