"""A test of two systems that were trained with several seeds, over the texts of one test set.

The score is that of the outputs of all seeds together. A text is exchanged with its outputs of all
seeds: these are about one source, so they are not independent of each other. As in
`fairseq_recur.scoring.resampling`, the p-value is about the choice of the texts.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from sacrebleu.metrics.base import Metric

from fairseq_recur.logs import quiet
from fairseq_recur.scoring.mean_metric import MeanMetric
from fairseq_recur.scoring.resampling import DEFAULT_SEED, TIE, kept_sums


class Pooled(NamedTuple):
    """The result of `compare_pooled`.

    Attributes:
        metric: its name, as `compare_systems` has it.
        difference: of the pooled scores, the system's minus the control's.
        p: of approximate randomization, two-sided.
    """

    metric: str
    difference: float
    p: float


def compare_pooled(
    system: Sequence[np.ndarray],
    control: Sequence[np.ndarray],
    metric: Metric | MeanMetric,
    samples: int,
) -> Pooled:
    """Test a difference by approximate randomization (Riezler & Maxwell 2005).

    With one seed, difference and p-value are those of `compare_systems`. Only ties differ, which
    count here for every metric.

    Args:
        system, control: one array of `statistics` per seed, equally many for both
        metric: the metric of these statistics
        samples: number of random exchanges
    """
    a, b = np.sum(system, axis=0), np.sum(control, axis=0)
    size = len(system) * len(a)
    (name, of_a), (_, of_b) = (score(metric, x.sum(0), size) for x in (a, b))
    observed = of_a - of_b
    # Exchanged texts: what the one system loses, the other has.
    exchanged = kept_sums(a - b, samples, DEFAULT_SEED) + b.sum(0)
    total = a.sum(0) + b.sum(0)
    drawn = [score(metric, x, size)[1] - score(metric, total - x, size)[1] for x in exchanged]
    least = abs(observed) - TIE * (abs(of_a) + abs(of_b))
    return Pooled(name, observed, (int(np.sum(np.abs(drawn) >= least)) + 1) / (samples + 1))


def statistics(
    metric: Metric | MeanMetric, texts: Sequence[str], references: Sequence[Sequence[str]]
) -> np.ndarray:
    """Return what a score is computed from, for each text: (N, K).

    Args:
        metric: from ``build_metric``
        texts: of a system
        references: one sequence per reference set, as long as *texts*
    """
    if isinstance(metric, MeanMetric):
        return np.array(metric.text_scores(texts, references), dtype=np.float64)[:, None]
    with quiet("sacrebleu"):
        return np.array(metric._extract_corpus_statistics(texts, references), dtype=np.float64)


def score(metric: Metric | MeanMetric, sums: np.ndarray, size: int) -> tuple[str, float]:
    """Return name and value of the score of *size* texts, given their statistics' sums (K,)."""
    if isinstance(metric, MeanMetric):
        return metric.name, metric.scale * float(sums[0]) / size
    found = metric._aggregate_and_compute([sums.tolist()])
    return found.name, float(found.score)
