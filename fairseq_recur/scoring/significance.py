"""Paired significance tests of systems against a baseline, over the texts of one test set.

sacrebleu's ``PairedTest`` does both tests for BLEU, chrF and TER. For scores that are means over
texts (ROUGE, COMET, error rates), `fairseq_recur.scoring.resampling` does the same.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result, estimate_ci

from fairseq_recur.errors import Problems
from fairseq_recur.logs import quiet
from fairseq_recur.scoring.comparison import (
    BOOTSTRAP,
    BOTH,
    RANDOMIZATION,
    Comparison,
    MetricResult,
    SystemResult,
    corrected,
)
from fairseq_recur.scoring.mean_metric import MeanMetric
from fairseq_recur.scoring.metrics import build_metric, decimals_of
from fairseq_recur.scoring.resampling import (
    DEFAULT_SEED,
    MOST_DRAWS,
    MOST_SAMPLES,
    bootstrap_p,
    randomization_p,
    resampled_means,
)

TESTS = (BOOTSTRAP, RANDOMIZATION, BOTH)
SACREBLEUS_NAMES = {BOOTSTRAP: "bs", RANDOMIZATION: "ar"}
DEFAULT_SAMPLES = {BOOTSTRAP: 1000, RANDOMIZATION: 10000}  # sacrebleu's
SEED_VARIABLE = "SACREBLEU_SEED"


def compare_systems(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str | Metric | MeanMetric],
    baseline: str,
    test: str = BOOTSTRAP,
    samples: int | None = None,
    seed: int | None = DEFAULT_SEED,
) -> Comparison:
    """Score systems and test each one's difference from the baseline.

    Args:
        systems: detokenized texts by the system's name, the baseline included.
        references: one sequence per reference set, as long as each system's texts.
        metrics: names from ``scoring.metrics.METRICS``, or metrics from ``build_metric`` where
            a setting is needed; COMET always needs one.
        baseline: a key of ``systems``.
        test: "bootstrap" (p, mean and confidence interval), "randomization" (p) or "both".
        samples: number of bootstrap samples or random exchanges; None for sacrebleu's 1000 and
            10000.
        seed: a number from 1, or None for different draws in each call. The environment
            variable SACREBLEU_SEED is ignored.

    Returns:
        For BLEU, chrF and TER, scores, intervals and p-values equal those of sacrebleu's own
        command to the last digit.

    Raises:
        ConfigError: naming all problems, before anything is scored.
    """
    problems = Problems("the systems cannot be compared")
    check_texts(systems, references, baseline, problems)
    check_draws(test, samples, seed, problems, max(map(len, systems.values()), default=1))
    built = build_metrics(metrics, problems)
    for metric in built:
        if isinstance(metric, MeanMetric) and baseline in systems:
            metric.check(len(systems[baseline]), references, problems)
    problems.raise_all()
    tests = (BOOTSTRAP, RANDOMIZATION) if test == BOTH else (test,)
    counts = {name: samples or DEFAULT_SAMPLES[name] for name in tests}
    names = [baseline, *(name for name in systems if name != baseline)]
    named = [(name, systems[name]) for name in names]
    results = []
    for metric in built:
        draws = named, references, counts, seed
        if isinstance(metric, MeanMetric):
            outcomes = _test_means(metric, *draws)
        else:
            outcomes = _test_by_sacrebleu(metric, *draws)
        results.append(_collect(metric, named, outcomes))
    return Comparison(baseline, len(systems[baseline]), counts, seed, tuple(results))


def check_texts(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[Sequence[str]],
    baseline: str,
    problems: Problems,
) -> None:
    """Note texts that `compare_systems` cannot compare."""
    if baseline not in systems:
        problems.add(
            f"the baseline {baseline!r} is not among {', '.join(systems) or 'nothing'}; "
            "choose one of them"
        )
    elif len(systems) < 2:
        problems.add(f"there is nothing to compare with {baseline!r}; give another system")
    if not references:
        problems.add("there are no references; give at least one")
    lengths = {f"system {name!r}": len(texts) for name, texts in systems.items()}
    lengths.update({f"reference {n}": len(texts) for n, texts in enumerate(references, 1)})
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        problems.add(f"expected equally many texts in each system and reference, found {found}")
    elif 0 in lengths.values():
        problems.add("there are no texts; expected at least one")


def check_draws(
    test: str, samples: int | None, seed: int | None, problems: Problems, texts: int = 1
) -> None:
    """Note invalid settings of the tests, for a number of *texts*."""
    most = min(MOST_SAMPLES, max(max(DEFAULT_SAMPLES.values()), MOST_DRAWS // max(texts, 1)))
    if test not in TESTS:
        problems.add(f"unknown test {test!r}; expected one of {', '.join(TESTS)}")
    if samples is not None and not 1 <= samples <= most:
        problems.add(
            f"found {samples} samples, expected at least 1 and at most {most}, because all of them "
            "are in memory at once"
        )
    if seed is not None and seed < 1:
        # sacrebleu would seed only the baseline's draws with 0.
        problems.add(f"found seed {seed}, expected at least 1 (sacrebleu ignores a seed of 0)")


def build_metrics(
    metrics: Sequence[str | Metric | MeanMetric], problems: Problems
) -> list[Metric | MeanMetric]:
    """Build the metrics that are given by name, and note those that cannot be built."""
    if not metrics:
        problems.add("there are no metrics; give at least one")
    built: list[Metric | MeanMetric] = []
    for metric in metrics:
        with problems.gathered():
            built.append(build_metric(metric) if isinstance(metric, str) else metric)
    return built


Named = list[tuple[str, Sequence[str]]]


class TestOutcome(NamedTuple):
    """One test by one metric, with one result per system.

    Attributes:
        name: of the metric.
        signature: of the test.
        results: sacrebleu's ``Result`` of each system.
        different: `SystemResult.different` of each system.
    """

    name: str
    signature: str
    results: list[Any]
    different: list[int]


def _test_by_sacrebleu(
    metric: Metric,
    named: Named,
    references: Sequence[Sequence[str]],
    counts: Mapping[str, int],
    seed: int | None,
) -> dict[str, TestOutcome]:
    """Let sacrebleu do each test; the first of ``named`` is the baseline."""
    outcomes, different = {}, [int(changed.sum()) for changed in _changed(named)]
    for test, samples in counts.items():
        with _sacrebleu_seed(seed), quiet("sacrebleu"):
            kind = SACREBLEUS_NAMES[test]
            paired = PairedTest(
                named, {type(metric).__name__: metric}, references, kind, n_samples=samples
            )
            signatures, columns = paired()
        (name,) = signatures
        outcomes[test] = TestOutcome(name, str(signatures[name]), columns[name], different)
    return outcomes


def _changed(named: Named) -> list[np.ndarray]:
    """Return for each system which of its texts are not identical to the baseline's."""
    baseline = named[0][1]
    return [np.array([a != b for a, b in zip(texts, baseline)]) for _, texts in named]


@contextmanager
def _sacrebleu_seed(seed: int | None) -> Iterator[None]:
    """Set the seed of sacrebleu's draws, which it reads only from the environment."""
    before = os.environ.get(SEED_VARIABLE)
    os.environ[SEED_VARIABLE] = str(seed).lower()
    try:
        yield
    finally:
        if before is None:
            del os.environ[SEED_VARIABLE]
        else:
            os.environ[SEED_VARIABLE] = before


def _test_means(
    metric: MeanMetric,
    named: Named,
    references: Sequence[Sequence[str]],
    counts: Mapping[str, int],
    seed: int | None,
) -> dict[str, TestOutcome]:
    """Do each test on the scores of the texts; the first of ``named`` is the baseline."""
    of_texts = [metric.text_scores(texts, references) for _, texts in named]
    scores = [metric.mean(of_one) for of_one in of_texts]
    arrays = [metric.scale * np.array(of_one, dtype=np.float64) for of_one in of_texts]
    weights = np.array(metric.weights(references))
    # Another text with the same score decides nothing, and neither does the same text with another
    # score, which a network's rounding in another batch gives.
    different = [
        int((changed & (array != arrays[0])).sum())
        for changed, array in zip(_changed(named), arrays)
    ]
    outcomes = {}
    for test, samples in counts.items():
        results = [Result(score) for score in scores]
        for result, array in zip(results, arrays):
            if test == BOOTSTRAP:
                means = resampled_means(array, samples, seed, weights)
                result.mean, result.ci = estimate_ci(means)
            if array is not arrays[0]:
                result.p_value = (
                    bootstrap_p(arrays[0], array, samples, seed, weights)
                    if test == BOOTSTRAP
                    else randomization_p(arrays[0], array, samples, seed)
                )
        drawn = f"|{SACREBLEUS_NAMES[test]}:{samples}|seed:{str(seed).lower()}|"
        signature = metric.get_signature().replace("|", drawn, 1)
        outcomes[test] = TestOutcome(metric.name, signature, results, different)
    return outcomes


def _collect(
    metric: Metric | MeanMetric, named: Named, outcomes: Mapping[str, TestOutcome]
) -> MetricResult:
    """Combine the outcomes of all tests of one metric."""
    name, _, first, different = next(iter(outcomes.values()))
    systems, others = [], [system for system, _ in named[1:]]
    for result in (r for o in outcomes.values() for r in o.results[1:]):
        # sacrebleu's formula counts differences above the observed one: among zeros there is none.
        if result.score == first[0].score:
            result.p_value = 1.0
    differ = dict(zip(others, different[1:]))
    adjusted = {
        test: corrected({s: float(r.p_value) for s, r in zip(others, o.results[1:])}, test, differ)
        for test, o in outcomes.items()
    }
    for i, (system, _) in enumerate(named):
        of_tests = {test: outcome.results[i] for test, outcome in outcomes.items()}
        boot = of_tests.get(BOOTSTRAP, Result(first[i].score))
        systems.append(
            SystemResult(
                system=system,
                score=float(first[i].score),
                difference=float(first[i].score - first[0].score),
                mean=None if boot.mean is None else float(boot.mean),
                interval=None if boot.ci is None else float(boot.ci),
                p={t: float(r.p_value) for t, r in of_tests.items() if r.p_value is not None},
                different=different[i],
                corrected={t: adjusted[t][system] for t in adjusted if system in adjusted[t]},
            )
        )
    return MetricResult(
        metric=name,
        signatures={test: outcome.signature for test, outcome in outcomes.items()},
        higher_is_better=getattr(metric, "higher_is_better", not isinstance(metric, TER)),
        decimals=decimals_of(metric),
        systems=tuple(systems),
    )
