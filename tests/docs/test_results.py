"""Every figure that a page marks as a result is in the record that the mark names.

    <!-- result: examples/quickstart/expected.json -->
    | system | BLEU | ...
    <!-- end -->

Several records are separated by spaces; ``in UNIT`` after them gives the unit of the page. Tables
of numbers without a mark fail, unless a comment before them says why there is no record:
``<!-- no result: published figures -->``. benchmarks/tables.py writes the tables marked ``table:``.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page
    for pattern in ("README.md", "docs/*.md", "examples/**/*.md", "benchmarks/*.md")
    for page in ROOT.glob(pattern)
    if not {"work", "results"} & {*page.relative_to(ROOT).parts}
    and page.name not in ("flags.md", "commands.md")
)
MARKED = re.compile(r"<!-- (?:result: ([^>]*?)|table: [^>]*?) -->\n(.*?)<!-- end -->", re.S)
TABLE = re.compile(r"(<!-- no result: [^>]+ -->\n+)?^\|.*\n\|[ :|-]*---:[ :|-]*\n", re.M)
# Code, targets of links, and words with digits in them, such as R-1 and Multi30k.
NO_FIGURES = re.compile(
    r"```.*?```|`[^`\n]*`|\]\([^)]*\)|\b[A-Za-z_][\w.*:-]*\d[\w.-]*|^\|.*\n(?=\|[ :|-]*---)",
    re.S | re.M,
)
FIGURE = re.compile(r"(?<![\w.,])(\d+(?:,\d{3})*)(\.\d+)?(?![\w]|\.\d)(?=( ?%)?)")
SMALL = 20
"""Whole numbers up to this one are not looked up: they count systems, seeds and the like."""


def figures(text: str) -> Iterator[tuple[str, float, float, bool]]:
    """The figures of a text: as written, value, half of the last digit, whether a percentage."""
    for found in FIGURE.finditer(NO_FIGURES.sub(" ", text)):
        whole, decimals, percent = found.groups()
        if decimals or int(whole.replace(",", "")) > SMALL:
            value = float(whole.replace(",", "") + (decimals or ""))
            digits = len(decimals or ".") - 1
            yield found[0], value, 0.500001 * 10.0**-digits, bool(percent)


def recorded(record: Any) -> Iterator[float]:
    """All numbers of a record, without their signs; also those in its texts and names.

    Of measurements that were repeated it also gives the median and the mean.
    """
    if isinstance(record, dict):
        for name, value in record.items():
            yield from recorded(name)
            yield from recorded(value)
    elif isinstance(record, list):
        for value in record:
            yield from recorded(value)
        if record and all(isinstance(value, (int, float)) for value in record):
            yield from (median(record), mean(record))
    elif isinstance(record, str):
        yield from (
            float(x.replace(",", "")) for x in re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", record)
        )
    elif isinstance(record, (int, float)):
        yield abs(float(record))


def missing(text: str, files: list[Path], unit: float = 1.0) -> list[str]:
    """The figures of a text that no file has, rounded as in the text."""
    known = {x for file in files for x in recorded(json.loads(file.read_text(encoding="utf-8")))}
    return [
        written
        for written, value, half, percent in figures(text)
        if not any(
            abs(x * scale - value) <= half
            for x in known
            for scale in {1.0, 1 / unit, 100.0 if percent else 1.0}
        )
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_figure_is_in_its_record(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for mark in MARKED.finditer(text):
        if mark[1]:
            names, _, unit = mark[1].partition(" in ")
            files = [ROOT / name for name in names.split()]
            line = text[: mark.start()].count("\n") + 1
            assert missing(mark[2], files, float(unit or 1)) == [], f"{page}:{line}"
    rest = MARKED.sub("\n", text)
    for table in TABLE.finditer(rest):
        assert table[1], f"{page}: a table of numbers without a record: {table[0][:200]}"


def test_pages_are_found() -> None:
    assert len(PAGES) > 20


def test_what_is_looked_up(tmp_path: Path) -> None:
    """Rounded values, percentages, units; not names, links, code, headings and small counts."""
    record = {
        "command": "run --rounds 5",
        "ms": [1.5, 2.4],
        "rows": [{"bleu": -30.976, "share": 0.5486, "n": 1844224}],
    }
    (tmp_path / "r.json").write_text(json.dumps(record))
    there = (
        "30.98 (-30.976) BLEU, 54.9 % or 55%, 1,844,224, 1.95 ms\n"
        "`41.5`, [x](41.5), R-41.5, 7 systems\n\n"
        "| 41.5 | x |\n| --- | ---: |\n| a | 30.98 |\n```\n41.5\n```\n"
    )
    assert missing(there, [tmp_path / "r.json"]) == []
    assert missing("1,844 in thousands", [tmp_path / "r.json"], 1000) == []
    wrong = "30.97, 31.0 and 30.9, 54.8 %, 1,844,225, | 21 |"
    assert missing(wrong, [tmp_path / "r.json"]) == [
        "30.97", "30.9", "54.8", "1,844,225", "21"
    ]  # fmt: skip
    assert TABLE.search("| a |\n| ---: |\n")[1] is None  # type: ignore[index]
    assert TABLE.search("<!-- no result: why -->\n| a |\n| ---: |\n")[1]  # type: ignore[index]
