"""Messages about the dates and the numbers in the file of a time series."""

import re
from datetime import timedelta
from pathlib import Path

import pytest

from fairseq_recur.errors import ConfigError
from fairseq_recur.tasks.series_data import DATE_EXAMPLES, date_reader, read_series


def refused(folder: Path, text: str) -> str:
    """Return why a file is refused."""
    (folder / "x.csv").write_text(text)
    with pytest.raises(ConfigError) as error:
        read_series(str(folder / "x.csv"))
    return str(error.value)


@pytest.mark.parametrize("date", ["31/7/2016 0:00", "2016-07-01T0h", "1 July 2016"])
def test_an_unknown_date_gives_the_known_forms(date: str, tmp_path: Path) -> None:
    said = refused(tmp_path, f"date,a\n{date},1\n")
    assert f"line 2: found {date!r} as date; expected a date" in said and DATE_EXAMPLES in said
    assert "7/31/2016 0:00 (the month first)" in said


def test_the_known_forms_are_read() -> None:
    examples = re.split(", | or ", re.sub(r" \(.*?\)", "", DATE_EXAMPLES))
    assert len(examples) == 4
    for example in examples:
        for date in (example, example.split()[0]):
            read = date_reader(date)
            assert read is not None and read(date).year == 2016


def test_a_decimal_comma_is_named(tmp_path: Path) -> None:
    said = refused(tmp_path, "date;a;b\n2016-07-01;0,094;1\n2016-07-02;-1,5;2\n")
    assert "line 2: found '0,094' as a, the first of 2 such values; expected a finite" in said
    assert said.endswith("write a decimal point in place of each decimal comma")


def test_missing_values_are_counted(tmp_path: Path) -> None:
    days = [
        f"2016-07-{day:02},{'' if day > 5 else day},{'inf' if day > 28 else 1}\n"
        for day in range(1, 31)
    ]
    said = refused(tmp_path, "date,a,b\n" + "".join(days))
    assert "line 7: found '' as a, the first of 27 such values; expected a finite number" in said
    assert said.endswith("fill in what is missing, or choose variables without it")
    said = refused(tmp_path, "date,a\n2016-07-01,1\n2016-07-02,\n")
    assert "line 3: found '' as a; expected a finite number; fill in" in said


def test_days_that_may_be_months_are_refused(tmp_path: Path) -> None:
    """Of a series by the month with the day first, which is read as days of each January."""
    rows = [f"01/{month + 1:02}/{year},1\n" for year in (2016, 2017) for month in range(12)]
    said = refused(tmp_path, "date,a\n" + "".join(rows))
    assert "in dates such as 01/12/2017. With the month first, 1 of the 24 rows are not" in said
    (tmp_path / "x.csv").write_text("date,a\n" + "".join(rows[:12]))  # days of one January
    assert read_series(str(tmp_path / "x.csv")).step == timedelta(days=1)
    days = [f"1/{day}/2016,1\n" for day in (1, 2, 3, 5, 13)]
    (tmp_path / "x.csv").write_text("date,a\n" + "".join(days))  # the last cannot be a month
    assert len(read_series(str(tmp_path / "x.csv")).times) == 5
