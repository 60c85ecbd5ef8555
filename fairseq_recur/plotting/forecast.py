"""Forecasts of a time series beside the actual values: one panel per variable."""

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairseq_recur.errors import ConfigError, Problems
from fairseq_recur.plotting.figures import COLOURS, new_figure, plain_axes

ACTUAL = " actual"
"""What the column of a variable's actual values has after its name."""


@dataclass(frozen=True)
class Forecasts:
    """The lines of the file.

    Attributes:
        windows: the number of each line's window
        dates: of the lines
        columns: the numbers by the name of their column
    """

    path: str
    windows: list[int]
    dates: list[str]
    columns: dict[str, list[float]]

    @property
    def variables(self) -> list[str]:
        """The names of the variables."""
        return [name for name in self.columns if name + ACTUAL in self.columns]


def read_forecasts(path: str) -> Forecasts:
    """Read what ``fairseq-recur forecast`` wrote.

    Raises:
        ConfigError: the file is missing or is not like that
    """
    if not os.path.isfile(path):
        raise ConfigError(f"{path}: no such file; give the --output of fairseq-recur forecast")
    try:
        with open(path, encoding="utf-8", newline="") as file:
            head, *lines = csv.reader(file)
        columns = {
            name: [float(line[i]) for line in lines] for i, name in enumerate(head) if i >= 2
        }
        made = Forecasts(path, [int(line[0]) for line in lines], [x[1] for x in lines], columns)
    except (ValueError, IndexError, csv.Error) as error:
        raise ConfigError(
            f"{path} is not a file of forecasts ({error}); give the --output of fairseq-recur "
            "forecast"
        ) from None
    if not made.variables or not lines:
        raise ConfigError(f"{path} has no forecasts; give the --output of fairseq-recur forecast")
    return made


def draw(data: Forecasts, variables: Sequence[str] | None, first: int, count: int) -> Any:
    """Return the figure: the actual values as one line, each window's forecast as a line.

    Args:
        variables: to draw; None for the last

    Raises:
        ConfigError: there is no such variable or window
    """
    problems = Problems("these forecasts cannot be drawn")
    chosen = list(variables or data.variables[-1:])
    for name in chosen:
        if name not in data.variables:
            problems.add(
                f"--variable {name}: expected some of {', '.join(data.variables)}, which "
                f"{data.path} has"
            )
    rows = [i for i, w in enumerate(data.windows) if first <= w < first + count]
    if not rows:
        problems.add(
            f"--first {first} --windows {count}: no such windows; {data.path} has "
            f"{min(data.windows)} to {max(data.windows)}"
        )
    problems.raise_all()
    figure = new_figure(8.0, 2.4 * len(chosen) + 0.4)
    panels = figure.subplots(len(chosen), 1, squeeze=False, sharex=True)[:, 0]
    for axes, name in zip(panels, chosen):
        actual, forecast = data.columns[name + ACTUAL], data.columns[name]
        axes.plot(rows, [actual[i] for i in rows], color=COLOURS[-1], label="actual", lw=1)
        for number in sorted({data.windows[i] for i in rows}):
            places = [i for i in rows if data.windows[i] == number]
            label = "forecast" if number == data.windows[rows[0]] else None
            values = [forecast[i] for i in places]
            one = "." if len(places) == 1 else ""  # a line of one row would not be seen
            axes.plot(places, values, color=COLOURS[number % 2], label=label, lw=1.5, marker=one)
        axes.set_ylabel(name)
        plain_axes(axes)
    starts = [i for i in rows if i == 0 or data.windows[i] != data.windows[i - 1]]
    panels[-1].set_xticks(starts, [data.dates[i] for i in starts], rotation=30, ha="right")
    panels[0].legend(fontsize=8, frameon=False)
    return figure
