"""``fairseq-recur plot recurrence``: curves by loops, periods, and wrong input."""

import math
import random
from pathlib import Path

import numpy
import pytest

from fairseq_recur.cli import main
from fairseq_recur.cli.plot_recurrence import read_tokens
from fairseq_recur.plotting.recurrence import Track, peaks
from tests.series import write_series

pytest.importorskip("matplotlib")


def test_a_series_by_loops() -> None:
    """Autocorrelation by its definition, and which values are alike."""
    rng = random.Random(1)
    x = [math.sin(2 * math.pi * t / 7) + rng.gauss(0, 0.5) + 3 for t in range(60)]
    track = Track("x", numpy.array(x), is_text=False)
    curve, least = track.by_lag(20)
    mean = sum(x) / 60
    variance = sum((v - mean) ** 2 for v in x)
    for lag in range(21):
        expected = sum((x[t] - mean) * (x[t - lag] - mean) for t in range(lag, 60)) / variance
        assert curve[lag] == pytest.approx(expected)
    assert least == pytest.approx(2 / math.sqrt(60))
    found, width = track.recurrences(9, 0.5), 0.5 * math.sqrt(variance / 60)
    assert found.shape == (9, 9)
    for i in range(9):
        for j in range(9):
            assert found[i, j] == (abs(x[i] - x[j]) <= width)


def test_a_text_by_loops() -> None:
    """Shares of equal tokens, and the share of independent ones."""
    rng = random.Random(1)
    x = [rng.choice([0, 0, 0, 1, 2]) for _ in range(80)]
    track = Track("x", numpy.array(x), is_text=True)
    curve, least = track.by_lag(9)
    for lag in range(10):
        equal = sum(x[t] == x[t - lag] for t in range(lag, 80))
        assert curve[lag] == pytest.approx(equal / (80 - lag))
    chance = sum((x.count(k) / 80) ** 2 for k in range(3))
    assert least == pytest.approx(chance + 2 * math.sqrt(chance * (1 - chance) / 80))
    assert track.recurrences(5, 0.0).tolist() == [[a == b for b in x[:5]] for a in x[:5]]


def test_maxima_above_the_level_are_named_by_height() -> None:
    curve = numpy.array([1, 0.9, 0.1, 0.5, 0.5, 0.2, 0.8, 0.1, 0.3, 0.1, 0.9])
    # Not lag 1, not the second of two equal ones, not the last, of which no maximum is known.
    assert peaks(curve, 0.2) == [6, 3, 8]
    assert peaks(curve, 0.4) == [6, 3]


def test_the_period_of_a_series_and_of_a_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    series = str(write_series(tmp_path / "s.csv", 400))
    figure = tmp_path / "figure.png"
    both = ["--variable", "load", "temperature", "--lags", "60"]
    assert main(["plot", "recurrence", series, "--output", str(figure), *both]) == 0
    path, load, temperature = capsys.readouterr().out.splitlines()
    assert path == str(figure) and figure.stat().st_size > 10_000
    for name, line in (("load", load), ("temperature", temperature)):
        assert line.startswith(f"{name}: ")
        assert abs(int(line.split()[1]) - 24) <= 1  # hours; the noise may move it
    text = tmp_path / "text"
    text.write_text("the cat\nsat the\ncat sat\n" * 40)
    for kind, period in (("words", 3), ("characters", 24)):
        words = [str(text), "--output", str(figure), "--kind", kind, "--lags", "30"]
        assert main(["plot", "recurrence", *words, "--shown", "40"]) == 0
        assert f"text, {kind}: {period} (1.000)" in capsys.readouterr().out
    marked = tmp_path / "marked"
    marked.write_text(text.read_text(), encoding="utf-8-sig")
    assert read_tokens(str(marked), "words", 9).tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2]


WRONG = [
    ("text --lags 2", "--lags 2: expected 3 to 10000; give a number in"),
    ("text --lags 300", "--lags 300 needs more positions than the 240 of text"),
    ("text --positions 100 --lags 100", "than the 100 of text"),
    ("text --threshold 0.1", "is read as words; leave it out, or give --kind"),
    ("text --variable a --kind characters", "--variable needs a series"),
    ("s.csv --variable pressure", "no column pressure (--series-columns, --variable); expec"),
    ("s.csv --threshold nan", "--threshold nan: expected 0 to 100; give a number in"),
    ("flat.csv", "flat.csv: x is constant; choose another"),
    ("latin", "latin is not UTF-8 text"),
    ("none", "none: no such file; expected a text"),
    ("empty", "empty has 0 positions; expected more than 3, the smallest --lags: give a longer"),
]


def test_everything_that_is_wrong_is_reported_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--lags 0 --positions 1 --shown 0 --variable a --threshold 3 --output a.gif"
    assert main(["plot", "recurrence", str(tmp_path / "none"), *options.split()]) == 2
    printed = capsys.readouterr().err
    for words in ("--lags 0: ", "--positions 1: ", "--shown 0: ", "--variable needs", "--output a",
                  "--threshold needs a series", f"{tmp_path / 'none'}: no such file"):  # fmt: skip
        assert f"- {words}" in printed


@pytest.mark.parametrize("words, said", WRONG)
def test_wrong_input(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    write_series(tmp_path / "s.csv", 30)
    (tmp_path / "text").write_text("the cat\nsat the\ncat sat\n" * 40)
    (tmp_path / "empty").touch()
    (tmp_path / "latin").write_bytes(b"caf\xe9 " * 300)
    rows = "".join(f"2016-07-01 {hour:02}:00:00,1\n" for hour in range(20))
    (tmp_path / "flat.csv").write_text("date,x\n" + rows)
    assert main(["plot", "recurrence", *words.split(), "--output", "out.png"]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out.png").exists()
