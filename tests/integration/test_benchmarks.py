"""The benchmarks run, compare what is equal, count right, and their tables are up to date."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
SMALL = (
    "--encoder-embed-dim 32 --encoder-ffn-embed-dim 64 --encoder-layers 1 --decoder-layers 1 "
    "--encoder-attention-heads 4 --decoder-attention-heads 4"
)
MODULES = ("measuring", "ops", "tables", "compare", "systems", "decoding", "scaling", "training")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import one of the benchmarks by its name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield lambda name: __import__(name)
    for name in MODULES:
        sys.modules.pop(name, None)


def run(output: Path, *words: str) -> dict[str, Any]:
    """What a benchmark writes."""
    command = [sys.executable, str(BENCHMARKS / words[0]), *words[1:], "--output", str(output)]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(output.read_text())


def test_tables_are_up_to_date(bench: Any) -> None:
    tables = bench("tables")
    for page in tables.PAGES:
        text = page.read_text(encoding="utf-8")
        assert tables.PLACE.search(text), page
        assert tables.filled(text) == text, "run python benchmarks/tables.py"


def test_every_result_is_shown_or_cited() -> None:
    pages = [
        p.read_text(encoding="utf-8") for p in (BENCHMARKS / "README.md", *ROOT.glob("docs/*.md"))
    ]
    for result in sorted((BENCHMARKS / "results").iterdir()):
        assert any(result.name in page for page in pages), f"{result.name} is in no page"


def test_turns_begin_with_each(bench: Any) -> None:
    assert list(bench("measuring").turns(3, ["a", "b"])) == ["a", "b", "b", "a", "a", "b"]


def test_times_in_turns(bench: Any) -> None:
    measuring, calls = bench("measuring"), []
    times = measuring.in_turns({n: lambda n=n: calls.append(n) for n in "ab"}, 2, inner=2)
    assert "".join(calls) == "ab" + "aabb" + "bbaa"  # a round that does not count, then two
    assert [len(times[n]) for n in "ab"] == [2, 2] and min(times["a"]) > 0


def test_peak_of_memory(bench: Any) -> None:
    """Two tensors of a MiB at a time, of three in all."""

    def run() -> None:
        first = torch.ones(2**18)
        second = first + 1
        del first
        second.exp_()
        second + 1

    assert bench("measuring").peak_mib(run) == pytest.approx(2.0, abs=0.1)


def test_digits_and_alignment(bench: Any) -> None:
    tables = bench("tables")
    assert tables.digits([1.234, 1.0, 2.0]) == "1.23 (1.00–2.00)"
    rows = [["name", "ms"], ["a", "1.0 (0.9–1.1)"], ["b", "20"]]
    assert tables.markdown(rows).splitlines()[1] == "| --- | ---: |"


@pytest.mark.parametrize(
    "name", ["rsa", "rem_product", "relative", "directional", "biarn", "birnn", "srformer"]
)
def test_forms_of_an_operation_are_equal(bench: Any, name: str) -> None:
    """At a length at which the loops are measured, and one at which segments and chunks begin."""
    ops = bench("ops")
    ops.BATCH, ops.HEADS, ops.WIDTH, ops.MODEL = 1, 2, 4, 8
    ops.LONGEST = dict(ops.LONGEST, loops=9)
    for length in (9, 70):
        forms = ops.measurable(ops.CASES[name](length, "cpu"), length)
        assert ("naive" in forms) == (length == 9 or name in ("birnn", "rem_product"))
        ops.check_in_double(name, length, "cpu")


def test_a_wrong_form_is_seen(bench: Any) -> None:
    ops = bench("ops")
    case = ops.rem_product(9, "cpu")
    right = case.forms["dense"].run
    wrong = {"naive": case.forms["naive"], "dense": ops.Form(lambda: 1.01 * right())}
    with pytest.raises(AssertionError, match="not close"):
        ops.check(case, wrong)


def test_operations(tmp_path: Path) -> None:
    found = run(
        tmp_path / "o.json", "ops.py", "--only", "rem_product", "--lengths", "32", "--rounds", "2"
    )
    (row,) = found["rows"]
    assert set(row["forms"]) == {"naive", "dense", "chunked"} and found["versions"]["torch"]
    assert all(len(form["both_ms"]) == 2 and form["peak_mib"] > 0 for form in row["forms"].values())


def test_numbers_of_two_commits(bench: Any) -> None:
    row = {"op": "rsa", "forms": {"dense": {"ms": [3.0, 1.0, 2.0]}}, "of_first": [1.0], "length": 8}
    assert dict(bench("compare").numbers(row)) == {"forms dense ms": 2.0}


@pytest.mark.parametrize(
    "words, error",
    [
        (
            ["decoding.py", "--data", "d", "--checkpoints", "a=b", "--length", "3"],
            "--length: not used",
        ),
        (["decoding.py", "--metric", "rougeL"], "--metric: not used"),
        (["decoding.py", "--max-len-b", "9"], "--max-len-b: not used"),
        (["scaling.py", "length", "--max-tokens", "9"], "--max-tokens: not used"),
        (["scaling.py", "processes", "--lengths", "9"], "--lengths: not used"),
        (["scaling.py", "processes", "--arch", "transformer+fused"], "leave it out"),
        (["training.py", "--arch", "transformer+fast"], "expected fused, or FLAG=VALUE"),
    ],
)
def test_what_changes_nothing_or_is_not_there_is_refused(
    bench: Any, words: list[str], error: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Options that are not used in a mode, and systems that there are not."""
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit):
        bench(words[0].removesuffix(".py")).main()
    assert error in capsys.readouterr().err


def test_names_of_systems(bench: Any) -> None:
    parse = bench("systems").parse_name
    assert parse("srformer") == ("srformer", [], False)
    named = parse("srformer+segment-size=32+fused+target-length=8")
    assert named == ("srformer", ["--segment-size", "32", "--target-length", "8"], True)


def test_joined_documents(bench: Any) -> None:
    pairs = [(list("abc"), ["x"] * 3), (list("defg"), ["y"]), (list("h"), ["z"])]
    assert list(bench("systems").joined(pairs, 6)) == [("a b c d e f", "")]
    assert list(bench("systems").joined(pairs[:1] * 32, 48))[0][1] == "x x x"


COMMANDS: list[list[str]] = [
    ["training.py", "--arch", "transformer", "transformer+fused", "transformer_biarn",
     "transformer_biarn+recurrence-steps=2", "--updates", "1", "--max-tokens", "256"],
    ["scaling.py", "length", "--lengths", "256"],
    ["scaling.py", "processes", "--arch", "transformer_biarn", "--max-tokens", "256"],
    ["decoding.py", "--text", "256", "--batches", "1", "--beams", "2", "--length", "8"],
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:2]))
def test_whole_models(tmp_path: Path, words: list[str]) -> None:
    """Each benchmark with small models; every system has a row, with as many numbers as rounds."""
    small = ["--vocabulary", "4000", "--rounds", "2", "--flags", SMALL]
    rows = run(tmp_path / "out.json", *words, *small)["rows"]
    assert len({row["system"] for row in rows}) == (1 if "processes" in words else len(rows))
    for row in rows:
        speed = row.get("tokens_per_second") or row["sentences_per_second"]
        assert len(speed) == 2 and min(speed) > 0


@pytest.mark.slow
def test_two_commits(tmp_path: Path) -> None:
    found = run_compare(tmp_path / "c.json")
    assert {row["what"].split(": ")[1] for row in found["rows"]} >= {"forms dense both_ms"}
    assert found["before"] == "HEAD" and all(min(row["ratio"]) > 0 for row in found["rows"])


def run_compare(output: Path) -> dict[str, Any]:
    """Two times the same package."""
    words = ["HEAD", ".", "--rounds", "2", "--output", str(output), "--", "ops.py", "--only"]
    command = [
        sys.executable,
        str(BENCHMARKS / "compare.py"),
        *words,
        "rem_product",
        "--lengths",
        "32",
    ]
    subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, check=True)
    return json.loads(output.read_text())
