"""A test of two systems that were trained with several seeds, over the texts of one test set.

The score is that of the outputs of all seeds together. A text is exchanged with its outputs of all
seeds: these are about one source, so they are not independent of each other. As in
`fairseq_recur.scoring.significance`, the p-value is about the choice of the texts.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from sacrebleu.metrics.base import Metric

from fairseq_recur.logs import quiet
from fairseq_recur.scoring.mean_metric import MeanMetric
from fairseq_recur.scoring.significance import DEFAULT_SEED, TIE

Outputs = Sequence[Sequence[str]]
"""For each seed, a text for each source."""


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
    system: Outputs,
    control: Outputs,
    references: Sequence[Sequence[str]],
    metric: Metric | MeanMetric,
    samples: int,
    seed: int = DEFAULT_SEED,
) -> Pooled:
    """Test a difference by approximate randomization (Riezler & Maxwell 2005).

    With one seed, difference and p-value are those of `compare_systems`. Only ties differ, which
    count here for every metric.

    Args:
        system, control: of as many seeds each
        references: one sequence per reference set, as long as each output
        metric: from ``build_metric``
        samples: number of random exchanges
        seed: of the exchanges
    """
    with quiet("sacrebleu"):
        a, b = (statistics(metric, outputs, references) for outputs in (system, control))
    kept = np.random.default_rng(seed).integers(2, size=(samples, len(a)), dtype=bool)
    size = len(system) * len(a)
    (name, of_a), (_, of_b) = (score(metric, x.sum(0), size) for x in (a, b))
    observed = of_a - of_b
    # Exchanged texts: what the one system loses, the other has.
    exchanged, total = kept @ a + ~kept @ b, a.sum(0) + b.sum(0)
    drawn = [score(metric, x, size)[1] - score(metric, total - x, size)[1] for x in exchanged]
    least = abs(observed) - TIE * abs(of_b)
    return Pooled(name, observed, (int(np.sum(np.abs(drawn) >= least)) + 1) / (samples + 1))


def statistics(
    metric: Metric | MeanMetric, outputs: Outputs, references: Sequence[Sequence[str]]
) -> np.ndarray:
    """Return what a score is computed from, for each text and summed over the seeds: (N, K)."""
    return np.sum([_of_texts(metric, texts, references) for texts in outputs], axis=0)


def _of_texts(
    metric: Metric | MeanMetric, texts: Sequence[str], references: Sequence[Sequence[str]]
) -> np.ndarray:
    if isinstance(metric, MeanMetric):
        return np.array(metric.text_scores(texts, references), dtype=np.float64)[:, None]
    return np.array(metric._extract_corpus_statistics(texts, references), dtype=np.float64)


def score(metric: Metric | MeanMetric, sums: np.ndarray, size: int) -> tuple[str, float]:
    """Return name and value of the score of *size* texts, given their statistics' sums (K,)."""
    if isinstance(metric, MeanMetric):
        return metric.name, metric.scale * float(sums[0]) / size
    found = metric._aggregate_and_compute([sums.tolist()])
    return found.name, float(found.score)
