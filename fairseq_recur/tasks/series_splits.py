"""Training, validation and test part of a series, and its scale."""

from datetime import timedelta

import numpy

from fairseq_recur.errors import ConfigError
from fairseq_recur.tasks.series_data import Array, Series

SPLITS = ("train", "valid", "test")

MONTH = timedelta(days=30)
"""Length of a month in ``--split-months``, as in Zhou et al. 2021."""


def scale_of(values: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of each variable: (V,) each.

    A constant variable has the deviation 1; what numpy returns for it may be a rounding error.
    Both may overflow, see `standardised`.

    Args:
        values: (rows, V)
    """
    with numpy.errstate(over="ignore", invalid="ignore"):
        mean, deviation = values.mean(axis=0), values.std(axis=0)
    varies = (values.max(axis=0) > values.min(axis=0)) & ~(deviation <= 0)
    return mean, numpy.where(varies, deviation, 1.0)


def standardised(series: Series, mean: Array, deviation: Array) -> Array:
    """The values of all rows on a scale: (rows, V) float64, which float32 can hold.

    Args:
        series: whose values
        mean: of each variable, (V,)
        deviation: likewise

    Raises:
        ConfigError: a mean, a deviation, or a standardised value in float32 is not finite
    """
    with numpy.errstate(all="ignore"):
        values = (series.values - mean) / deviation
        finite = numpy.isfinite(values.astype(numpy.float32)).all(axis=0)
    finite &= numpy.isfinite(mean) & numpy.isfinite(deviation)
    for name, given, usable in zip(series.names, series.values.T, finite):
        if not usable:
            largest = given[numpy.abs(given).argmax()]
            raise ConfigError(
                f"{series.path}: the values of {name} reach {largest:g}, too large for its mean "
                "and deviation; correct them, or choose variables without it"
            )
    return values


def split_rows(series: Series, months: str, fractions: str) -> dict[str, tuple[int, int]]:
    """The first row of each split and the row after its last.

    Args:
        series: to be split
        months: numbers of months of 30 days for training, validation and test: "12,4,4"
        fractions: of the rows, in place of *months*: "0.7,0.1,0.2"; or ""

    Raises:
        ConfigError: they are not three positive numbers, the series is too short for them, or there
            is no row for training
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
            f"{given}: that is {sum(sizes)} rows, but the series has {total}; give fewer, or "
            "--split-fractions"
        )
    if not sizes[0]:
        raise ConfigError(f"{given}: the training part has no rows; give it a larger share")
    ends = numpy.cumsum(sizes).tolist()
    return {name: (end - size, end) for name, size, end in zip(SPLITS, sizes, ends)}


def forecast_rows(
    rows: dict[str, tuple[int, int]], split: str, input_length: int, horizon: int
) -> tuple[int, int]:
    """The first row of a split that is forecast, and the row after its last.

    The first input of the training set is in it; those of the other sets may be before them.

    Args:
        rows: of each split
        split: one of `SPLITS`
        input_length: rows of an input
        horizon: rows of a forecast

    Raises:
        ConfigError: the split is shorter than a window
    """
    first, last = rows[split]
    if split == "train":
        first += input_length
    if last - first < horizon or first < input_length:
        raise ConfigError(
            f"the split {split} has {last - rows[split][0]} rows, too few for "
            f"--input-length {input_length} and --horizon {horizon}; give shorter windows or a "
            "larger split"
        )
    return first, last
