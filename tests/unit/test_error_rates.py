"""Word and phone error rates: by hand, by loops, and in `score` and `compare`."""

import itertools
import json
import random
from fractions import Fraction
from math import comb
from pathlib import Path

import numpy as np
import pytest

from fairseq_recur import cli
from fairseq_recur.errors import ConfigError
from fairseq_recur.scoring.metrics import build_metric, score_corpus
from fairseq_recur.scoring.resampling import EXACT, sign_flip_p
from fairseq_recur.scoring.significance import compare_systems

RATES = ("wer", "per")


def rates(hypotheses: list[str], *references: list[str]) -> list[float]:
    found = score_corpus(hypotheses, references, [build_metric(name) for name in RATES])
    assert [score.name for score in found] == ["WER", "PER"]
    return [score.value for score in found]


def edits(a: list[str], b: list[str]) -> int:
    """Levenshtein's distance by its recursive definition."""
    if not a or not b:
        return len(a) + len(b)
    return min(edits(a[1:], b) + 1, edits(a, b[1:]) + 1, edits(a[1:], b[1:]) + (a[0] != b[0]))


@pytest.mark.parametrize(
    "hypothesis, reference, wer, per",
    [
        ("a b c", "a b c", 0, 0),
        ("a b", "a b c", 100, 100 / 3),
        ("", "a b c", 100, 100),
        ("x y a b c", "a b c", 100, 200 / 3),  # SIGMORPHON's own script counts one edit here
        ("a b c d e f g", "a b", 100, 250),
        ("ab c", "a b c", 100, 200 / 3),  # a phone is what stands between blanks
        ("a  b\tc ", "a b c", 0, 0),
        ("b a", "a b", 100, 100),
    ],
)
def test_one_word(hypothesis: str, reference: str, wer: float, per: float) -> None:
    assert rates([hypothesis], [reference]) == pytest.approx([wer, per])


def test_a_long_word_has_more_phones_and_no_more_words() -> None:
    """One wrong phone of 1 + 9; both words are wrong."""
    assert rates(["a", "b c d e f g h i x"], ["a", "b c d e f g h i j"]) == [50, 10]


def test_accuracy_is_the_share_of_equal_texts(tmp_path: Path) -> None:
    answers, truth = ["true", "false", " true ", "tru e"], ["true", "true", "true", "true"]
    (score,) = score_corpus(answers, [truth], [build_metric("accuracy")])
    assert (score.name, score.value, score.signature) == (
        "Accuracy",
        50,
        "nrefs:1|symbols:whitespace",
    )
    assert score_corpus(answers, [truth, answers], [build_metric("accuracy")])[0].value == 100
    texts = {"base": ["false"] * 40, "good": ["true"] * 40}
    found = compare_systems(texts, [["true"] * 40], ["accuracy"], "base", "both", samples=80)
    good = found.of("Accuracy", "good")
    assert found.metrics[0].higher_is_better and good.difference == 100
    assert good.is_significant("bootstrap") and good.is_significant("randomization")


def test_of_several_pronunciations_the_nearest_counts() -> None:
    first, second = ["a b c", "d"], ["a x c e e", "d"]
    assert rates(["a x c e", "d"], first, second) == [50, pytest.approx(100 / (4 + 1))]
    assert rates(["a x c e e", "d"], first, second) == [0, 0]
    # A pronunciation that is given twice is one pronunciation.
    assert rates(["a x c e", "d"], first, second, first) == rates(["a x c e", "d"], first, second)


def made(count: int = 40) -> dict[str, list[str]]:
    rng = random.Random(3)
    words = [rng.choices("abcd", k=rng.randint(1, 6)) for _ in range(count)]

    def altered(rate: float) -> list[str]:
        return [
            " ".join(rng.choice("abcd") if rng.random() < rate else p for p in w) for w in words
        ]

    return {
        "true": [" ".join(w) for w in words], "base": altered(0.3), "good": altered(0.05),
        "near": altered(0.25),
    }  # fmt: skip


def test_many_words_as_by_loops() -> None:
    texts = made()
    pairs = [(h.split(), r.split()) for h, r in zip(texts["base"], texts["true"])]
    wer = 100 * sum(h != r for h, r in pairs) / len(pairs)
    per = 100 * sum(edits(h, r) for h, r in pairs) / sum(len(r) for _, r in pairs)
    assert rates(texts["base"], texts["true"]) == pytest.approx([wer, per], rel=1e-12)


@pytest.mark.parametrize("other", ["good", "near"])
def test_the_bootstrap_divides_by_the_phones_of_the_drawn_words(other: str) -> None:
    texts = made()
    systems = {name: texts[name] for name in ("base", other)}
    found = compare_systems(systems, [texts["true"]], ["per"], "base", "both", samples=80, seed=4)
    sizes = [len(r.split()) for r in texts["true"]]
    errors = {
        name: [edits(h.split(), r.split()) for h, r in zip(lines, texts["true"])]
        for name, lines in systems.items()
    }
    rows = np.random.default_rng(4).choice(len(sizes), size=(80, len(sizes)), replace=True)
    drawn = {
        name: [Fraction(100 * sum(e[i] for i in row), sum(sizes[i] for i in row)) for row in rows]
        for name, e in errors.items()
    }
    assert found.of("PER", other).mean == pytest.approx(float(sum(drawn[other]) / 80))
    apart = [abs(a - b) for a, b in zip(drawn[other], drawn["base"])]
    observed = Fraction(100 * abs(sum(errors[other]) - sum(errors["base"])), sum(sizes))
    exceeding = sum(a - sum(apart) / 80 > observed for a in apart)
    assert (exceeding == 0) == (other == "good") and exceeding < 80
    result = found.of("PER", other)
    assert result.p["bootstrap"] == (exceeding + 1) / 81
    assert result.difference == pytest.approx(
        float(Fraction(100 * (sum(errors[other]) - sum(errors["base"])), sum(sizes)))
    )


def test_lower_is_better_and_a_worse_system_is_marked_as_well() -> None:
    texts = made()
    for baseline, system, sign in (("base", "good", -1), ("good", "base", 1)):
        pair = {baseline: texts[baseline], system: texts[system]}
        found = compare_systems(pair, [texts["true"]], RATES, baseline, "both", samples=200)
        for metric in found.metrics:
            result = found.of(metric.metric, system)
            assert not metric.higher_is_better and result.difference * sign > 0
            assert result.is_significant("bootstrap") and result.is_significant("randomization")


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = made()
    for name, lines in texts.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    args = ["--reference", str(tmp_path / "true"), "--metrics", "wer", "per"]
    args += ["--system", f"good={tmp_path / 'good'}", "--json", str(tmp_path / "out")]
    assert cli.main(["score", *args]) == 0
    printed = capsys.readouterr().out
    assert "WER: nrefs:1|symbols:whitespace\n" in printed and "PER: nrefs:1|symbols:" in printed
    wer, per = rates(texts["good"], texts["true"])
    assert f"good    {wer:.2f}  {per:.2f}" in printed
    assert cli.main(["compare", *args, "--baseline", f"base={tmp_path / 'base'}"]) == 0
    printed = capsys.readouterr().out
    assert "WER: lower is better\nPER: lower is better\n" in printed
    report = json.loads((tmp_path / "out").read_text())
    assert report["metrics"][1]["systems"][1]["score"] == pytest.approx(per)
    assert "PER: nrefs:1|bs:1000|seed:12345|symbols:whitespace|nltk:" in printed


@pytest.mark.parametrize("empty", ["", "  "])
def test_a_word_without_a_pronunciation_is_refused(empty: str) -> None:
    with pytest.raises(ConfigError, match="1 empty references, the first in line 2; expected"):
        rates(["a", "b"], ["a", empty])
    (score,) = score_corpus(["a", "b"], [["a", ""]], [build_metric("wer")])
    assert score.value == 50


@pytest.mark.parametrize(
    "differences, p",
    [
        ([-1.0], 1.0),
        ([-1.0, -2.0, -3.0], 2 / 8),
        ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0], 2 / 64),
        ([1.0, -1.0], 1.0),
        ([0.0, 0.0], 1.0),
        ([0.1, 0.2, 0.3, -0.3], 12 / 16),
        ([], 1.0),
    ],
)
def test_signs_of_few_differences(differences: list[float], p: float) -> None:
    assert sign_flip_p(differences) == p == sign_flip_p([-d for d in differences])


def test_signs_of_ten_differences_as_by_loops() -> None:
    scores = [Fraction(n, 45) for n in (-9, 4, -13, -2, 0, -7, 1, -5, -4, 2)]
    sums = [abs(sum(s * d for s, d in zip(signs, scores)))
            for signs in itertools.product((1, -1), repeat=10)]  # fmt: skip
    share = sum(total >= abs(sum(scores)) for total in sums) / 1024
    assert 0.01 < share < 0.1 and sign_flip_p([float(d) for d in scores]) == share


def test_more_differences_than_can_be_enumerated() -> None:
    """Drawn at random, but by the same rule: sums as far from 0 as the observed one count."""
    assert sign_flip_p([1.0, -1.0] * EXACT) == 1.0 and sign_flip_p([-1.0] * (EXACT + 1)) < 1e-4
    assert sign_flip_p([0.0] * (EXACT + 1)) == sign_flip_p([0.0] * EXACT) == 1.0
    exact = 2 * sum(comb(21, k) for k in range(15, 22)) / 2**21  # the sign test, for equal sizes
    assert sign_flip_p([1.0] * 15 + [-1.0] * 6) == pytest.approx(exact, abs=0.003)
