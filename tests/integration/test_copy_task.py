"""The example of the copy task: its samples, its commands, and its runner in miniature."""

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from math import log
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from fairseq.data import Dictionary, TokenBlockDataset
from fairseq.data.data_utils import load_indexed_dataset

from fairseq_recur.experiments import runner
from tests.docs.commands import parse
from tests.running import USER_DIR

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "copy_task"
RECORDS = sorted((EXAMPLE / "results").glob("*.json"))
MODULES = ("run", "curves", "figure", "samples", "trainings")
SMALL = {"LENGTHS": "24", "SAMPLES": "32", "UPDATES": "3", "WIDTH": "16", "CHUNK": "8"}
"""Two epochs of two updates."""

# Replaces fairseq-recur: 3 bits a symbol; the second epoch of the RSA models copies nearly all.
PROGRAM = """#!{python}
import json, pathlib, sys
words = dict(zip(sys.argv, sys.argv[1:]))
with open(pathlib.Path(words["--save-dir"]) / "calls", "a") as calls:
    print(*sys.argv[1:], file=calls)
with open(words["--log-file"], "a") as log:
    for epoch in range(1, int(words["--max-epoch"]) + 1):
        right = 99.5 if words["--arch"].startswith("rsa_") and epoch > 1 else 50.0
        for update in (2 * epoch - 1, 2 * epoch):
            step = {{"epoch": epoch, "update": update / 2, "loss": "3.0"}}
            print(json.dumps({{**step, "num_updates": str(update)}}), file=log)
        found = {{"valid_accuracy": str(right), "valid_num_updates": str(2 * epoch)}}
        print(json.dumps({{"epoch": epoch, **found}}), file=log)
"""


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    for name in MODULES:
        sys.modules.pop(name, None)
    yield importlib.import_module
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def miniature(
    modules: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., int]:
    """Run run.py in this process with small settings; returns its exit status."""

    def call(*arguments: str, **variables: str) -> int:
        with monkeypatch.context() as patch:
            for name, value in {**SMALL, "WORK": str(tmp_path / "work"), **variables}.items():
                patch.setenv(name, value)
            return modules("run").main(list(arguments))

    return call


def test_samples_repeat_ten_symbols(modules: Callable[[str], Any], tmp_path: Path) -> None:
    """All of them are different, also in validation, and fairseq reads each as a block."""
    samples = modules("samples")
    samples.write(tmp_path / "data", "tile", 24, 20)
    words = Dictionary.load(str(tmp_path / "data" / "dict.txt"))
    assert words.symbols[words.nspecial :] == samples.SYMBOLS
    begins = set()
    for name in ("train", "valid"):
        rows = load_indexed_dataset(str(tmp_path / "data" / name), words)
        blocks = TokenBlockDataset(
            rows, rows.sizes, 24, words.pad(), words.eos(), "none", include_targets=True
        )
        assert len(blocks) == len(rows) == 20
        for source, target, _ in (blocks[place] for place in range(20)):
            assert source[0] == words.eos() and torch.equal(source[1:], target[:-1])
            text = "".join(words[int(token)] for token in target)
            assert re.fullmatch(r"(\d{10}\|)\1\d\d", text) and text[22:] == text[:2]
            begins.add(text[:10])
    assert len(begins) == 40
    assert numpy.array_equal(samples.draw("tile", 5, 24), samples.draw("tile", 9, 24)[:5])


def test_the_other_samples_repeat_a_sequence_once(modules: Callable[[str], Any]) -> None:
    """Of 6 to 10 symbols where a sample has 24; the separator fills the rest."""
    samples = modules("samples")
    rows = samples.draw("duplicate", 200, 24)
    texts = ["".join(samples.SYMBOLS[place] for place in row) for row in rows]
    copies = [re.fullmatch(r"(\d{6,10})\|\1\|+", text) for text in texts]
    assert all(copies) and {len(text) for text in texts} == {24} and len({*texts}) == 200
    assert {len(copy[1]) for copy in copies} == {6, 7, 8, 9, 10}
    assert numpy.array_equal(samples.draw("duplicate", 50, 24), rows[:50])
    assert [samples.possible("duplicate", n) for n in (12, 24)] == [11_000, 11_111_000_000]


@pytest.fixture
def drawn(
    modules: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[[list[dict[str, Any]]], Any]:
    """Draw results, and return the figure."""
    module, figures = modules("figure"), []
    monkeypatch.setattr(module, "save", lambda figure, file: figures.append(figure))

    def draw(results: list[dict[str, Any]]) -> Any:
        module.draw(results, Path("figure.png"))
        return figures[-1]

    return draw


def result(system: str, length: int = 24, *after: int) -> dict[str, Any]:
    """The result of a training with an accuracy of 0.1 times its updates, after some of them."""
    updates = [*after] or [2, 4]
    accuracy = {"updates": updates, "values": [n / 10 for n in updates]}
    loss = {"updates": [1, 2], "values": [2.0, 1.0]}
    cell = {"length": length, "samples": 32, "system": system, "seed": 1}
    return {**cell, "accuracy": accuracy, "loss": loss}


def titles(figure: Any) -> list[str]:
    return [panel.get_title() for panel in figure.axes]


def curves_of(panel: Any) -> dict[str, list[float]]:
    """What a panel of accuracies over lengths shows, by the labels of the curves."""
    return {bars.get_label(): [*bars.lines[0].get_ydata()] for bars in panel.containers}


def test_accuracies_of_one_length_are_drawn_over_the_updates(drawn: Callable[..., Any]) -> None:
    """Only for the models with a result."""
    figure = drawn([result("tlb_lm"), result("rsa_tlb_lm")])
    assert titles(figure) == ["tlb_lm, length 24"] * 2
    assert [[*line.get_xydata()[1]] for line in figure.axes[0].lines] == [[4, 0.4]] * 2
    figure = drawn([result("rsa_brt_lm"), result("tlb_lm")])
    assert titles(figure) == ["brt_lm, length 24"] * 2 + ["tlb_lm, length 24"] * 2


def test_accuracies_over_lengths_are_those_after_equally_many_updates(
    drawn: Callable[..., Any],
) -> None:
    """The most that all have; the last ones where they have none in common."""
    short, long = result("tlb_lm", 24, 2, 4), result("tlb_lm", 36, 2, 3)
    figure = drawn([short, long])
    assert titles(figure) == ["tlb_lm, after 2 updates", "tlb_lm, length 36"]
    assert curves_of(figure.axes[0]) == {"tlb_lm, 32 samples": [0.2, 0.2]}
    figure = drawn([short, result("tlb_lm", 36, 3)])
    assert titles(figure)[0] == "tlb_lm, after the last update"
    assert curves_of(figure.axes[0]) == {"tlb_lm, 32 samples": [0.4, 0.3]}


def test_the_records_are_one_figure(modules: Callable[[str], Any], drawn: Any) -> None:
    """All lengths, both numbers of samples, and the losses of all of them at 512."""
    results = modules("figure").read(RECORDS)
    figure = drawn(results)
    after, longest = "after 800 updates", "length 512"
    assert titles(figure) == [
        f"{x}_lm, {what}" for x in ("brt", "tlb") for what in (after, longest)
    ]
    for host, left, right in (("brt_lm", *figure.axes[:2]), ("tlb_lm", *figure.axes[2:])):
        labels = [f"{n}, {s} samples" for n in (host, f"rsa_{host}") for s in ("12,800", "6,400")]
        found = curves_of(left)
        assert [*found] == labels and {len(values) for values in found.values()} == {4}
        assert [text.get_text() for text in right.get_legend().get_texts()] == labels
        assert len(right.lines) == 4
    at_128 = [r["accuracy"]["values"][1] for r in results
              if (r["system"], r["length"], r["samples"]) == ("tlb_lm", 128, 6400)]  # fmt: skip
    assert len(at_128) == 3
    assert found["tlb_lm, 6,400 samples"][0] == pytest.approx(sum(at_128) / 3)
    assert found["rsa_tlb_lm, 12,800 samples"] == [0.79336, 0.77192, 0.82397, 0.83189]


def test_the_figure_is_drawn_from_files_that_fit(
    modules: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main, record = modules("figure").main, json.loads(RECORDS[0].read_text())
    figure, first, file = tmp_path / "a.png", RECORDS[0], tmp_path / "other.json"
    assert main([*map(str, RECORDS), str(figure)]) == 0 and figure.stat().st_size > 1000
    capsys.readouterr()
    run = f"{record['runs'][0]['length']}, {record['runs'][0]['samples']}"
    other = {**record["settings"], "WIDTH": "64", "UPDATES": "7"}
    for content, said in (
        ({**record, "settings": other}, f"{file} was trained with another WIDTH; "),
        (record, f"{file} has a run of an earlier file: {run}, {record['runs'][0]['system']}, 1"),
        ({**record, "runs": []}, f"{file} has no finished runs"),
        ({**record, "runs": [{"system": "tlb_lm"}]}, f"{file} is not one"),
        ([], f"{file} is not one"),
    ):
        file.write_text(json.dumps(content))
        assert main([str(first), str(file), str(tmp_path / "b.png")]) == 2
        assert said in capsys.readouterr().err
    assert main([str(first), "gone", str(tmp_path / "b.png")]) == 2
    assert "cannot read gone: No such file" in capsys.readouterr().err
    assert main([str(first), str(tmp_path / "b.text")]) == 2
    assert "Format 'text' is not supported" in capsys.readouterr().err
    assert not (tmp_path / "b.png").exists()


@pytest.mark.slow
def test_everything_is_trained_once(
    miniature: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The table, the record, the figure; longer trainings continue, other settings start again."""
    program, work = tmp_path / "program", tmp_path / "work"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setattr(runner, "PROGRAM", [str(program)])
    monkeypatch.setattr(runner, "POLL", 0.02)
    assert miniature(SEEDS="1 2") == 0
    printed = capsys.readouterr().out
    assert "8 of 8 runs done" in printed
    nats = 3 * log(2) * 24 / 13  # 13 of the 24 symbols have a loss
    assert re.search(rf"\n24 +32 +rsa_tlb_lm +0\.995 +4 +{nats:.3f} +2\n", printed)
    assert re.search(rf"\n24 +32 +tlb_lm +0\.500 +{nats:.3f} +2\n", printed)
    record = json.loads((work / "results.json").read_text())
    assert len(record["runs"]) == 8 and " WIDTH=16 " in record["command"]
    found = record["runs"][1]
    assert (found["system"], found["learned"], found["last"]) == ("rsa_brt_lm", 4, 0.995)
    assert found["accuracy"] == {"updates": [2, 4], "values": [0.5, 0.995]}
    assert found["loss"]["updates"] == [1, 2, 3, 4]
    assert "| 24 | 32 | brt_lm | 0.500 |" in (work / "results.md").read_text()
    assert (work / "figure.png").stat().st_size > 1000

    calls = {file: len(file.read_text().splitlines()) for file in work.rglob("calls")}
    assert len(calls) == 8 and {*calls.values()} == {1}
    drawn = work / "data" / "length24_samples32" / "train.bin"
    written = drawn.stat().st_mtime_ns
    assert miniature(SEEDS="1 2") == 0 and "8 of them already done" in capsys.readouterr().out
    assert miniature("table") == 0 and "rsa_tlb_lm" in capsys.readouterr().out
    assert all(len(file.read_text().splitlines()) == 1 for file in calls)
    one = {"SYSTEMS": "brt_lm"}
    file = work / "length24_samples32" / "brt_lm" / "seed1" / "calls"
    assert miniature(UPDATES="6", **one) == 0 and len(file.read_text().splitlines()) == 2
    assert miniature(RATE="0.003", **one) == 0 and len(file.read_text().splitlines()) == 1
    kept, said = file.parents[1] / "seed1_before1", capsys.readouterr().out
    assert f"the settings have changed; the earlier training is kept in {kept}\n" in said
    assert len((kept / "calls").read_text().splitlines()) == 2
    assert miniature(RATE="0.004", **one) == 0 and (kept.parent / "seed1_before2/calls").is_file()
    (kept.parent / "seed1_before3").mkdir()  # by a start that was killed before it moved all
    assert miniature(RATE="0.005", **one) == 0 and (kept.parent / "seed1_before3/calls").is_file()
    capsys.readouterr()
    assert drawn.stat().st_mtime_ns == written
    # The first settings again: nothing is trained.
    assert miniature(UPDATES="6", **one) == 0 and len(file.read_text().splitlines()) == 2
    assert f"the training in {kept} had these settings; it is used" in capsys.readouterr().out
    left = {path.name for path in kept.parent.glob("seed1_before*")}
    assert left == {"seed1_before2", "seed1_before3", "seed1_before4"}


def test_a_table_without_a_result_keeps_the_files(
    miniature: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of other settings, which were given to the training."""
    work = tmp_path / "work"
    assert miniature("table") == 0 and not work.exists()
    work.mkdir()
    for name in ("results.json", "results.md"):
        (work / name).write_text("of other settings")
    assert miniature("table") == 0
    assert {path.read_text() for path in work.iterdir()} == {"of other settings"}
    said = "Nothing is finished with these settings; give the variables of the training\n"
    assert capsys.readouterr().out == f"\n{said}\n{said}"


def test_wrong_settings_are_refused(
    miniature: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert miniature(LENGTHS="11", RATE="0", SYSTEMS="xl_lm", JOBS="0") == 2
    heading, *lines = capsys.readouterr().err.splitlines()
    assert heading == "error: variables that cannot be used:"
    assert [line.split("=")[0] for line in lines] == ["- LENGTHS", "- SYSTEMS", "- RATE", "- JOBS"]
    assert "at least 12" in lines[0] and "above 0" in lines[2]
    assert miniature(OPTIONS="--dropout '0.1") == 2
    assert capsys.readouterr().err.startswith(
        f"{heading}\n- OPTIONS=--dropout '0.1: No closing quotation; expected flags"
    )
    for flag in ("--batch-size 32", "--max-sentences=32", "--update-freq 2"):
        assert miniature(OPTIONS=f"--dropout 0.1 {flag}") == 2
        name = re.split("[ =]", flag)[0]
        assert f"OPTIONS has {name}: UPDATES are counted in batches" in capsys.readouterr().err
    assert miniature(OPTIONS="--recurrent-block 8 --rsa-dilations=3,3,3,3") == 2
    said = capsys.readouterr().err
    assert "--recurrent-block: choose it with CHUNK" in said and "with DILATIONS" in said
    assert miniature(OPTIONS="--seed 9 --arch=x -a y --lr 1 --max-epoch 2 --save-dir z") == 2
    assert capsys.readouterr().err.splitlines()[1:] == [
        f"- OPTIONS has {flag}: each training has its own; {remedy}"
        for flag, remedy in (
            ("--seed", "choose it with SEEDS"),
            ("--arch", "choose it with SYSTEMS"),
            ("-a", "choose it with SYSTEMS"),
            ("--lr", "choose it with RATE"),
            ("--max-epoch", "choose it with UPDATES"),
            ("--save-dir", "leave it out"),
        )
    ]
    assert miniature(CHUNK="24", WIDTH="12") == 2
    said = capsys.readouterr().err
    assert "WIDTH=12: expected a multiple of 8" in said
    assert "CHUNK=24: expected less than the shortest of LENGTHS, 24" in said
    assert miniature(SYSTEMS="brt_lm tlb_lm", GATE="1", DILATIONS="3,6,9,12") == 2
    assert capsys.readouterr().err.splitlines()[1:] == [
        f"- {given}: has no effect without a system in SYSTEMS that has RSA's matrices; unset it"
        for given in ("DILATIONS=3,6,9,12", "GATE=1")
    ]
    assert miniature(FORM="duplicate", LENGTHS="12 24", SAMPLES="6400 12800") == 2
    assert capsys.readouterr().err.splitlines()[1:] == [
        "- FORM=duplicate with LENGTHS=12 has too few different samples for SAMPLES=12800; give "
        "fewer, or a larger length"
    ]
    assert miniature("tables") == 2 and "expected bash run.sh [table]" in capsys.readouterr().err
    assert not (tmp_path / "work").exists()


def test_every_command_is_one_of_fairseq(modules: Callable[[str], Any]) -> None:
    """The parsers and the parts accept the command of each system; rates are halved."""
    trainings = modules("trainings")
    runs = list(trainings.copy_runs(trainings.Settings(), Path("work")))
    assert len({run.name for run in runs}) == len(runs) == 4 * 2 * 4
    for run in runs[:4]:
        parse(["fairseq-recur", *run.argv("train")])
        assert ("--rsa-dilations" in run.flags) == run.system.startswith("rsa_")
    assert [run.epochs for run in runs[:5:4]] == [23, 12]  # of 400 and of 800 updates
    words = runs[0].argv("train")
    assert words[1] == "work/data/length128_samples6400"
    rates = [float(rate) for rate in words[words.index("--lr") + 1].split(",")]
    assert len(rates) == 23
    assert [rates[n] for n in (4, 5, 10)] == [1e-4, 5e-5, 2.5e-5]
    on_gpu = trainings.copy_runs(trainings.Settings(device="cuda"), Path("work"))
    assert not any("--cpu" in run.flags for run in on_gpu)


@pytest.mark.parametrize("form", ["tile", "duplicate"])
def test_a_training_in_miniature(
    modules: Callable[[str], Any], cli: Callable[..., str], tmp_path: Path, form: str
) -> None:
    """Its first loss is that of guessing among 15 symbols, so only the copies count."""
    samples, trainings = modules("samples"), modules("trainings")
    settings = trainings.Settings(
        form=form, lengths=[24], samples=[32], systems=["rsa_brt_lm"], updates=3, width=16, chunk=8,
        options="--log-interval 1",
    )  # fmt: skip
    (run,) = trainings.copy_runs(settings, tmp_path)
    samples.write(run.data, run.form, run.length, run.samples)
    words = run.argv("train")
    assert words[-2] == "--log-file"  # what a process writes there is returned here
    out = cli("train", *words[1:-2], "--user-dir", USER_DIR)
    (run.folder / "train.log").write_text(out)
    accuracies = run.accuracies()
    assert [updates for updates, _ in accuracies] == [2, 4]
    assert all(0 <= share <= 1 for _, share in accuracies)
    losses = run.losses(4)
    assert [updates for updates, _ in losses] == [1, 2, 3, 4]
    assert losses[0][1] == pytest.approx(log(15), abs=0.15)


@pytest.mark.slow
def test_all_systems_train_in_processes(miniature: Callable[..., int], tmp_path: Path) -> None:
    """Also after a start with fewer updates, from the checkpoint."""
    for updates, points in (("3", [2, 4]), ("6", [2, 4, 6])):
        assert miniature(UPDATES=updates) == 0
        record = json.loads((tmp_path / "work" / "results.json").read_text())
        assert [run["accuracy"]["updates"] for run in record["runs"]] == [points] * 4
    for file in (tmp_path / "work").rglob("train.log"):
        found = re.findall(r'"valid_num_updates": "(\d)"', file.read_text())
        assert found == ["2", "4", "6"]


@pytest.mark.slow
def test_it_learns_to_copy(miniature: Callable[..., int], tmp_path: Path) -> None:
    """One that knew the separators and guessed the digits would have 0.18."""
    variables = {"LENGTHS": "44", "SAMPLES": "6400", "UPDATES": "1200", "WIDTH": "32"}
    assert miniature(**variables, CHUNK="22", RATE="0.003", SYSTEMS="rsa_tlb_lm") == 0
    (run,) = json.loads((tmp_path / "work" / "results.json").read_text())["runs"]
    assert run["last"] > 0.5
