"""A table of numbers over time: reading it, its parts for training, features of its dates."""

import csv
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy

from fairseq_recur.errors import ConfigError

Array = numpy.ndarray[Any, Any]

SPLITS = ("train", "valid", "test")

MONTH = timedelta(days=30)
"""As Zhou et al. 2021 count."""

FEATURES: dict[str, Callable[[datetime], float]] = {
    "minute of the hour": lambda t: t.minute / 59,
    "hour of the day": lambda t: t.hour / 23,
    "day of the week": lambda t: t.weekday() / 6,
    "day of the month": lambda t: (t.day - 1) / 30,
    "day of the year": lambda t: (t.timetuple().tm_yday - 1) / 365,
}
"""Numbers from 0 to 1 for a date; half is taken off them. Series by the hour lack the minute."""


@dataclass(frozen=True)
class Series:
    """A table with a row per time step.

    Attributes:
        names: of the variables
        dates: as the file has them
        times: the same as dates
        values: (rows, variables) float64
    """

    names: list[str]
    dates: list[str]
    times: list[datetime]
    values: Array

    @property
    def step(self) -> timedelta:
        """Time from row to row."""
        return self.times[1] - self.times[0]

    def features(self) -> Array:
        """`FEATURES` of each row, from -0.5 to 0.5: (rows, 4 or 5) float32."""
        whole_hours = self.step % timedelta(hours=1) == timedelta(0)
        chosen = list(FEATURES.values())[int(whole_hours) :]
        return numpy.array(
            [[feature(time) - 0.5 for feature in chosen] for time in self.times], numpy.float32
        )


def parse_date(text: str) -> datetime:
    """Read "2016-07-01 00:00:00" or "7/1/2016 0:00".

    Raises:
        ValueError: it is neither
    """
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return datetime.strptime(text, "%m/%d/%Y %H:%M")


def read_series(path: str) -> Series:
    """Read a CSV file: a line of names, then in each line a date and a number per variable.

    Raises:
        ConfigError: the file cannot be read, or a line is not like that; the message names it
    """
    if not os.path.isfile(path):
        raise ConfigError(
            f"--series-file {path}: no such file; give a CSV file with a date in its first column"
        )
    with open(path, encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file)
        names = next(lines, [])[1:]
        dates, times, rows = [], [], []
        for number, line in enumerate(lines, 2):
            try:
                times.append(parse_date(line[0]))
                rows.append([float(cell) for cell in line[1:]])
            except (ValueError, IndexError) as error:
                raise ConfigError(
                    f"{path}, line {number}: expected a date such as 2016-07-01 00:00:00 and "
                    f"{len(names)} numbers, but {error}; correct the line"
                ) from None
            dates.append(line[0])
            if len(rows[-1]) != len(names) or not numpy.isfinite(rows[-1]).all():
                raise ConfigError(
                    f"{path}, line {number}: expected {len(names)} finite numbers after the date, "
                    f"as the first line names; found {','.join(line[1:])}; correct the line"
                )
    if not names or len(rows) < 2:
        raise ConfigError(
            f"{path}: expected a line of names and at least two lines with a date and numbers; "
            f"found {len(rows)} such lines"
        )
    for number, (before, after) in enumerate(zip(times, times[1:]), 3):
        if after - before != times[1] - times[0] or after <= before:
            raise ConfigError(
                f"{path}, line {number}: {after - before} after the line before, but the first two "
                f"lines are {times[1] - times[0]} apart; give rows in equal steps of time"
            )
    return Series(names, dates, times, numpy.array(rows))


def split_rows(series: Series, months: str, fractions: str) -> dict[str, tuple[int, int]]:
    """The first row of each split and the row after its last.

    Args:
        series: to be split
        months: numbers of months of 30 days for training, validation and test: "12,4,4"
        fractions: of the rows, in place of *months*: "0.7,0.1,0.2"; or ""

    Raises:
        ConfigError: they are not three positive numbers, or the series is too short for them
    """
    given = f"--split-fractions {fractions}" if fractions else f"--split-months {months}"
    try:
        parts = [float(part) for part in (fractions or months).split(",")]
    except ValueError:
        parts = []
    largest = 1.0 if fractions else 1200.0
    if len(parts) != 3 or not all(0 < part <= largest for part in parts):
        raise ConfigError(
            f"{given}: expected three numbers above 0 and up to {largest:g} with commas between, "
            "for training, validation and test"
        )
    total = len(series.values)
    if fractions:
        if sum(parts) > 1 + 1e-9:
            raise ConfigError(f"{given}: they add up to more than 1; give smaller fractions")
        train, test = int(total * parts[0]), int(total * parts[2])
        sizes = [train, total - train - test if sum(parts) > 1 - 1e-9 else int(total * parts[1])]
        sizes.append(test)
    else:
        sizes = [int(part * MONTH / series.step) for part in parts]
    if sum(sizes) > total:
        raise ConfigError(
            f"{given}: that is {sum(sizes)} rows, but the series has {total}; give fewer"
        )
    ends = numpy.cumsum(sizes).tolist()
    return {name: (end - size, end) for name, size, end in zip(SPLITS, sizes, ends)}
