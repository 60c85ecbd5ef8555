"""P-values of a mean's difference between two systems, from draws over texts or languages.

Paired bootstrap resampling: Koehn 2004, *Statistical Significance Tests for Machine Translation
Evaluation*. Approximate randomization: Riezler & Maxwell 2005, *On Some Pitfalls in Automatic
Evaluation and Significance Testing for MT*. Both follow the formulas and the draws of sacrebleu,
whose tests take its own metrics only: one seed gives the same resamples of the texts for every
metric.

Only ties differ. sacrebleu counts the draws above the observed difference; here, those that equal
it count as well. Scores of few values, such as right and wrong, make most draws ties: without them
one word could decide, with the smallest p.
"""

from collections.abc import Sequence

import numpy as np

DEFAULT_SEED = 12345  # sacrebleu's
EXACT = 20  # differences; all signs of more would take too much memory
SIGNS = 100_000  # random choices of signs for more differences
MOST_SAMPLES = 1_000_000
MOST_DRAWS = 10**8  # samples times texts: all are in memory at once, for BLEU ten numbers each

# Sums of the same numbers in another order differ in their last digits. A difference below this,
# relative to the mean absolute difference between two systems, is a tie.
TIE = 1e-10


def resampled_means(
    scores: np.ndarray, samples: int, seed: int | None, weights: np.ndarray | None = None
) -> np.ndarray:
    """Return the means of resampled test sets of the same size, drawn with replacement.

    Args:
        scores: one per text.
        samples: number of test sets.
        seed: of the draws.
        weights: `MeanMetric.weights`; None if all are 1.
    """
    texts = len(scores)
    drawn = np.random.default_rng(seed).choice(texts, size=(samples, texts), replace=True)
    means = scores[drawn].mean(axis=1)
    return means if weights is None else means / weights[drawn].mean(axis=1)


def bootstrap_p(
    baseline: np.ndarray,
    system: np.ndarray,
    samples: int,
    seed: int | None,
    weights: np.ndarray | None = None,
) -> float:
    """Return the p-value of paired bootstrap resampling (Koehn 2004), by sacrebleu's formula.

    The absolute differences of the resampled means vary around their mean as those of equal
    systems would around zero. The p-value is the share at least as large as the observed
    difference. If all differences have the same sign, this counts only one of the two tails.

    Args:
        baseline, system: the scores of their texts.
        samples, seed, weights: as for `resampled_means`.
    """
    differences = system - baseline
    drawn = np.abs(resampled_means(differences, samples, seed, weights))
    return _p_value(drawn - drawn.mean(), differences)


def randomization_p(
    baseline: np.ndarray, system: np.ndarray, samples: int, seed: int | None
) -> float:
    """Return the two-sided p-value of approximate randomization (Riezler & Maxwell 2005).

    If the systems were equal, it would not matter which of them wrote which text. So texts are
    exchanged at random; the p-value is the share of differences at least as large as the
    observed one.

    Args:
        baseline, system: the scores of their texts.
        samples, seed: number of draws, and their seed.
    """
    differences = system - baseline
    # The difference of the exchanged systems is sum(kept) - sum(exchanged).
    drawn = np.abs(2 * kept_sums(differences, samples, seed) - differences.sum())
    return _p_value(drawn / len(differences), differences)


def kept_sums(values: np.ndarray, samples: int, seed: int | None) -> np.ndarray:
    """Return sums over the texts that are not exchanged: a coin decides for each text.

    Args:
        values: of each text, (N) or (N, K).
        samples, seed: number of draws, and their seed.

    Returns:
        The sum of each draw, (samples) or (samples, K).
    """
    texts = len(values)
    kept = np.random.default_rng(seed).integers(2, size=(samples, texts), dtype=bool)
    # Some draws at a time, because numpy needs the coins as numbers.
    rows = max(1, 2**22 // texts)
    return np.concatenate([kept[i : i + rows] @ values for i in range(0, samples, rows)])


def sign_flip_p(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of the exact permutation test for paired values.

    Fisher 1935, *The Design of Experiments*. If two systems were equal, the sign of each
    difference would be a matter of chance. The p-value is the share of the 2^n assignments of
    signs whose sum is as far from 0 as the observed one, so it is at least 2^(1-n).

    Args:
        differences: of two systems, one per language or other independent unit.
    """
    if len(differences) > EXACT:
        values = np.array(differences)
        return randomization_p(np.zeros_like(values), values, SIGNS, DEFAULT_SEED)
    sums = np.zeros(1)
    for difference in differences:
        sums = np.concatenate([sums + difference, sums - difference])
    least = abs(sums[0]) - TIE * np.abs(differences).sum()
    return float(np.mean(np.abs(sums) >= least))


def _p_value(drawn: np.ndarray, differences: np.ndarray) -> float:
    """Return the share of draws as far from 0 as the observed difference, itself one draw."""
    least = abs(differences.mean()) - TIE * np.abs(differences).mean()
    return (int(np.sum(drawn >= least)) + 1) / (len(drawn) + 1)
