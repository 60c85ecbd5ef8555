"""Every figure that a page marks as a result is in the record that the mark names.

    <!-- result: examples/quickstart/expected.json -->
    | system | BLEU | ...
    <!-- end -->

Several records are separated by spaces; ``in UNIT`` after them gives the unit of the page. A figure
of a table must stand in the record under the names of its row and column, one of a paragraph under
a system that it mentions; tests/docs/names.py has names that differ. Tables of numbers without a
mark fail, unless a comment before them says why there is no record:
``<!-- no result: published figures -->``. benchmarks/tables.py writes the tables marked ``table:``.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.commands import ROOT
from tests.docs.names import BY_PAGE, names_of
from tests.docs.records import Records, missing, normal

PAGES = sorted(
    page
    for pattern in ("README.md", "docs/*.md", "examples/**/*.md", "benchmarks/*.md")
    for page in ROOT.glob(pattern)
    if not {"work", "results"} & {*page.relative_to(ROOT).parts}
    and page.name not in ("flags.md", "commands.md")
)
MARKED = re.compile(r"<!-- (?:result: ([^>]*?)|table: [^>]*?) -->\n(.*?)<!-- end -->", re.S)
TABLE = re.compile(r"(<!-- no result: [^>]+ -->\n+)?^\|.*\n\|[ :|-]*---:[ :|-]*\n", re.M)


def records_of(mark: str, page: Path) -> Records:
    """The records that a mark names, with the names of its page."""
    files, _, unit = mark.partition(" in ")
    contents = [json.loads((ROOT / name).read_text(encoding="utf-8")) for name in files.split()]
    return Records(contents, names_of(page.relative_to(ROOT)), float(unit or 1))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_figure_is_in_its_record(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for mark in MARKED.finditer(text):
        if mark[1]:
            line = text[: mark.start()].count("\n") + 1
            assert missing(mark[2], records_of(mark[1], page)) == [], f"{page}:{line}"
    rest = MARKED.sub("\n", text)
    for table in TABLE.finditer(rest):
        assert table[1], f"{page}: a table of numbers without a record: {table[0][:200]}"


def test_pages_are_found() -> None:
    assert len(PAGES) > 20


@pytest.mark.parametrize("page", BY_PAGE)
def test_names_are_those_of_the_page(page: str) -> None:
    """A name that is no longer on its page would only hide a wrong figure."""
    text = normal((ROOT / page).read_text(encoding="utf-8"))
    for name in BY_PAGE[page]:
        assert all(f" {word} " in f" {text} " for word in normal(name).split()), name


RECORD: dict[str, Any] = {
    "command": "run --rounds 5 --text 4096",
    "ms": [1.5, 2.4],
    "rows": [
        {"system": "rsa", "bleu": -30.976, "share": 0.5486, "n": 1844224},
        {"system": "birnn", "bleu": 25.125, "p": 0.031, "corrected": "0.062"},
    ],
    "runs": {"birnn": {"1": {"bleu": 41.5}, "2": {"loss": [[600, 4.25]]}}},
    "note": "52.5 was another",
}


def wrong(text: str, unit: float = 1.0, **names: str) -> list[str]:
    """The figures of a text that are not in the record, without their rows."""
    return [line.split(" in ")[0] for line in missing(text, Records([RECORD], names, unit))]


def test_what_is_looked_up() -> None:
    """Rounded values, percentages, units; not names, links, code, headings and small counts."""
    assert not wrong(
        "30.98 (-30.976) BLEU, 54.9 % or 55%, 1,844,224, 1.95 ms of 4,096 pieces\n"
        "`41.6`, [x](41.6), R-41.6, ETTh1/336, 7 systems\n\n```\n41.6\n```\n"
    )
    assert not wrong("1,844 in thousands", unit=1000)
    figures = "30.97, 31.0 and 30.9, +30.98, 54.8 %, 1,844,225, 21"
    assert wrong(figures) == ["30.97", "30.9", "30.98", "54.8", "1,844,225", "21"]
    assert wrong("52.5 is of a text, 5.49 no percentage") == ["52.5", "5.49"]
    assert wrong("25.12 and 25.13 are both 25.125; 25.1 is too, 25.2 is not") == ["25.2"]
    assert TABLE.search("| a |\n| ---: |\n")[1] is None  # type: ignore[index]
    assert TABLE.search("<!-- no result: why -->\n| a |\n| ---: |\n")[1]  # type: ignore[index]


@pytest.mark.parametrize(
    "row, not_there",
    [
        ("| birnn | 25.13 | 0.031 |", []),
        ("| birnn | 30.98 | 0.031 |", ["30.98"]),  # of another system
        ("| BiRNN | 0.031 | 25.13 |", ["0.031", "25.13"]),  # in each other's column
        ("| `rsa` | 30.98 | |", ["30.98"]),  # without its sign
        ("| `rsa` | -30.98 | |", []),
        ("| mine | -30.98 | |", []),  # a name of the page
        ("| other | -30.98 | 0.031 |", ["nothing has all figures of ['other', '-30.98', '0.031']"]),
        ("| other | 25.13 | 0.031 |", []),  # no label, but one system has both
    ],
)
def test_a_figure_stands_under_the_names_of_its_row_and_column(
    row: str, not_there: list[str]
) -> None:
    assert wrong(f"| system | BLEU | p |\n| --- | ---: | ---: |\n{row}\n", mine="rsa") == not_there


def test_all_rows_of_a_table_have_names_or_none() -> None:
    table = "| system | BLEU |\n| --- | ---: |\n| `rsa` | -30.98 |\n| x | 25.13 |\n| y | yet |\n"
    assert wrong(table) == ["x, a name"]


def test_headings_with_seeds_and_first_cells_that_stand_for_the_row_above() -> None:
    headings = "| system | BLEU, seed 1 | seed 2 |\n| --- | ---: | ---: |\n"
    record = {"runs": [{"system": "a", "seed": s, "bleu": 40.5 + s, "x": 50.5} for s in (1, 2)]}
    found = missing(f"{headings}| a | 41.50 | 42.50 |\n| | 41.50 | 50.5 |\n", Records([record], {}))
    assert found == ["50.5 in ['a', '41.50', '50.5']"]
    turned = missing(f"{headings}| a | 42.50 | 41.50 |\n", Records([record], {}))
    assert len(turned) == 2


def test_a_paragraph_has_only_figures_of_the_systems_it_mentions() -> None:
    assert not wrong("The BiRNN has 25.13 (p 0.031, corrected 0.062).\n\n- RSA: 30.98.")
    assert wrong("RSA has 25.13.\n\n- The BiRNN: 30.98, p is 41.50.") == ["25.13", "30.98", "41.50"]
    assert not wrong("Mine has 30.98.", mine="rsa")
    assert not wrong("Neither is named: 25.13 and 30.98")


def test_curves() -> None:
    curve = {"loss": {"updates": [50, 100, 150], "values": [1.25, 0.75, 0.25]}}
    table = "| updates | loss |\n| ---: | ---: |\n| 100 | 0.75 |\n"
    records = Records([{"a": curve}], {"updates 100": "100", "below 1": "loss & below 1"})
    assert missing("The loss is 0.75, below one after 100 updates.", records) == []
    assert missing("The loss is 0.74, below one after 150 updates.", records) == ["0.74", "150"]
    assert missing(table, records) == []
    assert missing(table.replace("0.75", "0.25"), records) == ["0.25 in ['100', '0.25']"]
