"""The benchmarks run, compare equal computations, measure correctly, and have current tables."""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary, LanguagePairDataset

from fairseq_recur.experiments import machine

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
SMALL = (
    "--encoder-embed-dim 32 --encoder-ffn-embed-dim 64 --encoder-layers 1 --decoder-layers 1 "
    "--encoder-attention-heads 4 --decoder-attention-heads 4"
)
NARROW = "--encoder-embed-dim 16 --encoder-ffn-embed-dim 32"
MODULES = {path.stem for path in BENCHMARKS.glob("*.py")}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Import one of the benchmarks by its name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield lambda name: __import__(name)
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def run(
    bench: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    """Run a benchmark in this process; return what it writes."""

    def call(script: str, *words: str) -> dict[str, Any]:
        output = tmp_path / "out.json"
        monkeypatch.setattr(sys, "argv", [script, "--output", str(output), *words])
        bench(script.removesuffix(".py")).main()
        return json.loads(output.read_text())

    return call


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run a benchmark as a command; return what it writes."""

    def call(script: str, *words: str, after: Sequence[str] = ()) -> dict[str, Any]:
        output = tmp_path / "out.json"
        command = [sys.executable, BENCHMARKS / script, *words, "--output", output, *after]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(output.read_text())

    return call


def test_tables_are_up_to_date(bench: Any) -> None:
    tables = bench("tables")
    for page in tables.PAGES:
        text = page.read_text(encoding="utf-8")
        assert tables.PLACE.search(text), page
        assert tables.filled(text) == text, "run python benchmarks/tables.py"


def test_every_result_is_shown_or_cited() -> None:
    pages = (BENCHMARKS / "README.md", *ROOT.glob("docs/*.md"))
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    results = {result.name for result in (BENCHMARKS / "results").iterdir()}
    assert {name for name in results if name not in text} == set()


def test_times_in_turns(bench: Any) -> None:
    measuring, calls = bench("measuring"), []
    times = measuring.in_turns({n: lambda n=n: calls.append(n) for n in "ab"}, 3, inner=2)
    assert "".join(calls) == "ab" + "aabb" + "bbaa" + "aabb"  # a warm-up, then three rounds
    assert [len(times[n]) for n in "ab"] == [3, 3] and min(times["a"]) > 0


def test_what_fails_has_a_row_and_the_others_are_measured(bench: Any, tmp_path: Path) -> None:
    """The file has what is known after each round."""
    file, seen = tmp_path / "x.json", []

    def good() -> None:
        seen.append(len(json.loads(file.read_text())["rows"]) if file.exists() else 0)

    def bad() -> None:
        raise MemoryError("CUDA out of memory.\nTried\nto allocate | 2 GiB")

    report = bench("reports").Report(file)
    with report.attempt(source=9, system="unknown"):
        raise KeyError("no such architecture")
    names = report.add_in_turns(
        {"good": good, "bad": bad}, argparse.Namespace(rounds=3, device="cpu"),
        lambda name, times: {"of_first": times[name]}, lambda name: {"peak_mib": 7.0}, source=9,
    )  # fmt: skip
    rows = json.loads(file.read_text())["rows"]
    assert names == ["good"] and report.errors == 2
    assert seen == [1, 2, 3, 3]  # the warm-up, then rounds: with its own row from the second on
    assert [row["system"] for row in rows] == ["unknown", "bad", "good"]
    error = "MemoryError: CUDA out of memory. ... to allocate | 2 GiB"
    assert rows[1] == {"source": 9, "system": "bad", "error": error}
    assert len(rows[2]["of_first"]) == 3 and rows[2]["peak_mib"] == 7.0
    lines = bench("tables").markdown(bench("tables").training({"rows": rows})).splitlines()
    assert lines[3] == f"| 9 | `bad`: {error.replace('|', '/')} | - | - | - | - | - |"
    assert report.add_in_turns({"bad": bad}, argparse.Namespace(rounds=3, device="cpu"), None) == []


def test_a_form_that_fails_leaves_the_others_their_times(
    bench: Any, run: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a kernel that does not compile, by itself or in the backward pass."""
    ops = bench("ops")
    x = torch.ones(2, requires_grad=True)

    def broken() -> torch.Tensor:
        raise RuntimeError("PTXAS error")

    forms = {"naive": ops.Form(lambda: 2 * x), "dense": ops.Form(broken),
             "chunked": ops.Form(lambda: 2 * x)}  # fmt: skip
    monkeypatch.setitem(ops.CASES, "rem_product", lambda length, device: ops.Case([x], forms))
    monkeypatch.setattr(ops, "COPIED", 2**10)
    (row,) = run(
        "ops.py", "--only", "rem_product", "--lengths", "9", "--rounds", "1", "--no-naive"
    )["rows"]
    assert row["forms"]["dense"] == row["forms"]["check"] == {"error": "RuntimeError: PTXAS error"}
    assert {"forward_ms", "both_ms", "peak_mib"} == {*row["forms"]["chunked"]}
    assert {*row["forms"]} == {"dense", "chunked", "check"}


def test_results_say_that_kernels_were_off(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    command = bench("reports").provenance()["command"]
    monkeypatch.setenv(bench("reports").KERNELS, "0")
    assert bench("reports").provenance()["command"] == f"FAIRSEQ_RECUR_TRITON=0 {command}"
    monkeypatch.delenv(bench("reports").KERNELS)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # without it, there may be other threads
    assert bench("reports").provenance()["command"] == f"OMP_NUM_THREADS=2 {command}"


def test_the_commit_is_not_that_of_a_repository_with_an_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's project is a repository, and this package in its environment is not part of it."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True)
    (tmp_path / "machine.py").touch()
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "machine.py"))
    monkeypatch.delenv(machine.COMMIT, raising=False)
    assert machine.commit() == "unknown"
    subprocess.run([*git, "add", "machine.py"], check=True)
    assert machine.commit() != "unknown"


def test_the_commit_of_a_copy_without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert machine.commit() == "unknown"
    monkeypatch.setenv(machine.COMMIT, "1a2b3c4")
    assert machine.commit() == "1a2b3c4"


def test_peak_of_memory(bench: Any) -> None:
    """At most two of the three tensors of one MiB exist at the same time."""

    def allocate() -> None:
        first = torch.ones(2**18)
        second = first + 1
        del first
        second.exp_()
        second + 1

    assert bench("measuring").peak_mib(allocate) == pytest.approx(2.0, abs=0.1)


NVIDIA_SMI = """#!/bin/sh
echo "$@" > "$0.called"
echo "40, 20, [N/A], 400.0"
echo "80, 30, 100.0, 400.0"
printf "99, 99"
exec sleep 60
"""


def test_shares_of_a_gpu(bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The means of all complete samples of the card that torch uses; the program is ended."""
    program = tmp_path / "nvidia-smi"
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    gpu_usage = bench("gpu_usage")
    card = SimpleNamespace(uuid="12ab")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(gpu_usage, "synchronise", lambda device: None)
    monkeypatch.setattr(gpu_usage, "SETTLING", 0.1)
    monkeypatch.setattr(gpu_usage, "SAMPLING", 1.0)
    calls: list[float] = []
    start = time.perf_counter()
    found = gpu_usage.usage(lambda: (calls.append(1.0), time.sleep(0.05)), "cuda")
    assert found == {"busy_percent": 60.0, "access_percent": 25.0, "power_percent": 25.0}
    assert 1.1 < time.perf_counter() - start < 10
    assert len(calls) >= 5
    words = (tmp_path / "nvidia-smi.called").read_text().split()
    assert words[0] == "--id=GPU-12ab"
    assert words[1].removeprefix("--query-gpu=").split(",") == [
        "utilization.gpu", "utilization.memory", "power.draw", "power.limit"
    ]  # fmt: skip


def test_a_cpu_has_no_shares(bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = bench("gpu_usage").usage
    assert usage(lambda: pytest.fail("called"), "cpu") == {}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert usage(lambda: pytest.fail("called"), "cuda") == {}


def test_tables_have_the_shares_that_were_measured(bench: Any) -> None:
    row = {"system": "a", "parameters": 1e6, "tokens_per_second": [1.0], "of_first": [1.0],
           "flops_allow": 1.0, "peak_mib": 2.0}  # fmt: skip
    rows = [{**row, "busy_percent": 61.6, "power_percent": 7.0}, {**row, "busy_percent": 50.0}]
    head, first, second = bench("tables").training({"rows": rows})
    assert head[6:] == ["GPU busy, %", "power, %"]
    assert (first[6:], second[6:]) == (["62", "7"], ["50", "-"])
    row = {"beam": 4, "source": 9.0, "system": "a", "sentences_per_second": [1.0], "output": 2.0}
    head, cells = bench("tables").decoding({"rows": [{**row, "bleu": 1.0, "access_percent": 3.0}]})
    assert (head[6:], cells[6:]) == (["BLEU", "memory accessed, %"], ["1.00", "3"])


def test_numbers_in_tables_and_reports(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    tables = bench("tables")
    assert tables.spread([1.234, 1.0, 2.0]) == "1.23 (1.00–2.00)"
    assert tables.spread([1.234, 1.0, 2.0], 1) == "1.2 (1.0–2.0)"
    rows = [["name", "ms"], ["a", "1.0 (0.9–1.1)"], ["b", "20"]]
    assert tables.markdown(rows).splitlines()[1] == "| --- | ---: |"
    report = bench("reports").Report(None)
    report.add({"op": "rsa", "length": 8, "forms": {"dense": {"ms": [1.0], "peak_mib": 0.5}}})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "op rsa  length 8"
    assert printed[-1].split() == "dense ms 1.00 (1.00–1.00) peak_mib 0.5".split()


def test_forms_of_every_operation_are_equal(bench: Any) -> None:
    """Once at a length that includes the loops, once where segments and chunks begin."""
    ops = bench("ops")
    ops.BATCH, ops.HEADS, ops.WIDTH, ops.MODEL = 1, 2, 4, 8
    ops.LONGEST = dict(ops.LONGEST, loops=9)
    for name, length in product(ops.CASES, (9, 70)):
        forms = ops.measurable(ops.CASES[name](length, "cpu"), length)
        assert ("naive" in forms) == (length == 9 or name in ("birnn", "rem_product"))
        ops.check_in_double(name, length, "cpu")


def test_a_wrong_form_is_detected(bench: Any) -> None:
    ops = bench("ops")
    case = ops.CASES["rem_product"](9, "cpu")
    right = case.forms["dense"].run
    wrong = {"naive": case.forms["naive"], "dense": ops.Form(lambda: 1.01 * right())}
    with pytest.raises(AssertionError, match="not close"):
        ops.check(case, wrong)


def test_triton_kernels_are_found_and_left_out(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A form that asks whether they can compute is also measured with the answer no."""
    ops = bench("ops")
    monkeypatch.setattr(ops.dispatch, "obstacle", lambda: "")

    def usable() -> bool:
        return os.environ.get(ops.KERNELS) != "0" and not ops.dispatch.obstacle()

    x = torch.ones(2, requires_grad=True)
    own = {
        "fast": ops.Form(lambda: 3 * x if usable() else 2 * x),
        "plain": ops.Form(lambda: 2 * x),
    }
    forms = ops.with_torchs(own)
    assert list(forms) == ["fast", "fast, by torch", "plain"]
    assert [form.run().sum().item() for form in forms.values()] == [6, 4, 4]
    fast, by_torch, _ = forms.values()
    assert ops.difference(ops.Case([x], forms), fast, by_torch) == 0.5
    monkeypatch.setattr(ops.dispatch, "obstacle", lambda: "none")
    assert list(ops.with_torchs(own)) == ["fast", "plain"]


def test_forms_and_steps_of_rsa(bench: Any, run: Callable[..., dict[str, Any]]) -> None:
    """Every form, and fairseq's module beside them, with the same dropout."""
    short = "--rounds 1 --inner 1 --lengths 16 --attention-dropout 0.3".split()
    rows = run("rsa_forms.py", *short)["rows"]
    assert [(row["side"], row["length"]) for row in rows] == [("encoder", 16), ("decoder", 16)]
    forms = bench("rsa_forms")
    assert all(list(row["ms"]) == ["dot", *forms.FORMS] for row in rows)
    for form in ("dot", "mixed"):
        module = forms.build("encoder", "cpu", rsa_form=form, attention_dropout=0.3)
        assert module.dropout_probability == 0.3
        assert (module.mixture is None) == (form == "dot")
    steps = run("steps.py", *"--rounds 1 --steps 2 --keys 64".split())["rows"]
    assert [row["op"] for row in steps] == ["rsa", "srformer"]


def test_operations(run: Callable[..., dict[str, Any]]) -> None:
    found = run("ops.py", "--only", "rem_product", "--lengths", "32", "--rounds", "2")
    (row,) = found["rows"]
    assert set(row["forms"]) == {"naive", "dense", "chunked"} and found["versions"]["torch"]
    assert 0 < row["limit_ms"]["forward"] < row["limit_ms"]["both"] and found["gb_per_second"] > 0
    for form in row["forms"].values():
        assert len(form["forward_ms"]) == len(form["both_ms"]) == 2 and form["peak_mib"] > 0


SHARED_KIB = {"sm_80": 163, "sm_90": 227, "gfx942": 64}
"""Of a GPU, at most for one program."""


CORES = {"scan": 2, "scan_back": 2, "multiply": 1, "correlate": 1, "mix_maps": 1, "mix_back": 1}
CORES |= {"attend": 1, "attend_back_queries": 1, "attend_back_keys": 1}
"""Kernels with products, and how often an operation compiles each: numbers do not count."""

ELEMENTWISE = ("energies", "energies_back", "gru", "gru_back")


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
@pytest.mark.parametrize(
    "target,widths,names",
    [
        ("sm_90", [16], ["attend", "correlate", "mix_back", "energies", "gru"]),
        *(
            pytest.param(target, [8, 64, 128], [*CORES, *ELEMENTWISE], marks=pytest.mark.slow)
            for target in SHARED_KIB
        ),
    ],
)
def test_kernels_compile_without_a_gpu(
    bench: Any, run: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch,
    target: str, widths: list[int], names: list[str],
) -> None:  # fmt: skip
    """In every precision, once per way to start it; programs fit into the GPU's memories."""
    precisions = bench("kernels").PRECISIONS[bench("kernels").TARGETS[target][0]]
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(ROOT / ".cache" / "triton"))
    found = run(
        "kernels.py", "--targets", target, "--widths", *map(str, widths), "--kernels", *names
    )["rows"]
    kinds = Counter((row["width"], row["kernel"], row["dtype"], row["precision"]) for row in found)
    expected = {
        (width, name, "float32", precision): CORES[name]
        for width in widths
        for precision in precisions
        for name in names
        if name in CORES
    }
    expected |= {
        (width, name, dtype, "elementwise"): 1
        for width in widths
        for dtype in ("float32", "float16", "bfloat16")
        for name in names
        if name in ELEMENTWISE
    }
    assert kinds == expected
    for row in found:
        assert 0 < row["registers"] <= 512 and 0 <= row["spill_bytes"] <= 128, row
        assert 0 <= row["shared_bytes"] <= 1024 * SHARED_KIB[target], row


def test_numbers_of_two_commits(bench: Any) -> None:
    row = {"op": "rsa", "forms": {"dense": {"ms": [3.0, 1.0, 2.0]}}, "of_first": [1.0], "length": 8}
    assert dict(bench("compare").numbers(row)) == {"forms dense ms": 2.0}


BOTH = {"before": [{"a": 2.0, "b": 1.0}], "after": [{"a": 3.0, "c": 1.0}]}


def test_numbers_that_only_one_commit_has_are_named(bench: Any) -> None:
    rows, others = bench("compare").compared(BOTH)
    assert rows == [{"what": "a", "before": [2.0], "after": [3.0], "ratio": [1.5]}]
    assert others == ["b", "c"]
    assert bench("compare").compared({"before": [{"a": 1.0}], "after": []}) == ([], [])


@pytest.mark.parametrize("result", [{"attention": {}}, {"rows": {"rsa": {"training": {}}}}])
def test_results_without_rows_are_not_compared(bench: Any, result: dict[str, Any]) -> None:
    """Such as those of srformer_flops.py and memory.py."""
    with pytest.raises(SystemExit, match="error: the results of x.py have no rows of measured"):
        bench("compare").by_name(result, "x.py")


def test_the_comparison_is_written_after_each_round(
    bench: Any, run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    compare, file, calls = bench("compare"), tmp_path / "out.json", []

    def measured(package: Path, words: list[str], output: Path) -> dict[str, float]:
        rows = json.loads(file.read_text())["rows"] if file.exists() else []
        calls.append([len(row["ratio"]) for row in rows])
        return BOTH["after" if package.name == "after" else "before"][0]

    monkeypatch.setattr(compare, "measured", measured)
    monkeypatch.setattr(compare, "unpack", lambda commit, folder: folder)
    found = run("compare.py", "x", "y", "--rounds", "2", "--", "ops.py")
    assert calls == [[], [], [1], [1]]
    assert [row["ratio"] for row in found["rows"]] == [[1.5, 1.5]]
    assert "not in every run, so not compared:\n    b\n    c\n" in capsys.readouterr().err


def test_cells_of_kernels_are_below_their_targets(bench: Any) -> None:
    """A kernel that one of the targets lacks, or that comes in another order."""

    def row(kernel: str, target: str, registers: int) -> dict[str, Any]:
        names = {"kernel": kernel, "dtype": "fp32", "precision": "tf32", "width": 8}
        return {**names, "target": target, "registers": registers, "spill_bytes": 0,
                "shared_bytes": 1}  # fmt: skip

    rows = [
        row("a", "x", 1),
        row("a", "y", 2),
        row("b", "y", 3),
        row("c", "y", 4),
        row("c", "x", 5),
    ]
    table = list(bench("tables").kernels({"rows": rows}))
    cells = [line[-2:] for line in table]
    assert cells == [
        ["x", "y"], ["1 / 0 / 1", "2 / 0 / 1"], ["-", "3 / 0 / 1"], ["5 / 0 / 1", "4 / 0 / 1"]
    ]  # fmt: skip


def test_the_table_of_decoding_has_scores_or_memory(bench: Any) -> None:
    row = {"beam": 4, "source": 9.0, "system": "a", "sentences_per_second": [1.0], "output": 2.0}
    for more, title, value in (
        ({"bleu": 3.0}, ["BLEU"], ["3.00"]), ({"peak_mib": 7.4}, ["peak, MiB"], ["7"]),
        ({}, [], []),
    ):  # fmt: skip
        head, cells = bench("tables").decoding({"rows": [{**row, **more}]})
        assert (head[6:], cells[6:]) == (title, value)


def test_speeds_are_compared_with_one_process(
    bench: Any, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scaling = bench("scaling")
    monkeypatch.setattr(scaling, "words_per_second", lambda name, count, *_: 10.0 * count)
    monkeypatch.setattr(scaling, "prepared", lambda args, name: nullcontext(tmp_path))
    words = "--processes 2 1 --rounds 1 --arch transformer"
    rows = run("scaling.py", "processes", *words.split())["rows"]
    assert [(row["processes"], row["of_one"]) for row in rows] == [(2, [2.0]), (1, [1.0])]


def test_unknown_words_of_a_reference_are_not_what_a_model_writes(bench: Any) -> None:
    """fairseq-generate writes them as <<unk>>, a model writes <unk>."""
    words = Dictionary()
    for word in "abcd":
        words.add_symbol(word)
    ids = torch.tensor([words.index(word) for word in "abcd"] + [words.unk(), words.eos()])
    decoder = bench("decoding").Decoder("x", None, SimpleNamespace(target_dictionary=words), None)
    score = partial(bench("decoding").score, decoder, [{"target": ids[None]}])
    assert score([[{"tokens": ids}]], "bleu", "subword_nmt") < 100
    ids[-2] = words.index("a")
    assert score([[{"tokens": ids}]], "bleu", "subword_nmt") == pytest.approx(100)


def test_lines_that_are_too_long_are_counted(bench: Any) -> None:
    words = Dictionary()
    lines = [torch.tensor([4] * n + [2]) for n in (3, 9, 5)]
    data = LanguagePairDataset(lines, [4, 10, 6], words, lines, [4, 10, 6], words)
    task = SimpleNamespace(dataset=lambda split: data)
    model = SimpleNamespace(max_source_positions=8, max_target_positions=8)
    assert bench("systems").left_out(task, SimpleNamespace(model=model), "test") == 1


@pytest.mark.parametrize(
    "words, error",
    [
        ("decoding.py --data d --checkpoints a=b --length 3", "--length: not used"),
        ("decoding.py --data d --checkpoints a=b --precision bf16", "--precision: not used"),
        ("decoding.py --metric rougeL", "--metric: not used"),
        ("decoding.py --max-len-b 9", "--max-len-b: not used"),
        ("decoding.py --data d", "expected both, or neither"),
        ("decoding.py --data d --checkpoints a.pt", "a.pt: expected NAME=FILE"),
        ("decoding.py --text foo", 'foo: expected "sentences", or a length'),
        ("planning.py published --repeats 3", "--output, --repeats: not used for published"),
        ("planning.py papers", "--output: not used for papers"),
        ("rsa_forms.py --lengths 64 4096", "--lengths 4096: expected 1 to 2048"),
        ("scaling.py processes --processes 1 2 3", "2 does not divide 3"),
        ("scaling.py processes --processes 2 4", "expected 1 among them"),
        ("scaling.py length --max-tokens 9", "--max-tokens: not used"),
        ("scaling.py processes --lengths 9 --beam 2", "--lengths, --beam: not used"),
        ("scaling.py decoding --updates 2", "--updates: not used for decoding"),
        ("scaling.py processes --arch transformer+fused", "+fused: not available"),
        ("training.py --arch transformer+fast", "expected fused, or FLAG=VALUE"),
        ("streams.py forecasters --vocabulary 9", "--vocabulary: not used"),
        ("streams.py language-models --length 9 --steps 9", "expected less than --length 9"),
    ],
)
def test_unused_options_and_unknown_systems_are_refused(
    run: Callable[..., Any], words: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(*words.split())
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "training.py --arch transformer transformer+fused transformer_biarn "
        "transformer_biarn+recurrence-steps=2 --updates 1 --max-tokens 256",
        "training.py --arch rsa_transformer --updates 1 --max-tokens 256 --precision bf16",
        "scaling.py length --lengths 256",
        "scaling.py decoding --lengths 64 --beam 2",
        "scaling.py processes --arch transformer_biarn --max-tokens 256",
        "decoding.py --text 256 --batches 1 --beams 2 --length 8",
    ],
)
def test_whole_models(start: Callable[..., dict[str, Any]], words: str) -> None:
    """Every system has a row, with one measurement per round."""
    small = ["--vocabulary", "4000", "--rounds", "2", "--flags", SMALL]
    rows = start(*words.split(), *small)["rows"]
    assert len({row["system"] for row in rows}) == (1 if "processes" in words else len(rows))
    for row in rows:
        speed = row.get("tokens_per_second") or row["sentences_per_second"]
        assert len(speed) == 2 and min(speed) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, flags",
    [
        ("informer log_sparse xl_forecaster --horizons 48", NARROW),
        ("codet5_small --tokens 32", SMALL),
    ],
)  # fmt: skip
def test_hosts(start: Callable[..., dict[str, Any]], words: str, flags: str) -> None:
    """RSA has a row beside each host, with one ratio per round, and a few parameters more."""
    options = ["--rounds", "2", "--updates", "1", f"--flags={flags}"]
    rows = start("hosts.py", "--hosts", *words.split(), *options)["rows"]
    assert [row["host"] for row in rows] == words.split(" --")[0].split()
    for row in rows:
        plain, rsa = row["ms"].values()
        assert row["of_host"] == pytest.approx([b / a for a, b in zip(plain, rsa)], rel=2e-3)
        few, more = row["parameters"].values()
        # xl_forecaster's own relative positions are more than the matrices in their place.
        assert 0 < more - few < 100 or row["host"] == "xl_forecaster"


def test_hosts_of_systems(bench: Any) -> None:
    host_of, names = bench("streams").host_of, ["informer+dropout=0", "rsa_informer", "rsa_xl_lm"]
    assert [host_of(name, names) for name in names] == [names[0], names[0], None]
    two = ["informer", "informer+dropout=0"]
    assert [host_of(name, two) for name in two] == two


@pytest.mark.slow
def test_adaptive_softmax_in_streams(start: Callable[..., dict[str, Any]]) -> None:
    """WikiText-103's models are measured with the loss of their adaptive softmax."""
    rows = start(
        "streams.py", "language-models", "--arch", "transformer_lm_wiki103",
        *"--vocabulary 100 --criterion adaptive_loss --rows 2 --length 12 --steps 4".split(),
        *"--updates 1 --rounds 1 --precision bf16".split(),
        "--flags", "--decoder-embed-dim 16 --decoder-input-dim 16 --decoder-output-dim 16 "
        "--decoder-ffn-embed-dim 16 --decoder-layers 2 --adaptive-input-cutoff 20,40 "
        "--adaptive-softmax-cutoff 20,40",
    )["rows"]  # fmt: skip
    assert [row["work"] for row in rows] == ["training", "decoding"]
    assert all(min(row["per_second"]) > 0 for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, small",
    [
        (
            "language-models --arch transformer_lm rsa_transformer_lm xl_lm rsa_tlb_lm --length 12",
            "--decoder-embed-dim 16 --decoder-input-dim 16 --decoder-output-dim 16 "
            "--decoder-ffn-embed-dim 16 --decoder-layers 2",
        ),
        (
            "forecasters --arch xl_forecaster rsa_xl_forecaster --length 12 --precision bf16",
            "--encoder-embed-dim 16 --encoder-ffn-embed-dim 16 --encoder-layers 1",
        ),
    ],
    ids=["language models", "forecasters"],
)
def test_streams(start: Callable[..., dict[str, Any]], words: str, small: str) -> None:
    """Every system has a row for training and one for decoding; hosts are compared with."""
    sizes = "--rows 2 --steps 4 --updates 2 --rounds 2".split()
    rows = start("streams.py", *words.split(), *sizes, "--flags", small)["rows"]
    names = words.split("--arch ")[1].split(" --")[0].split()
    assert [(row["work"], row["system"]) for row in rows] == [
        (work, name) for work in ("training", "decoding") for name in names
    ]
    for row in rows:
        assert len(row["per_second"]) == len(row["of_first"]) == 2 and min(row["per_second"]) > 0
        assert ("of_host" in row) == (row["system"] != "rsa_tlb_lm")
        assert ("peak_mib" in row) == (row["work"] == "training")
        assert ("flops_allow" in row) == ("peak_mib" in row and "lm" in row["system"])


@pytest.mark.slow
def test_two_commits(start: Callable[..., dict[str, Any]]) -> None:
    """The same package twice."""
    found = start(
        "compare.py", "HEAD", ".", "--rounds", "2",
        after=["--", "ops.py", "--only", "rem_product", "--lengths", "32"],
    )  # fmt: skip
    assert {row["what"].split(": ")[1] for row in found["rows"]} >= {"forms dense both_ms"}
    assert found["before"] == "HEAD" and all(min(row["ratio"]) > 0 for row in found["rows"])


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no PYTHONSAFEPATH")
def test_a_command_imports_the_package_of_pythonpath(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not the one in the current folder, with which compare.py would measure one twice."""
    program = (
        "import json, sys\n"
        "line = {{'num_updates': '{updates}', 'wps': '{wps}', 'loss': '1', 'epoch': 1}}\n"
        "log = sys.argv[sys.argv.index('--log-file') + 1]\n"
        "open(log, 'w').write(json.dumps(line))\n"
    )
    systems = bench("systems")
    for folder, wps in (("here", 1), ("asked", 2)):
        (tmp_path / folder).mkdir()
        text = program.format(updates=systems.WARM_UP + 1, wps=wps)
        (tmp_path / folder / "stand_in.py").write_text(text)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "asked"))
    found = systems.train_by_command(["stand_in"], tmp_path / "bin", [], 1, 1)
    assert found["wps"] == 2
