"""The test of several seeds together, against sacreBLEU's for one seed and against loops."""

from random import Random

import numpy as np
import pytest

from fairseq_recur.scoring.comparison import RANDOMIZATION
from fairseq_recur.scoring.metrics import build_metric
from fairseq_recur.scoring.pooled import compare_pooled, statistics
from fairseq_recur.scoring.significance import compare_systems

WORDS = "a small house by the old river stands under a tall green tree near it".split()
METRICS = ["bleu", "chrf", "ter", "rougeL", "per"]


def texts(seed: int, changed: float, count: int = 30) -> tuple[list[str], list[str]]:
    """References, and a system's outputs that have other words in some places."""
    draw = Random(7)
    references = [" ".join(draw.choices(WORDS, k=draw.randint(5, 12))) for _ in range(count)]
    draw = Random(seed)
    outputs = [
        " ".join(draw.choice(WORDS) if draw.random() < changed else w for w in line.split())
        for line in references
    ]
    return references, outputs


@pytest.mark.parametrize("name", [name for name in METRICS if name != "ter"])  # ties, see there
def test_one_seed_is_the_usual_test(name: str) -> None:
    references, control = texts(1, 0.5)
    _, system = texts(2, 0.45)
    metric = build_metric(name)
    a, b = (statistics(metric, x, [references]) for x in (system, control))
    found = compare_pooled([a], [b], metric, 200)
    usual = compare_systems(
        {"control": control, "system": system},
        [references],
        [metric],
        "control",
        RANDOMIZATION,
        200,
    )
    expected = usual.of(found.metric, "system")
    assert found.difference == pytest.approx(expected.difference, abs=1e-9)
    assert found.p == pytest.approx(expected.p[RANDOMIZATION], abs=1e-9) and 0.01 < found.p < 1


@pytest.mark.parametrize("name", METRICS)
def test_three_seeds_are_exchanged_together(name: str) -> None:
    """Each draw is scored as a corpus of its own, that has every source three times."""
    references, _ = texts(0, 0.0)
    system = [texts(seed, 0.46)[1] for seed in (1, 2, 3)]
    control = [texts(seed, 0.5)[1] for seed in (4, 5, 6)]
    metric, samples = build_metric(name), 20
    a, b = ([statistics(metric, x, [references]) for x in seeds] for seeds in (system, control))
    found = compare_pooled(a, b, metric, samples)

    def score(outputs: list[list[str]]) -> float:
        return metric.corpus_score(sum(outputs, []), [references * 3]).score

    observed = score(system) - score(control)
    assert found.difference == pytest.approx(observed, abs=1e-9)
    larger = 0
    for kept in np.random.default_rng(12345).integers(2, size=(samples, 30), dtype=bool):
        pairs = [
            [(x, y) if keep else (y, x) for x, y, keep in zip(a, b, kept)]
            for a, b in zip(system, control)
        ]
        first, second = ([[pair[i] for pair in of_seed] for of_seed in pairs] for i in (0, 1))
        larger += abs(score(first) - score(second)) >= abs(observed) - 1e-9
    assert found.p == pytest.approx((larger + 1) / (samples + 1)) and 0 < larger < samples


def test_ties_count() -> None:
    """Of few texts many exchanges give the observed difference again, but for its last digits."""
    references, system = texts(16, 0.5, 6)
    _, control = texts(116, 0.5, 6)
    metric, samples = build_metric("rougeL"), 200
    a, b = (statistics(metric, x, [references]) for x in (system, control))
    differences = (a - b)[:, 0]
    kept = np.random.default_rng(12345).integers(2, size=(samples, 6), dtype=bool)
    sums = np.abs(np.where(kept, differences, -differences).sum(1))
    larger = np.sum(sums >= abs(differences.sum()) - 1e-9)
    assert 0 < larger < samples
    assert compare_pooled([a], [b], metric, samples).p == pytest.approx((larger + 1) / 201)


def test_equal_systems() -> None:
    references, outputs = texts(1, 0.5)
    metric = build_metric("bleu")
    same = [statistics(metric, outputs, [references])] * 2
    found = compare_pooled(same, same, metric, 20)
    assert (found.difference, found.p) == (0.0, 1.0)
