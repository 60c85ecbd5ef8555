"""The example of defect detection: its data in all forms, and all steps with a small CodeT5."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fairseq.data import Dictionary
from fairseq.data.data_utils import load_indexed_dataset

from fairseq_recur.cli import main
from fairseq_recur.conversion import huggingface, t5
from fairseq_recur.conversion.settings import Settings
from fairseq_recur.scoring.generation import read_hypotheses
from tests.integration.test_experiments import forked  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "defect_detection"
Folders = Callable[[str], Path]

# Train, valid, test, test, train, valid, in no order; number 4 is in no list.
LISTS = {"train": (7, 0, 5, 2), "valid": (1, 6), "test": (8, 3)}
FUNCTIONS = [
    {
        "project": "p", "commit_id": "c", "target": number % 2,
        "func": f"static int f{number}(char *a)\n{{\n\treturn  a[{number}];\n}}\n",
    }
    for number in range(9)
]  # fmt: skip


def write_lists(folder: Path) -> Path:
    """The files that CodeXGLUE distributes."""
    folder.mkdir()
    (folder / "function.json").write_text(json.dumps(FUNCTIONS))
    for split, numbers in LISTS.items():
        (folder / f"{split}.txt").write_text("".join(f"{number}\n" for number in numbers))
    return folder


def write_lines(folder: Path) -> Path:
    """What its preprocess.py makes of them."""
    folder.mkdir()
    for split, numbers in LISTS.items():
        items = [{**FUNCTIONS[number], "idx": number} for number in sorted(numbers)]
        lines = "".join(json.dumps(item) + "\n" for item in items)
        (folder / f"{split}.jsonl").write_text(lines)
    return folder


@pytest.fixture
def prepare(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """The example's program in this process."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.delitem(sys.modules, "prepare", raising=False)
    program = importlib.import_module("prepare")
    yield lambda *words: program.main([*map(str, words), "--workers", "1"])
    sys.modules.pop("prepare", None)


def test_every_form_of_the_data_gives_the_same(
    prepare: Callable[..., int], folders: Folders, tmp_path: Path
) -> None:
    """Functions on one line, in the order of function.json, with the answers of their targets."""
    model, work, found = folders("codet5"), tmp_path / "work", []
    data = [write_lists(tmp_path / "a"), write_lines(tmp_path / "b"), tmp_path / "pairs"]
    for folder in data:
        assert prepare(folder, model, work) == 0
        if not data[-1].exists():
            shutil.copytree(work / "text", data[-1])
        found.append({f"{s}.{e}": (work / "text" / f"{s}.{e}").read_text()
                      for s in LISTS for e in ("source", "target")})  # fmt: skip
        for name in (f"valid.{e}" for e in ("jsonl", "source", "target")):
            if (folder / name).exists():
                (folder / name).rename(folder / name.replace("valid", "val"))
    for folder in data[1:]:
        assert prepare(folder, model, work) == 0
        assert (work / "text" / "valid.source").read_text() == found[0]["valid.source"]
    assert found[0] == found[1] == found[2]
    assert found[0]["train.source"].splitlines() == [
        f"static int f{n}(char *a) {{ return a[{n}]; }}" for n in sorted(LISTS["train"])
    ]
    assert found[0]["train.target"].split() == ["false", "false", "true", "true"]
    assert found[0]["test.target"].split() == ["true", "false"]


def test_a_text_begins_as_in_the_other_library(
    prepare: Callable[..., int], folders: Folders, tmp_path: Path
) -> None:
    """<s> and </s> around at most so many tokens; answers of the other sets are never cut."""
    work = tmp_path / "work"
    words = [write_lines(tmp_path / "data"), folders("codet5"), work, "--max-source", 9]
    assert prepare(*words) == 0
    symbols = Dictionary.load(str(work / "model" / "dict.source.txt"))
    for split, numbers in LISTS.items():
        for side, length in (("source", 9), ("target", 3)):
            data = load_indexed_dataset(
                str(work / "data-bin" / f"{split}.source-target.{side}"), symbols
            )
            assert len(data) == len(numbers)
            for row in data:
                assert row[0] == symbols.bos() and row[-1] == symbols.eos()
                assert not (row == symbols.unk()).any()
                exact = side == "source" or split == "train"
                assert len(row) == length if exact else len(row) > length
    before = (work / "data-bin" / ".key").stat().st_mtime_ns
    assert prepare(*words) == 0
    assert (work / "data-bin" / ".key").stat().st_mtime_ns == before


WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "nothing": (lambda f: (f / "test.txt").unlink(), "has no data set; expected these files"),
    "twice": (lambda f: (f / "test.txt").write_text("3\n7\n"), "found '7'; expected in each line"),
    "no number": (lambda f: (f / "train.txt").write_text("x\n"), "found 'x'; expected in each"),
    "too few": (
        lambda f: (f / "function.json").write_text(json.dumps(FUNCTIONS[:7])),
        "lacks 2 of the functions that the lists name, the first is 7",
    ),
    "target": (
        lambda f: (f / "function.json").write_text(json.dumps([{"func": "f", "target": 2}])),
        "expected a text as func, and 0 or 1 as target",
    ),
}


@pytest.mark.parametrize("change, said", WRONG.values(), ids=WRONG.keys())
def test_wrong_data_is_refused(
    prepare: Callable[..., int], folders: Folders, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], change: Callable[[Path], Any], said: str,
) -> None:  # fmt: skip
    data = write_lists(tmp_path / "data")
    change(data)
    assert prepare(data, folders("codet5"), tmp_path / "work") == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "work" / "data-bin").exists()


def test_other_models_and_lengths_are_refused(
    prepare: Callable[..., int], folders: Folders, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    data = write_lists(tmp_path / "data")
    assert prepare(data, folders("v1.0"), tmp_path / "work") == 2
    assert "has no byte-level BPE; expected a CodeT5" in capsys.readouterr().err
    assert prepare(data, folders("codet5"), tmp_path / "work", "--max-target", 2) == 2
    assert "expected at least 3, for <s>, a token and </s>; raise the" in capsys.readouterr().err


def settings(model: Path, work: Path, target: int, epochs: int) -> list[str]:
    """What run.sh sets, and a small model; in 30 epochs it learns the training set by heart."""
    config = Settings(huggingface.read_object(model / "config.json"))
    changes = {
        "data": work / "data-bin", "start": work / "model" / "model.pt",
        "score.reference": work / "text" / "test.target",
        "generate.gpt2-encoder-json": work / "model" / "encoder.json",
        "generate.gpt2-vocab-bpe": work / "model" / "vocab.bpe",
        "generate.max-len-b": target - 1, "generate.cpu": True, "generate.beam": 2,
        "train.max-epoch": epochs, "train.lr": 0.01, "train.warmup-updates": 1,
        "train.validate-interval": epochs // 2, "train.save-interval": epochs // 2,
        "train.patience": -1, "train.cpu": True,
        "train.num-workers": 0, "generate.num-workers": 0, "score.samples": 20,
        **{f"train.{name}": value for name, value in t5.model_options(config).items()},
    }  # fmt: skip
    return [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]


@pytest.mark.slow
def test_both_systems_start_from_the_weights_and_are_scored(
    prepare: Callable[..., int], folders: Folders, tmp_path: Path,
    capfd: pytest.CaptureFixture[str], forked: None,  # noqa: F811
) -> None:  # fmt: skip
    """The converted weights start both; the accuracy is the share of equal texts."""
    model, work = folders("codet5"), tmp_path / "work"
    assert prepare(write_lists(tmp_path / "data"), model, work, "--max-target", 8) == 0
    argv = ["experiment", "run", str(EXAMPLE / "experiment.yaml"), "--work-dir", str(work / "runs")]
    assert main([*argv, *settings(model, work, 8, 2)]) == 0, capfd.readouterr().out[-4000:]
    results = json.loads((work / "runs" / "results.json").read_text())
    assert [run["system"] for run in results["runs"]] == ["codet5", "rsa_codet5"]
    sizes = [results["parameters"][name] for name in ("codet5", "rsa_codet5")]
    assert sizes[1] - sizes[0] == 4 * (2 + 1)  # two layers and two heads in either stack
    truth = (work / "text" / "test.target").read_text().split()
    for run in results["runs"]:
        folder = work / "runs" / run["system"] / "seed1234"
        said = (folder / "train.err").read_text() + (folder / "train.out").read_text()
        assert ("initialised fresh" in said) == (run["system"] == "rsa_codet5")
        start = run["command"][run["command"].index("--finetune-from-model") + 1]
        assert start == str(work / "model" / "model.pt")
        answers = read_hypotheses(str(folder / "test.txt"))
        right = [answer.strip() == wanted for answer, wanted in zip(answers, truth, strict=True)]
        assert run["scores"] == {"Accuracy": 100 * sum(right) / len(right)}


@pytest.mark.slow
def test_the_script_runs_it_all(folders: Folders, tmp_path: Path) -> None:
    model, work = folders("codet5"), tmp_path / "work"
    for folder in ("examples/defect_detection", "scripts"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("run.sh", "prepare.py", "experiment.yaml"):
        (tmp_path / "examples/defect_detection" / name).symlink_to(EXAMPLE / name)
    for name in ("recipes", "launch", "help.sh"):
        (tmp_path / "scripts" / name).symlink_to(ROOT / "scripts" / name)
    (tmp_path / "scripts/setup.sh").write_text("exit 0\n")
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for program, words in (("python", ""), ("fairseq-recur", "-m fairseq_recur")):
        (programs / program).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (programs / program).chmod(0o755)
    set_by_script = (
        "data", "start", "score.reference", "generate.gpt2", "generate.max-len", "train.max-epoch"
    )  # fmt: skip
    changes = settings(model, work, 8, 30)[1::2]
    options = [w for c in changes if not c.startswith(set_by_script) for w in ("--set", c)]
    data = write_lists(tmp_path / "data")
    script = tmp_path / "examples/defect_detection/run.sh"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WORK": str(work), "EPOCHS": "30"}
    environment["MAX_TARGET"] = "8"
    for words, status in ((["only data"], 2), ([data, model, *options], 0)):
        done = subprocess.run(
            ["bash", script, *words], env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == status, (done.stdout + done.stderr)[-4000:]
    assert "Accuracy" in (work / "runs" / "table.md").read_text()
