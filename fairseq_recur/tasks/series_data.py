"""A table of numbers over time: reading it, and features of its dates."""

import csv
import io
import logging
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from math import isfinite, nan
from typing import Any, TextIO

import numpy

from fairseq_recur.errors import ConfigError

logger = logging.getLogger(__name__)

Array = numpy.ndarray[Any, Any]

FEATURES: dict[str, Callable[[datetime], float]] = {
    "minute of the hour": lambda t: t.minute / 59,
    "hour of the day": lambda t: t.hour / 23,
    "day of the week": lambda t: t.weekday() / 6,
    "day of the month": lambda t: (t.day - 1) / 30,
    "day of the year": lambda t: (t.timetuple().tm_yday - 1) / 365,
}
"""Numbers from 0 to 1 for a date; half is taken off them. Series by the hour lack the minute."""

DATE_NAMES = ("date", "datetime", "time", "timestamp")
"""Names of the column of the dates, in any case. If no column has one of them, it is the first."""

DATE_FORMS = tuple(
    day + hour
    for day in ("%m/%d/%Y", "%Y/%m/%d", "%d.%m.%Y", "%Y-%m-%d")
    for hour in (" %H:%M", " %H:%M:%S", "")
)
"""Forms of dates besides ISO 8601, which has no single digits."""

DATE_EXAMPLES = (
    "2016-07-01 00:00:00, 2016/7/1 0:00, 7/31/2016 0:00 (the month first) or 31.7.2016 0:00 "
    "(the day first)"
)
"""The forms in a message; the hour may be left out."""

DAY_OR_MONTH = re.compile(r"0?([1-9]|1[0-2])/0?([1-9]|1[0-2])/")
"""The beginning of a date whose day may be its month, and its month the day."""

DECIMAL_COMMA = re.compile(r"\s*[-+]?\d*,\d+\s*")

THOUSANDS = re.compile(r"\s*[-+]?[1-9]\d{0,2}([,. '])\d{3}(\1\d{3})*((?!\1)[,.]\d+)?\s*")
"""A number with thousands separators; with one comma alone, it may also be a decimal one."""

DELIMITERS = ",;\t"


@dataclass(frozen=True)
class Series:
    """A table with a row per time step.

    Attributes:
        names: of the variables
        dates: as the file has them
        times: the same as dates
        step: time from row to row; where rows are missing, it is longer
        values: (rows, variables) float64
        path: of the file
    """

    names: list[str]
    dates: list[str]
    times: list[datetime]
    step: timedelta
    values: Array
    path: str

    def features(self) -> Array:
        """`FEATURES` of each row, from -0.5 to 0.5: (rows, 4 or 5) float32."""
        whole_hours = self.step % timedelta(hours=1) == timedelta(0)
        chosen = list(FEATURES.values())[int(whole_hours) :]
        return numpy.array(
            [[feature(time) - 0.5 for feature in chosen] for time in self.times], numpy.float32
        )


def date_reader(text: str) -> Callable[[str], datetime] | None:
    """Return what reads dates of the same form as a first one: ISO 8601, or of `DATE_FORMS`."""
    readers: list[Callable[[str], datetime]] = [datetime.fromisoformat]
    readers += [partial(_read_date, form) for form in DATE_FORMS]
    for read in readers:
        with suppress(ValueError):
            read(text)
            return read
    return None


def _read_date(form: str, text: str) -> datetime:
    return datetime.strptime(text, form)


def columns_of(text: str) -> list[str]:
    """Return the names in the value of --series-columns, a line of CSV.

    Raises:
        ConfigError: it is more than one line
    """
    try:
        names = next(csv.reader([text], skipinitialspace=True), [])
    except csv.Error:
        raise ConfigError(
            f"--series-columns {text!r}: expected one line; leave out the line breaks"
        ) from None
    return [name.strip() for name in names if name.strip()]


def as_columns(names: Sequence[str]) -> str:
    """Return the value of --series-columns for names, quoted for a shell."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return shlex.quote(line.getvalue())


def read_series(path: str, columns: Sequence[str] = ()) -> Series:
    """Read a CSV file: a line of names, then in each line a date and a number per variable.

    Commas, semicolons or tabs separate the columns. Columns without a name, such as a table's own
    numbers of its rows, and blank lines are left out. Rows that are missing give a warning.

    Args:
        path: of the file
        columns: names of the variables; empty for all

    Raises:
        ConfigError: the file cannot be read, or a line is not like that; the message names it
    """
    if not os.path.isfile(path):
        raise ConfigError(
            f"--series-file {path}: no such file; give a CSV file with a column of dates"
        )
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            return _series(path, file, columns)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} is not a CSV file in UTF-8 ({error}); convert it") from error


def _delimiter(start: str) -> str:
    """Return what separates the columns in the first lines of a file; a comma if nothing does."""
    with suppress(csv.Error):
        return csv.Sniffer().sniff(start, DELIMITERS).delimiter
    return ","


def _series(path: str, file: TextIO, columns: Sequence[str]) -> Series:
    start = file.readline() + file.readline()
    file.seek(0)
    lines = csv.reader(file, delimiter=_delimiter(start), skipinitialspace=True)
    header = [name.strip() for name in next(lines, [])]
    of_date, places = _places(path, header, columns)
    read: Callable[[str], datetime] | None = None
    numbers: list[int] = []
    dates: list[str] = []
    times: list[datetime] = []
    rows: list[list[float]] = []
    wrong: list[tuple[str, str]] = []
    for line in lines:
        if not any(cell.strip() for cell in line):
            continue
        where = f"{path}, line {lines.line_num}"
        if len(line) != len(header):
            raise ConfigError(
                f"{where}: {len(line)} columns; expected {len(header)}, as the first line has; "
                "correct the line"
            )
        date = line[of_date].strip()
        read = read or date_reader(date)
        times.append(_time(date, read, times, f"{where}: found {date!r} as {header[of_date]}"))
        numbers.append(lines.line_num)
        dates.append(date)
        rows.append([_number(line[i]) for i in places])
        wrong += [
            (f"{where}: found {line[i]!r} as {header[i]}", line[i])
            for i, value in zip(places, rows[-1])
            if not isfinite(value)
        ]
    if not places or len(rows) < 2:
        raise ConfigError(
            f"{path}: expected a line of names and at least two lines with a date and numbers; "
            f"found {len(rows)} such lines"
        )
    _check_values(wrong)
    step = _step(path, numbers, dates, times)
    return Series([header[i] for i in places], dates, times, step, numpy.array(rows), path)


def _places(path: str, header: list[str], columns: Sequence[str]) -> tuple[int, list[int]]:
    """Return where a line has its date, and its variables: those of *columns*, or all.

    Raises:
        ConfigError: a name occurs twice or not at all, or the first line has no names
    """
    of_date = next((i for i, name in enumerate(header) if name.lower() in DATE_NAMES), 0)
    if header and date_reader(header[of_date]):
        raise ConfigError(f"{path} begins with the date {header[of_date]}; add a line of names")
    named = [i for i, name in enumerate(header) if name and i != of_date]
    known = [header[i] for i in named]
    twice = [name for name, count in Counter(known).items() if count > 1]
    if twice:
        raise ConfigError(f"{path} has several columns called {', '.join(twice)}; rename them")
    again = [name for name, count in Counter(columns).items() if count > 1]
    if again:
        raise ConfigError(f"--series-columns names {', '.join(again)} twice; give each name once")
    for name in columns:
        if name not in known:
            raise ConfigError(
                f"{path} has no column {name} (--series-columns, --variable); expected some of "
                f"{', '.join(known)}"
            )
    return of_date, [header.index(name) for name in columns] if columns else named


def _time(
    date: str, read: Callable[[str], datetime] | None, before: list[datetime], found: str
) -> datetime:
    """Read a date as the first one was read.

    Raises:
        ConfigError: it has another form, or a time zone where the others have none
    """
    time = None
    with suppress(ValueError):
        time = read(date) if read is not None else None
    if time is None or (before and (time.tzinfo is None) != (before[0].tzinfo is None)):
        raise ConfigError(
            f"{found}; expected a date, of one form in all lines, in a column called date or in "
            f"the first one; write it like {DATE_EXAMPLES}"
        )
    return time


def _number(cell: str) -> float:
    """Read a value; nan if it is missing or no number."""
    try:
        return float(cell)
    except ValueError:
        return nan


def _check_values(wrong: Sequence[tuple[str, str]]) -> None:
    """Refuse values that are missing, or no finite numbers.

    Args:
        wrong: of each of them, its place for a message, and what is there

    Raises:
        ConfigError: there are some; it names the first, and their number
    """
    if not wrong:
        return
    found, cell = wrong[0]
    count = f", the first of {len(wrong):,} such values" if len(wrong) > 1 else ""
    remedy = "fill in what is missing, or choose variables without it"
    if DECIMAL_COMMA.fullmatch(cell) or THOUSANDS.fullmatch(cell):
        remedy = _without_separators([cell for _, cell in wrong])
    raise ConfigError(f"{found}{count}; expected a finite number; {remedy}")


def _without_separators(cells: Sequence[str]) -> str:
    """Return how to write numbers that have commas or thousands separators.

    What a comma before three digits is, the other numbers may tell.
    """
    forms = {(bool(THOUSANDS.fullmatch(c)), bool(DECIMAL_COMMA.fullmatch(c))) for c in cells}
    if (True, False) in forms:
        return "remove the thousands separators, and write a decimal point, not a comma"
    if (False, True) in forms:
        return "write a decimal point in place of each decimal comma"
    return "remove each comma that separates thousands, and write a decimal point for a decimal one"


def _step(path: str, numbers: list[int], dates: list[str], times: list[datetime]) -> timedelta:
    """Return the usual time from row to row; warn of others.

    Args:
        path: of the file
        numbers: of the rows' lines
        dates: of the rows, as the file has them
        times: of the rows

    Raises:
        ConfigError: a row is not later than the one before, or days may be months
    """
    steps = [after - before for before, after in zip(times, times[1:])]
    step, _ = Counter(steps).most_common(1)[0]
    for number, found in zip(numbers[1:], steps):
        if found <= timedelta(0):
            raise ConfigError(
                f"{path}, line {number}: its date is not later than that of the line before; sort "
                "the lines, and give each date once"
            )
    others = [number for number, found in zip(numbers[1:], steps) if found != step]
    if others and all(DAY_OR_MONTH.match(date) for date in dates):
        raise ConfigError(
            f"{path}: nothing tells days from months in dates such as {dates[-1]}. With the month "
            f"first, {len(others)} of the {len(times)} rows are not {step} later than the row "
            "before. Write the dates like 2016-07-31"
        )
    if others:
        logger.warning(
            "%s: %d of the %d rows are not %s later than the row before, the first in line %d; "
            "windows take all rows as equally far apart",
            path, len(others), len(times), step, others[0],
        )  # fmt: skip
    return step
