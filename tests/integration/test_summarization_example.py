"""The summarization example: its experiment on a small sample, its figure, and its data."""

import json
import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import sentencepiece

from tests.running import programs_in

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "summarization"
DATA = EXAMPLE / "data"
LINES = {"train": 60, "valid": 6, "test": 6}


@pytest.fixture
def small_example(tmp_path: Path) -> Path:
    """The example's folder in a copy of the project, with few texts and pieces."""
    shutil.copytree(
        ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("work", "results")
    )
    folder = tmp_path / "examples" / "summarization"
    for name, count in LINES.items():
        for side in ("source", "target"):
            file = folder / "data" / f"{name}.{side}"
            lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
            file.write_text("".join(lines[:count]), encoding="utf-8")
    script = (folder / "lead.sh").read_text().replace(" 3000 ", " 300 ")
    assert script.count(" 300 ") == 1
    (folder / "lead.sh").write_text(script)
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    (tmp_path / "scripts" / "setup.sh").write_text("exit 0\n")
    programs_in(tmp_path / ".venv" / "bin")
    return folder


def run_script(script: Path, *systems: str) -> str:
    """Run a script of the example twice; return what the second run printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "EPOCHS": "1", "MORE": "1"}
    for _ in range(2):
        done = subprocess.run(
            ["bash", script, *systems], env=environment, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


@pytest.mark.slow
def test_the_example_fills_its_table(small_example: Path) -> None:
    settings = (small_example / "experiment.yaml").read_text()
    short = settings.replace("updates: 40, warmup: 10, repeats: 5", "updates: 5, repeats: 1")
    assert short != settings
    (small_example / "experiment.yaml").write_text(short)
    printed = run_script(small_example / "run.sh", "full_continued", "srformer_8")
    assert "already" in printed and ": train" not in printed
    results = json.loads((small_example / "work/runs/results.json").read_text())
    assert [run["system"] for run in results["runs"]] == ["full", "full_continued", "srformer_8"]
    assert results["outputs"][0]["scores"]["rouge1"] > 0
    assert (small_example / "work/segments.png").stat().st_size > 10_000


@pytest.mark.slow
def test_each_system_from_scratch_starts_from_its_own_copying(small_example: Path) -> None:
    systems = ("segmented_16", "srformer_unit_16")
    script, work = small_example / "scratch.sh", small_example / "work" / "scratch"
    wrong = {**os.environ, "PYTHONPATH": str(ROOT), "EPOCHS": "ten"}
    done = subprocess.run(["bash", script, *systems], env=wrong, capture_output=True, text=True)
    assert done.returncode == 2 and "argument --max-epoch: invalid int value: 'ten'" in done.stderr
    assert not (work / "copying").exists()  # said before anything is trained
    printed = run_script(script, *systems)
    assert "already" in printed and ": train" not in printed
    for system in systems:
        command = json.loads((work / f"runs/{system}/seed1/state.json").read_text())["train"]["key"]
        start = command[command.index("--finetune-from-model") + 1]
        assert start == str(work / f"copying/{system}/seed1/checkpoint_best.pt")
    results = json.loads((work / "runs/results.json").read_text())
    assert [run["system"] for run in results["runs"]] == list(systems)


SMALL = [
    f"train.{side}-{name}={value}"
    for side in ("encoder", "decoder")
    for name, value in (("embed-dim", 16), ("ffn-embed-dim", 16), ("layers", 1))
]


@pytest.mark.slow
def test_systems_continue_from_full_attention(tmp_path: Path) -> None:
    """All of them can be built; some are trained, beside the extracts, with their memory."""
    texts, root = tmp_path / "texts", tmp_path / "project"
    texts.mkdir()
    for name, count in LINES.items():
        for side in ("source", "target"):
            lines = (DATA / f"{name}.{side}").read_text(encoding="utf-8").splitlines(keepends=True)
            if (name, side) == ("valid", "target"):  # longer than the model has positions
                lines[0] = "package " * 1100 + "\n"
            (texts / f"{name}.{side}").write_text("".join(lines[:count]), encoding="utf-8")
    shutil.copytree(
        EXAMPLE, root / "examples" / "summarization",
        ignore=shutil.ignore_patterns("work", "results", "data"),
    )  # fmt: skip
    shutil.copytree(ROOT / "scripts", root / "scripts")
    (root / "scripts" / "setup.sh").write_text("exit 0\n")
    programs_in(root / ".venv" / "bin")
    variables = {
        "PIECES": "300",
        "COPY": "2",
        "UPDATES": "4",
        "MORE": "3",
        "SEGMENT": "8",
        "MAX_LENGTH": "20",
    }
    environment = {**os.environ, **variables, "PYTHONPATH": str(ROOT), "WORK": "../work"}
    script = root / "examples" / "summarization" / "continued.sh"
    changes = [*SMALL, "speed.updates=5", "speed.warmup=0", "speed.repeats=1"]
    options = ["--seeds", "1", *(word for change in changes for word in ("--set", change))]
    some = ["--systems", "full", "full_continued", "segmented", "srformer_unit"]
    for more in (["--dry-run"], some):
        done = subprocess.run(
            ["bash", script, "../texts", *options, *more], cwd=root,
            env=environment, capture_output=True, text=True, timeout=900,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        if more == ["--dry-run"]:
            for flag in (
                "--cross-attention global",
                "--srformer-scale unit",
                "--srformer-norm none",
            ):
                assert f"{flag} " in done.stdout
    for size, status in (("small", 0), ("tiny", 2)):
        done = subprocess.run(
            ["bash", script, "../texts", "--dry-run"], cwd=root, capture_output=True, text=True,
            env={**environment, "WORK": "../small", "SIZE": size},
        )  # fmt: skip
        assert done.returncode == status, (done.stdout + done.stderr)[-4000:]
        if size == "small":
            rates = re.findall(r"--arch srformer_tiny .*--lr (\S+)", done.stdout)
            assert rates[0] == "0.003" and {*rates[1:]} == {"0.001", "0.002"}
            assert rates.count("0.002") == 3  # `full`, of each seed
    assert "SIZE=tiny: expected small or larger" in done.stderr
    results = json.loads((tmp_path / "work/runs/results.json").read_text())
    updates = {run["system"]: run["updates"] for run in results["runs"]}
    assert updates == {"full": 4, "full_continued": 3, "segmented": 3, "srformer_unit": 3}
    assert [o["system"].split("-")[0] for o in results["outputs"]] == ["lead"]
    assert {c["baseline"] for c in results["comparisons"]} == {"full_continued", "segmented"}
    assert min(results["speed"]["systems"]["srformer_unit"]["decoding_mib"]) > 50


def test_the_first_words_follow_the_query(tmp_path: Path) -> None:
    """As many as the average summary of the training set has; the sources stay as they are."""
    sources = ["what happened ? </q> the cat sat on the mat", "dogs bark at night in the village"]
    for name in LINES:
        (tmp_path / f"{name}.source").write_text("".join(line + "\n" for line in sources))
        (tmp_path / f"{name}.target").write_text("a b c d\nx\n")  # 2.5 words, rounded to even
    model, pieces, output = tmp_path / "bpe.model", tmp_path / "pieces", tmp_path / "lead"
    shutil.copytree(tmp_path, pieces)
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "train.source"), model_prefix=str(model.with_suffix("")),
        vocab_size=40, model_type="bpe", minloglevel=2,
    )  # fmt: skip
    write = runpy.run_path(str(EXAMPLE / "lead.py"))["write"]
    write(tmp_path, model, pieces, output)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    for name in LINES:
        assert (output / "text" / f"{name}.target").read_text() == "the cat\ndogs bark\n"
        read = (output / "pieces" / f"{name}.source").read_text()
        assert read == (pieces / f"{name}.source").read_text()
        targets = (output / "pieces" / f"{name}.target").read_text().splitlines()
        assert [processor.decode(line.split()) for line in targets] == ["the cat", "dogs bark"]


def test_the_figure_has_one_point_per_size() -> None:
    figure = runpy.run_path(str(EXAMPLE / "figure.py"))
    scores = {
        "full_continued": [20.0, 22.0], "srformer_16": [18.0, 19.0], "segmented_8": [15.0, 14.0],
        "srformer_8": [17.0, 17.5], "srformer_unit_8": [3.0],
    }  # fmt: skip
    results = {
        "runs": [
            {"system": system, "scores": {"rougeL": value}}
            for system, values in scores.items()
            for value in values
        ],
        "speed": None,
    }
    systems = figure["values"](results, "rougeL")
    assert systems == scores and figure["values"](results, "updates_per_second") == {}
    assert figure["curves"](systems) == {
        "srformer": {8: [17.0, 17.5], 16: [18.0, 19.0]},
        "segmented": {8: [15.0, 14.0]},
        "srformer_unit": {8: [3.0]},
    }


def test_the_figure_of_one_size_has_the_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A point per system and cost; other records are drawn by size."""
    figure = runpy.run_path(str(EXAMPLE / "figure.py"))
    drawn: list[Any] = []
    monkeypatch.setitem(figure["draw"].__globals__, "save", lambda made, file: drawn.append(made))
    full = json.loads((EXAMPLE / "results" / "memories.json").read_text())
    systems = ["full_continued", "segmented_16", "srformer_16"]
    one = {**full, "runs": [run for run in full["runs"] if run["system"] in systems]}
    for results in (one, full, {**one, "speed": None}):
        figure["draw"](results, tmp_path / "a.png")
    labels = [[axes.get_xlabel() for axes in made.axes] for made in drawn]
    size = "segment size (pieces)"
    assert labels == [[*figure["COSTS"].values()], [size] * 3, [size] * 2]
    for axes, quantity in zip(drawn[0].axes, figure["COSTS"]):
        shown = {bar.get_label(): bar.lines[0].get_data() for bar in axes.containers}
        assert list(shown) == systems
        (cost,), (score,) = shown["segmented_16"]
        assert cost == median(full["speed"]["systems"]["segmented_16"][quantity])
        assert score == pytest.approx((30.24 + 30.69 + 31.73) / 3, abs=0.01)


@pytest.mark.parametrize("name", LINES)
def test_the_sample_follows_its_rules(name: str) -> None:
    rules = runpy.run_path(str(DATA / "build_corpus.py"))
    columns = [(DATA / f"{name}.{e}").read_text("utf-8").splitlines() for e in rules["ENDINGS"]]
    rows = list(zip(*columns, strict=True))
    assert len(rows) > 100
    assert [row for row in rows if not rules["wanted"](*row)] == []
    # Independent of the pattern in the rules.
    address = re.compile(r"@|://|\bwww\b|\b\w+\.(com|org|net|io|de|edu|gov|info)\b", re.IGNORECASE)
    assert [row for row in rows if address.search(" ".join(row[1:]))] == []


def test_the_sets_share_no_source_package() -> None:
    packages = [
        {line.split("\t")[1] for line in (DATA / f"{name}.origin.tsv").read_text().splitlines()}
        for name in LINES
    ]
    assert len(set.union(*packages)) == sum(map(len, packages))
