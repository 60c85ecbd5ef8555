"""Which dilations fit a series or a text: autocorrelation, and the plot of its recurrences.

Huang et al. 2023, section 3, "Hyperparameters", choose d by these two.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from fairseq_recur.plotting.figures import COLOURS, new_figure, plain_axes

Array = numpy.ndarray[Any, Any]

MARKED = 5
"""Lags that are named."""


@dataclass(frozen=True)
class Track:
    """A series or a text: one value per position.

    Attributes:
        name: of the variable, or of the text
        values: (n,) numbers, or for a text the numbers of its tokens
        is_text: whether the values only can be equal or different
    """

    name: str
    values: Array
    is_text: bool

    def by_lag(self, lags: int) -> tuple[Array, float]:
        """Compare the positions with those some lag earlier.

        Of a series, the autocorrelation (Cryer & Chan 2008): n times the covariance at a lag,
        divided by n times the variance. Of a text, the share of positions whose token is the same,
        which is the recurrence rate of a diagonal (Webber et al. 2016).

        Args:
            lags: the largest, less than n; the series is not constant

        Returns:
            the values at the lags 0 to *lags*, and the value above which a lag stands out: two
            standard errors above that of independent positions
        """
        x, n = self.values, len(self.values)
        if self.is_text:
            shares = numpy.bincount(x) / n
            chance = float(shares @ shares)
            rates = [float((x[lag:] == x[: n - lag]).mean()) for lag in range(lags + 1)]
            return numpy.array(rates), chance + 2 * math.sqrt(chance * (1 - chance) / n)
        x = x - x.mean()
        sums = numpy.array([x[lag:] @ x[: n - lag] for lag in range(lags + 1)])
        return sums / sums[0], 2 / math.sqrt(n)

    def recurrences(self, size: int, threshold: float) -> Array:
        """Which of the first *size* positions are alike: (size, size) booleans.

        Args:
            size: positions
            threshold: how close values are that count as alike, in standard deviations of the
                series
        """
        x = self.values[:size]
        widest = 0.0 if self.is_text else threshold * self.values.std()
        return abs(x[:, None] - x[None, :]) <= widest


def peaks(curve: Array, least: float) -> list[int]:
    """Return the lags above 1 at which a curve has a maximum above *least*, the highest first."""
    found = [
        lag
        for lag in range(2, len(curve) - 1)
        if curve[lag] > least and curve[lag - 1] < curve[lag] >= curve[lag + 1]
    ]
    return sorted(found, key=lambda lag: -curve[lag])[:MARKED]


def draw(tracks: Sequence[Track], lags: int, size: int, threshold: float) -> tuple[Any, list[str]]:
    """Draw a row for each track: the values by lag, and the recurrence plot.

    Args:
        tracks: each has more than *lags* positions
        lags: the largest lag
        size: positions of the recurrence plot
        threshold: see `Track.recurrences`

    Returns:
        a matplotlib Figure, and a line of text for each track, which names its best lags

    Raises:
        ConfigError: matplotlib is not installed
    """
    figure, said = new_figure(11.0, 4.2 * len(tracks)), []
    rows = figure.subplots(len(tracks), 2, squeeze=False, width_ratios=(3, 2))
    for (left, right), track in zip(rows, tracks):
        curve, least = track.by_lag(lags)
        best = peaks(curve, least)
        named = ", ".join(f"{lag} ({curve[lag]:.3f})" for lag in best)
        said.append(f"{track.name}: {named or 'no lag stands out'}")
        left.vlines(range(1, lags + 1), 0, curve[1:], color=COLOURS[0], linewidth=1)
        left.axhline(least, color=COLOURS[-1], linewidth=0.8, linestyle="--")
        left.plot(best, curve[best], "o", color=COLOURS[1], markersize=4)
        for lag in best:
            left.annotate(
                str(lag), (lag, curve[lag]), (0, 4), textcoords="offset points",
                ha="center", fontsize=8,
            )  # fmt: skip
        left.set_title(track.name, fontsize=9)
        left.set_xlabel("lag")
        left.set_ylabel("share of equal tokens" if track.is_text else "autocorrelation")
        plain_axes(left)
        right.imshow(track.recurrences(size, threshold), cmap="binary", origin="lower")
        right.set_title("recurrence plot", fontsize=9)
        right.set_xlabel("position")
    return figure, said
