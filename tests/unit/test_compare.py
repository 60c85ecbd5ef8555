"""`compare`: sacrebleu's own figures, the same tests on ROUGE and COMET, and bad input."""

import json
import os
import random
from fractions import Fraction
from math import comb
from pathlib import Path

import numpy as np
import pytest

from fairseq_recur import cli
from fairseq_recur.errors import ConfigError, Problems
from fairseq_recur.scoring.comparison import SystemResult, comparison_table, corrected
from fairseq_recur.scoring.metrics import METRICS, build_metric, score_corpus
from fairseq_recur.scoring.resampling import bootstrap_p, randomization_p, resampled_means
from fairseq_recur.scoring.rouge import VARIANTS, Rouge
from fairseq_recur.scoring.significance import check_draws, compare_systems
from tests.sacrebleu_command import run_sacrebleu

WORDS = "the The a cat dogs sat on mats Houses is wasn't big, small; 20% state-of-the-art!".split()


def make_texts(count: int = 40) -> dict[str, list[str]]:
    """Two references, and systems that are more or less near to the first."""
    rng = random.Random(5)

    def sentence() -> list[str]:
        return rng.choices(WORDS, k=rng.randint(4, 12)) + ["."]

    def altered(rate: float) -> list[str]:
        return [
            " ".join(rng.choice(WORDS) if rng.random() < rate else w for w in words)
            for words in first
        ]

    first = [sentence() for _ in range(count)]
    texts = {"one": [" ".join(words) for words in first], "two": altered(0.3)}
    texts.update(base=altered(0.35), near=altered(0.3), good=altered(0.02))
    return texts


TEXTS = make_texts()
SYSTEMS = {name: TEXTS[name] for name in ("base", "near", "good")}
REFERENCES = [TEXTS["one"], TEXTS["two"]]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    for name, lines in TEXTS.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {name: str(tmp_path / name) for name in TEXTS}


def run_compare(files: dict[str, str], *arguments: str, references: int = 1) -> dict:
    """Everything that `compare` writes for the systems above."""
    report = str(Path(files["base"]).parent / "report.json")
    wanted = ["compare", "--baseline", f"base={files['base']}", "--json", report]
    for name in ("near", "good"):
        wanted += ["--system", f"{name}={files[name]}"]
    for name in ("one", "two")[:references]:
        wanted += ["--reference", files[name]]
    assert cli.main([*wanted, *arguments]) == 0
    return json.loads(Path(report).read_text(encoding="utf-8"))


# Our metrics and options, the same for sacrebleu's command, the number of references, the seed.
SETTINGS = [
    ("bleu", [], ["-m", "bleu"], 1, None),
    ("bleu", ["--lowercase"], ["-m", "bleu", "-lc"], 2, 3),
    ("bleu", ["--tokenize", "char"], ["-m", "bleu", "-tok", "char"], 2, 12345),
    ("bleu", ["--tokenize", "none"], ["-m", "bleu", "-tok", "none"], 1, 2**31),
    ("chrf", ["--lowercase"], ["-m", "chrf", "--chrf-lowercase"], 1, 7),
    ("chrf", [], ["-m", "chrf"], 2, 1),
    ("chrf++", [], ["-m", "chrf", "--chrf-word-order", "2"], 2, 7),
    ("ter", [], ["-m", "ter"], 1, 11),
]


@pytest.mark.parametrize("metric, options, command, references, seed", SETTINGS)
def test_figures_are_those_of_sacrebleus_command(
    files: dict[str, str],
    metric: str,
    options: list[str],
    command: list[str],
    references: int,
    seed: int | None,
) -> None:
    """Both paired tests, and the mean and interval of --confidence, from the same seed."""
    given = [files[name] for name in ("one", "two")[:references]]
    outputs = [files[name] for name in SYSTEMS]
    common = [*command, "-f", "json", "-w", "12"]
    seeded = [] if seed is None else ["--seed", str(seed)]
    report = run_compare(
        files, "--metrics", metric, "--test", "both", "--samples", "150", *options, *seeded,
        references=references,
    )  # fmt: skip
    (found,) = report["metrics"]
    assert [system["system"] for system in found["systems"]] == list(SYSTEMS)
    assert report["seed"] == (seed or 12345)
    assert report["samples"] == {"bootstrap": 150, "randomization": 150}
    for test, flag in (("bootstrap", "bs"), ("randomization", "ar")):
        expected = run_sacrebleu(
            [*given, "-i", *outputs, *common, f"--paired-{flag}", f"--paired-{flag}-n", 150], seed
        )
        for ours, theirs in zip(found["systems"], expected):
            result = theirs[found["metric"]]
            assert ours["score"] == result["score"]
            assert ours["p"].get(test) == result["p_value"]
            if test == "bootstrap":
                assert (ours["mean"], ours["interval"]) == (result["mean"], result["ci"])
            assert ours["difference"] == result["score"] - expected[0][found["metric"]]["score"]
        assert found["systems"][1]["p"][test] > 1 / 151  # else a wrong seed would not be seen
        signature = found["signatures"][test]
        assert f"nrefs:{references}|{flag}:150|seed:{seed or 12345}|" in signature
    confidence = ["--confidence", "--confidence-n", 150]
    expected = run_sacrebleu([*given, "-i", files["near"], *common, *confidence], seed)
    near = found["systems"][1]
    assert f"{near['score']:.10f}" == f"{expected['score']:.10f}"
    # sacrebleu sums here in float32 and there in float64: seven digits agree.
    assert near["mean"] == pytest.approx(expected["confidence_mean"], rel=1e-6)
    assert near["interval"] == pytest.approx(expected["confidence_var"], rel=1e-5)
    assert found["signatures"]["bootstrap"] == expected["signature"]


def test_scores_are_those_of_score(files: dict[str, str]) -> None:
    names = [name for name in METRICS if name != "comet"]
    found = compare_systems(SYSTEMS, REFERENCES, names, "base", samples=2)
    for name, texts in SYSTEMS.items():
        scores = score_corpus(texts, REFERENCES, [build_metric(name) for name in names])
        for score, result in zip(scores, found.metrics):
            assert (result.metric, result.decimals) == (score.name, score.decimals)
            assert found.of(score.name, name).score == score.value
    assert [m.metric for m in found.metrics if not m.higher_is_better] == ["TER", "WER", "PER"]


def test_seed_is_the_environments_unless_it_is_given(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--metrics", "bleu", "rouge1", "--samples", "40"]

    def means(*more: str) -> list[float]:
        report = run_compare(files, *options, *more)
        return [metric["systems"][1]["mean"] for metric in report["metrics"]]

    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    default, other = means(), means("--seed", "5")
    assert all(a != b for a, b in zip(default, other))
    assert "SACREBLEU_SEED" not in os.environ
    monkeypatch.setenv("SACREBLEU_SEED", "5")
    assert means() == other and means("--seed", "12345") == default
    assert os.environ["SACREBLEU_SEED"] == "5"
    monkeypatch.setenv("SACREBLEU_SEED", "none")
    assert run_compare(files, *options)["seed"] is None
    unseeded = means()
    assert all(a != b for a, b in zip(unseeded, means()))


def loop_p(test: str, baseline: list[float], system: list[float], samples: int, seed: int) -> float:
    """The tests as loops over draws and texts, in exact arithmetic; ties count."""
    rng = np.random.default_rng(seed)
    pairs = [(Fraction(a), Fraction(b)) for a, b in zip(baseline, system)]
    n = len(pairs)
    observed = abs(sum(b for _, b in pairs) - sum(a for a, _ in pairs)) / n
    statistics = []
    if test == "bootstrap":
        for row in rng.choice(n, size=(samples, n), replace=True):
            drawn = [pairs[i] for i in row]
            statistics.append(abs(sum(b for _, b in drawn) - sum(a for a, _ in drawn)) / n)
        mean = sum(statistics) / samples
        statistics = [statistic - mean for statistic in statistics]
    else:
        for row in rng.integers(2, size=(samples, n), dtype=bool):
            first = sum(a if keep else b for (a, b), keep in zip(pairs, row))
            second = sum(b if keep else a for (a, b), keep in zip(pairs, row))
            statistics.append(abs(first - second) / n)
    as_far = sum(statistic >= observed for statistic in statistics)
    return (as_far + 1) / (samples + 1)


@pytest.mark.parametrize("test", ["bootstrap", "randomization"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_rouge_is_tested_as_by_loops(test: str, variant: str) -> None:
    rouge = Rouge([variant])
    scores = {
        name: [100 * rouge.score([r], h)[variant] for r, h in zip(TEXTS["one"], texts)]
        for name, texts in SYSTEMS.items()
    }
    found = compare_systems(SYSTEMS, REFERENCES[:1], [variant], "base", test, 60, 9)
    for name in ("near", "good"):
        expected = loop_p(test, scores["base"], scores[name], 60, 9)
        assert found.of(variant, name).p == {test: expected}
    assert 1 / 61 < found.of(variant, "near").p[test] < 1
    kind = {"bootstrap": "bs", "randomization": "ar"}[test]
    (alone,) = score_corpus(TEXTS["base"], REFERENCES[:1], [build_metric(variant)])
    first, rest = alone.signature.split("|", 1)
    assert found.metrics[0].signatures[test] == f"{first}|{kind}:60|seed:9|{rest}"


@pytest.mark.parametrize("test", ["bootstrap", "randomization"])
@pytest.mark.parametrize("seed", range(1, 6))
def test_ties_count(test: str, seed: int) -> None:
    """Few texts of few values: many draws equal the observed difference."""
    values = np.random.default_rng(seed).choice([0.1, 0.3, 0.7], size=(2, 6))
    p_value = {"bootstrap": bootstrap_p, "randomization": randomization_p}[test]
    found = p_value(values[0], values[1], 64, seed)
    # The exact differences of the rounded decimals, as people see them.
    exact = [[Fraction(str(v)) for v in row] for row in values.tolist()]
    assert found == loop_p(test, *exact, 64, seed)


def test_many_texts_are_worked_through_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    baseline, system = rng.normal(size=(2, 2**18))
    coins = np.random.default_rng(4).integers(2, size=(50, 2**18), dtype=bool)
    differences = system - baseline
    drawn = [abs(differences[c].sum() - differences[~c].sum()) for c in coins]
    expected = (sum(d >= abs(differences.sum()) for d in drawn) + 1) / 51
    assert randomization_p(baseline, system, 50, 4) == expected


@pytest.mark.parametrize("better, worse", [(20, 10), (19, 11), (6, 0), (7, 7), (1, 0)])
def test_randomization_of_right_and_wrong_is_the_sign_test(better: int, worse: int) -> None:
    """Exchanges of 0 and 1 are coins: two tails of the binomial distribution."""
    differences = np.repeat([1.0, -1.0, 0.0], [better, worse, 170])
    total = better + worse
    tail = sum(comb(total, k) for k in range(better, total + 1)) / 2**total
    found = randomization_p(np.zeros(len(differences)), differences, 10000, 12345)
    assert found == pytest.approx(min(1.0, 2 * tail), abs=0.02)


def test_mean_and_interval_of_rouge_by_their_definition() -> None:
    found = compare_systems(SYSTEMS, REFERENCES, ["rouge2"], "base", samples=120, seed=6)
    rouge = Rouge(["rouge2"])
    scores = [100 * rouge.score(r, h)["rouge2"] for *r, h in zip(*REFERENCES, TEXTS["near"])]
    rows = np.random.default_rng(6).choice(len(scores), size=(120, len(scores)), replace=True)
    means = sorted(sum(scores[i] for i in row) / len(scores) for row in rows)
    result = found.of("rouge2", "near")
    assert result.mean == pytest.approx(sum(means) / 120)
    assert result.interval == pytest.approx((means[-1 - 3] - means[3]) / 2)  # 120 / 40 at each end
    assert resampled_means(np.array(scores), 120, 6).shape == (120,)


@pytest.mark.parametrize("metric", ["bleu", "ter", "rougeL"])
def test_the_same_output_is_never_significant(metric: str) -> None:
    systems = {"base": TEXTS["base"], "same": list(TEXTS["base"])}
    found = compare_systems(systems, REFERENCES, [metric], "base", "both", samples=50)
    (same,) = found.metrics[0].systems[1:]
    assert same.p == same.corrected == {"bootstrap": 1.0, "randomization": 1.0}
    assert (same.difference, same.different) == (0, 0)
    assert not same.is_significant("bootstrap") and not same.is_significant("randomization")
    assert " *" not in comparison_table(found).split("\n\n")[0]


@pytest.mark.parametrize("metric", ["wer", "per", "accuracy", "rouge1"])
def test_one_text_that_decides_is_no_evidence(metric: str) -> None:
    """A hundred others differ too, but both are wrong in the same measure."""
    systems = {"base": ["x"] * 101, "other": ["y"] * 100 + ["a"]}
    found = compare_systems(systems, [["a"] * 101], [metric], "base", "both", samples=200)
    (other,) = found.metrics[0].systems[1:]
    assert other.difference and other.different == 1 and other.p["randomization"] == 1.0
    assert not other.is_significant("bootstrap") and not other.is_significant("randomization")


def test_another_score_of_the_same_text_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network rounds a text's score differently in another batch."""
    scores = iter([[0.5] * 40, [0.5 + 1e-7] * 39 + [0.9]])
    metric = build_metric("rouge1")
    monkeypatch.setattr(metric, "text_scores", lambda *given: next(scores))
    systems = {"base": ["x"] * 40, "other": ["x"] * 39 + ["y"]}
    found = compare_systems(systems, [["a"] * 40], [metric], "base", samples=50)
    assert found.metrics[0].systems[1].different == 1


def test_equal_scores_are_no_evidence() -> None:
    """Two accuracies of a third, by different right answers."""
    systems = {"base": ["a", "x", "x"], "other": ["x", "b", "x"]}
    found = compare_systems(systems, [["a", "b", "c"]], ["accuracy"], "base", "both", samples=50)
    (other,) = found.metrics[0].systems[1:]
    assert (other.difference, other.different) == (0, 2)
    assert other.p == {"bootstrap": 1.0, "randomization": 1.0}


@pytest.mark.parametrize("metric", ["bleu", "chrf", "ter", "rouge1"])
def test_a_much_better_system_has_the_smallest_p(metric: str) -> None:
    found = compare_systems(SYSTEMS, REFERENCES[:1], [metric], "base", "both", samples=99)
    (good,) = [s for s in found.metrics[0].systems if s.system == "good"]
    assert good.p == {"bootstrap": 0.01, "randomization": 0.01}
    assert good.is_significant("bootstrap") and good.is_significant("randomization")
    assert good.corrected == {"bootstrap": 0.04, "randomization": 0.02}  # of two systems
    assert good.is_significant("bootstrap", 0.041) and not good.is_significant("bootstrap", 0.04)
    assert (good.difference > 0) == found.metrics[0].higher_is_better


def test_correction_for_the_number_of_systems() -> None:
    """Holm's method; sacreBLEU's bootstrap counts one tail, so its p is doubled first."""
    p = {"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.5}
    assert corrected(p, "randomization") == pytest.approx(
        {"a": 0.04, "c": 0.09, "b": 0.09, "d": 0.5}
    )
    assert corrected(p, "bootstrap") == pytest.approx({"a": 0.08, "c": 0.18, "b": 0.18, "d": 1.0})
    assert corrected({"a": 0.3}, "randomization") == {"a": 0.3} and corrected({}, "bootstrap") == {}


@pytest.mark.parametrize("different, p", [(0, 1), (1, 1), (5, 2**-4), (6, 2**-5), (20, 0.001)])
def test_significance_needs_texts_that_differ(different: int, p: float) -> None:
    """Of the 2^k exchanges of k texts two give the difference itself."""
    for test, value in (("randomization", 0.001), ("bootstrap", 0.0005)):
        assert corrected({"a": value}, test, {"a": different}) == {"a": p}
        result = SystemResult("a", 1.0, 1.0, None, None, {}, different, corrected={test: p})
        assert result.is_significant(test) == (different >= 6)
        others = {"a": value, "b": 1.0, "c": 1.0}
        few = corrected(others, test, {"a": different, "b": 50, "c": 50})
        assert few["a"] == min(1, 3 * p), "the correction is of the attainable value"
        assert not result.is_significant("another")  # was not done


def test_one_differing_text_has_a_corrected_p_of_one() -> None:
    """sacrebleu's formula alone gives the smallest p there is."""
    systems = {"base": ["a b c d e"] * 40, "other": ["a b c d e"] * 39 + ["a b c d x"]}
    found = compare_systems(systems, [["a b c d e"] * 40], ["bleu"], "base", "both", samples=99)
    (other,) = found.metrics[0].systems[1:]
    assert other.different == 1 and other.p["randomization"] < 0.05
    assert other.corrected == {"bootstrap": 1.0, "randomization": 1.0}


@pytest.mark.parametrize("scores", ["any", "right or wrong"])
def test_false_alarms_of_equal_systems(scores: str) -> None:
    """Of two systems that are equally good, randomization calls one better as often as it says;
    sacrebleu's formula for the bootstrap, which sees one tail, twice as often."""
    rng = np.random.default_rng(2)
    alarms = {bootstrap_p: 0, randomization_p: 0}
    for trial in range(1, 1001):
        if scores == "any":
            pair = rng.normal(50, 10, 100) + rng.normal(0, 5, (2, 100))
        else:
            easy = rng.random(100) < 0.5
            pair = 100.0 * (easy ^ (rng.random((2, 100)) < 0.15))
        for p_value in alarms:
            alarms[p_value] += p_value(*pair, 200, trial) < 0.05
    # Of few values, the next possible p below 0.05 may be far below it: fewer alarms.
    least = 30 if scores == "any" else 20
    assert least <= alarms[randomization_p] <= (70 if scores == "any" else 50)
    assert 80 <= alarms[bootstrap_p] <= 130


def test_draws_fit_into_the_memory() -> None:
    """Fewer samples are allowed of more texts, but sacrebleu's defaults always."""
    for texts, most in ((1, 1_000_000), (2_000, 50_000), (10**6, 10_000)):
        problems = Problems("")
        check_draws("both", most, None, problems, texts)
        assert not problems.found
        check_draws("both", most + 1, None, problems, texts)
        assert f"at most {most}" in problems.found[0]


BAD_DRAWS = [
    ({"test": "t"}, "unknown test 't'; expected one of bootstrap, randomization, both"),
    ({"samples": 0}, "found 0 samples, expected at least 1"),
    ({"samples": -5}, "found -5 samples"),
    ({"samples": 1_000_001}, "expected at least 1 and at most 1000000, because all"),
    ({"seed": 0}, "found seed 0, expected at least 1"),
    ({"baseline": "bass"}, "the baseline 'bass' is not among base, near, good"),
    ({"systems": {"base": TEXTS["base"]}}, "there is nothing to compare with 'base'"),
    ({"systems": {**SYSTEMS, "near": ["a"]}}, "system 'near': 1, .*reference 1: 40"),
    ({"references": [TEXTS["one"], ["a", "b"]]}, "reference 2: 2"),
    ({"references": []}, "no references"),
    ({"systems": {"base": [], "near": []}, "references": [[]]}, "no texts"),
    ({"metrics": []}, "no metrics"),
    ({"metrics": ["bleu", "blue"]}, "unknown metric 'blue'; expected one of bleu, chrf"),
    ({"metrics": ["comet"]}, "COMET needs the source"),
]


@pytest.mark.parametrize("changed, message", BAD_DRAWS)
def test_bad_arguments_are_refused(
    changed: dict, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairseq_recur.scoring.significance.PairedTest", None)  # nothing is scored
    arguments = {
        "systems": SYSTEMS, "references": REFERENCES, "metrics": ["bleu"], "baseline": "base"
    }  # fmt: skip
    with pytest.raises(ConfigError, match=message):
        compare_systems(**{**arguments, **changed})


def test_all_that_is_wrong_is_reported_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        compare_systems(SYSTEMS, REFERENCES, ["x", "y"], "no", "t", samples=0, seed=-1)
    message = str(raised.value)
    assert message.startswith("the systems cannot be compared:\n- ")
    for part in ("metric 'x'", "metric 'y'", "baseline 'no'", "test 't'", "0 samples", "seed -1"):
        assert message.count(part) == 1
    assert len(message.splitlines()) == 7


def test_bad_command_lines(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "short").write_text("one\nline more\n")
    good = ["--reference", files["one"], "--baseline", f"base={files['base']}"]
    near = ["--system", f"near={files['near']}"]
    for arguments, message in (
        ([*good, "--system", f"a={tmp_path}/short"], f"{tmp_path}/short has 2 lines, expected 40"),
        ([*good, "--system", f"base={files['near']}"], "system 'base' occurs twice"),
        ([*good, *near, *near], "system 'near' occurs twice"),
        ([*good, "--system", "=x"], "expected NAME=FILE"),
        ([*good, "--system", "a=gone"], "cannot read gone: there is no such file"),
        ([*good, *near, "--reference", f"{tmp_path}/short"], "short has 2 lines, but the first"),
        ([*good, *near, "--samples", "0"], "found 0 samples, expected at least 1"),
        ([*good, *near, "--seed", "x"], "--seed: found 'x', expected a positive integer or none"),
        ([*good, *near, "--seed", "0"], "found seed 0"),
        (
            [*good, *near, "--json", f"{tmp_path}/gone/x.json"],
            f"no folder {tmp_path}/gone; create it",
        ),
        ([*good, *near, "--metrics", "blue"], "invalid choice: 'blue'"),
        (good, "the following arguments are required: --system"),
    ):
        try:
            status = cli.main(["compare", *arguments])
        except SystemExit as left:  # argparse's own message
            status = left.code
        printed = capsys.readouterr()
        assert (status, printed.out) == (2, ""), arguments
        assert printed.err.count(message) == 1 and "cannot be compared" not in printed.err


def test_several_faults_of_a_command_line_are_one_message(
    files: dict[str, str], capsys: pytest.CaptureFixture
) -> None:
    arguments = ["--reference", files["one"], "--baseline", "base=gone", "--system", "near=lost"]
    assert cli.main(["compare", *arguments, "--samples", "0"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "fairseq-recur: error: the systems cannot be compared:"
    assert [line[:20] for line in lines[1:]] == [
        "- found 0 samples, e", "- cannot read gone: ", "- cannot read lost: "
    ]  # fmt: skip


def test_table_and_markdown(files: dict[str, str], capsys: pytest.CaptureFixture) -> None:
    options = ["--metrics", "bleu", "ter", "rouge1", "--test", "both", "--samples", "99"]
    report = run_compare(files, *options)
    table = capsys.readouterr().out
    body, notes = table.split("\n\n")
    head, rule, *rows = body.splitlines()
    assert head.split("  ")[0] == "metric" and set(rule) == {"-"} and len(rows) == 9
    assert len({row.index("±") for row in rows}) == 1
    for metric, of_one in zip(report["metrics"], (rows[:3], rows[3:6], rows[6:])):
        for system, row in zip(metric["systems"], of_one):
            expected = [metric["metric"], system["system"], f"{system['score']:.2f}"]
            expected += [f"{system['difference']:+.2f}"] if system["p"] else []
            expected += [f"{system['mean']:.2f}", "±", f"{system['interval']:.2f}"]
            for test, p in system["p"].items():
                expected += [f"{p:.4f}", f"{system['corrected'][test]:.4f}"]
                expected += ["*"] * system["significant"][test]
            assert row.split() == expected
    marked = [s["significant"]["bootstrap"] for m in report["metrics"] for s in m["systems"][1:]]
    assert True in marked and False in marked
    assert (
        "*: corrected p < 0.05" in notes
        and report["level"] == 0.05
        and "TER: lower is better" in notes
    )
    for metric in report["metrics"]:
        assert all(f"{metric['metric']}: {s}\n" in notes for s in metric["signatures"].values())
    run_compare(files, *options, "--markdown")
    first, second, *cells = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert second == "| --- | --- |" + " ---: |" * 8
    assert [line.replace("|", " ").split() for line in cells] == [row.split() for row in rows]


def test_randomization_alone_has_no_interval(
    files: dict[str, str], capsys: pytest.CaptureFixture
) -> None:
    options = ["--metrics", "bleu", "rouge1", "--test", "randomization"]
    report = run_compare(files, *options, "--samples", "1000")
    table = capsys.readouterr().out
    assert "±" not in table and "mean" not in table and "(bootstrap)" not in table
    assert all(s["mean"] is s["interval"] is None for m in report["metrics"] for s in m["systems"])


@pytest.mark.parametrize("name", ["rouge1", "wer", "per"])
def test_the_same_texts_are_scored_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    metric, scored = build_metric(name), []
    score_texts = type(metric).score_texts
    monkeypatch.setattr(
        type(metric), "score_texts", lambda *given: scored.append(given) or score_texts(*given)
    )
    first = metric.text_scores(["a b", "c"], [["a", "c"]])
    first.append(7.0)  # a copy: it does not reach the next caller
    assert metric.text_scores(("a b", "c"), [("a", "c")]) == first[:2] and len(scored) == 1
    metric.text_scores(["a b", "c"], [["a", "d"]])
    compare_systems({"x": ["a b", "c"], "y": ["a", "c"]}, [["a", "c"]], [metric], "x", samples=9)
    assert len(scored) == 3
