"""How a system's rates differ from the baseline's, over the languages and for equal seeds."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

from fairseq_recur.scoring.resampling import sign_flip_p

Scores = dict[str, dict[str, float]]
"""Rates by language and seed."""


def average(scores: dict[str, float], seeds: Sequence[str]) -> float:
    """Return the mean score of some seeds, rounded: equal rates may have other last bits."""
    return round(mean(scores[seed] for seed in seeds), 9)


def common_seeds(systems: dict[str, Any]) -> list[str]:
    """Return the seeds that all systems have, which alone are comparable."""
    first, *others = (system["seeds"] for system in systems.values()) if systems else ([],)
    return [seed for seed in first if all(seed in seeds for seeds in others)]


def difference(own: Scores, baseline: Scores, seeds: Sequence[str]) -> dict[str, Any]:
    """Return the differences of some seeds' means, and the test over the languages.

    Returns:
        ``seeds``; the differences by ``languages``, and their mean ``difference``, also
        ``relative`` in %, or None if the baseline makes no errors; the languages on which it is
        ``lower`` and ``higher``; ``p``
    """
    apart = {n: average(own[n], seeds) - average(baseline[n], seeds) for n in baseline}
    before = mean(average(scores, seeds) for scores in baseline.values())
    return {
        "seeds": list(seeds),
        "languages": apart,
        "difference": mean(apart.values()),
        "relative": 100 * mean(apart.values()) / before if before else None,
        "lower": [n for n in apart if apart[n] < 0],
        "higher": [n for n in apart if apart[n] > 0],
        "p": sign_flip_p(list(apart.values())),
    }
