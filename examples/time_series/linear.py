"""Linear forecasts for comparison, fitted by least squares: no training, nothing random.

``linear`` maps the window of each variable to its forecast by a matrix of its own. ``dlinear`` has
one matrix for all variables. DLinear (Zeng et al. 2023) splits the window into a moving average
and the rest, and adds a linear map of each: their sum is one linear map of the window. So no
DLinear has a lower squared error on the training windows than the best matrix. The penalty is the
one of `PENALTIES` with the best validation.
"""

from typing import Any

import numpy
from cells import Cell

from fairseq_recur.errors import ConfigError
from fairseq_recur.tasks.series_data import columns_of, read_series
from fairseq_recur.tasks.series_splits import forecast_rows, scale_of, split_rows, standardised

PENALTIES = (1e-4, 1e-2, 1.0)
"""Of the squared weights, relative to the mean square of the inputs."""

Array = numpy.ndarray[Any, Any]


def windows(values: Array, rows: tuple[int, int], cell: Cell) -> Array:
    """The windows of one variable in a split, without a copy: (N, L + T).

    Args:
        values: of all rows
        rows: that are forecast
        cell: with the lengths
    """
    read, _, horizon = cell.lengths
    part = values[rows[0] - read : rows[1]]
    return numpy.lib.stride_tricks.sliding_window_view(part, read + horizon)


def split_windows(both: Array, read: int) -> tuple[Array, Array]:
    """Inputs (N, L + 1), the last column 1, and forecasts (N, T)."""
    return numpy.hstack([both[:, :read], numpy.ones((len(both), 1))]), both[:, read:]


def errors_of(matrix: Array, parts: list[Array]) -> tuple[float, float]:
    """MSE and MAE over the windows of some variables, which are equally many for each."""
    errors = []
    for both in parts:
        inputs, target = split_windows(both, len(matrix) - 1)
        wrong = inputs @ matrix - target
        errors.append(((wrong**2).mean(), numpy.abs(wrong).mean()))
    squared, absolute = numpy.mean(errors, axis=0)
    return float(squared), float(absolute)


def fit(groups: dict[str, list[Array]], read: int) -> tuple[float, float]:
    """Fit a matrix to the windows of some variables: the errors on the test part."""
    square, product = 0.0, 0.0
    for both in groups["train"]:
        inputs, target = split_windows(both, read)
        square, product = square + inputs.T @ inputs, product + inputs.T @ target
    size = numpy.trace(square) / len(square)
    matrices = [
        numpy.linalg.solve(square + penalty * size * numpy.eye(len(square)), product)
        for penalty in PENALTIES
    ]
    best = min(matrices, key=lambda matrix: errors_of(matrix, groups["valid"]))
    return errors_of(best, groups["test"])


def linear_errors(cell: Cell, folder: str, columns: str = "") -> dict[str, dict[str, float]]:
    """MSE and MAE on the test part: {"linear": {"mse": ..., "mae": ...}, "dlinear": ...}.

    Args:
        cell: data and lengths
        folder: of the data
        columns: the variables, as in --series-columns; empty for all

    Raises:
        ConfigError: the series cannot be read, its values overflow, or a split is shorter than a
            window
    """
    series = read_series(f"{folder}/{cell.file}", columns_of(columns))
    rows = split_rows(series, cell.months, cell.fractions)
    read, _, horizon = cell.lengths
    try:
        forecast = {split: forecast_rows(rows, split, read, horizon) for split in rows}
    except ConfigError as error:
        raise ConfigError(f"{cell.name}: {error}") from None
    mean, deviation = scale_of(series.values[slice(*rows["train"])])
    values = standardised(series, mean, deviation)
    variables = [
        {split: windows(column, forecast[split], cell) for split in rows} for column in values.T
    ]
    alone = [fit({split: [part] for split, part in parts.items()}, read) for parts in variables]
    together = fit({split: [parts[split] for parts in variables] for split in rows}, read)
    return {
        "linear": dict(zip(("mse", "mae"), numpy.mean(alone, axis=0).tolist())),
        "dlinear": dict(zip(("mse", "mae"), together)),
    }
