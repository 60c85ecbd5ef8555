"""What is refused for a training that has begun, and names that a later start reads as well."""

import os
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from fairseq_recur.cli import experiment_check, main
from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.reading import from_here, read_experiment
from fairseq_recur.experiments.runs import SystemRun, runs_of
from fairseq_recur.files import read_json, write_json
from tests.unit.test_experiments import STARTED, content, read, runs


def begin(run: SystemRun) -> None:
    """Store what the runner stores at the beginning of a training."""
    run.write_state({"train": {"key": run.key("train"), "read": run.reads(), "done": False}})


def log(run: SystemRun, updates: int, epochs: float) -> None:
    line = f'{{"epoch": 1, "update": {epochs}, "loss": "2.5", "num_updates": "{updates}"}}\n'
    (run.folder / "train.log").write_text(line)


def test_a_limit_below_what_is_done_is_refused(tmp_path: Path) -> None:
    run = runs(tmp_path, {}, "train.max-update=500")[0]
    begin(run)
    log(run, 250, 3.5)
    for change, said in (
        ("train.max-update=600", []),
        ("train.max-update=250", []),
        ("train.max-update=0", []),
        ("train.max-update=many", []),  # fairseq says so
        ("train.max-update=249", ["--max-update 249 is below the 250 updates done"]),
        ("train.max-epoch=3", ["--max-epoch 3 is below the 3.5 epochs done"]),
    ):
        (now, *_) = runs(tmp_path, {}, "train.max-update=500", change)
        assert now.check_unchanged() == [f"a seed 1: {line}" for line in said]
    log(run, 700, 9.0)  # accepted by an earlier version
    assert run.check_unchanged() == []


def test_a_row_whose_first_model_changes_is_refused(tmp_path: Path) -> None:
    a, b, *_ = runs(tmp_path)
    begin(a)
    begin(b)
    now = runs(tmp_path, {}, "systems.a.flags.max-epoch=5", "systems.b.flags.max-epoch=4")
    was, are = "a seed 1 (max-epoch 4, checkpoint 3)", "a seed 1 (max-epoch 5, checkpoint 3)"
    assert [run.check_unchanged() for run in now[:2]] == [
        [], [f"b seed 1: start_from was {was}, is {are}"]
    ]  # fmt: skip
    fewer = runs(tmp_path, {"checkpoint": 2})[1].check_unchanged()
    assert fewer[-1] == f"b seed 1: start_from was {was}, is a seed 1 (max-epoch 4, checkpoint 2)"
    assert runs(tmp_path, {}, "systems.b.flags.max-epoch=5")[1].check_unchanged() == []
    b.write_state({"train": {"key": b.key("train")}})  # of an earlier version
    assert now[1].check_unchanged() == []


def end(run: SystemRun, *files: str) -> None:
    """Store what the runner stores at the end, and create files of the training."""
    state = {step: {"key": run.key(step), "done": True} for step in run.steps}
    run.write_state(state)
    for name in ("test.txt", *files):
        (run.folder / name).touch()


def test_another_checkpoint_can_be_chosen_after_the_training(tmp_path: Path) -> None:
    """What is kept for `checkpoint` is not a setting that the user has given."""
    few = [f"checkpoint{n}.pt" for n in (2, 3, 4)]
    end(runs(tmp_path)[0], *few, "checkpoint_last.pt", "checkpoint_best.pt")
    for checkpoint, left in (
        ("best", {"generate"}), ("last", {"generate"}), (2, {"average"}), (1, {"average"}),
        (3, set()),
    ):  # fmt: skip
        (now, *_) = runs(tmp_path, {"checkpoint": checkpoint})
        assert now.check_unchanged() == []
        assert {step for step in now.steps if not now.done(step)} == left
    (now, *_) = runs(tmp_path, {"checkpoint": 5})
    assert now.check_unchanged() == [
        "a seed 1: checkpoint is 5, but the training kept fewer, the last 3; expected at most 3"
    ]
    (now, *_) = runs(tmp_path, {"checkpoint": 5}, "train.keep_last_epochs=5")
    assert now.check_unchanged() == ["a seed 1: --keep-last-epochs was 3, is 5"]
    (now, *_) = runs(tmp_path, {"checkpoint": 2}, "train.save-interval-updates=5")
    assert now.check_unchanged() == ["a seed 1: --save-interval-updates was not given, is 5"]


def test_a_training_that_kept_everything_can_be_averaged_over_more(tmp_path: Path) -> None:
    end(runs(tmp_path)[0], "checkpoint1.pt", "checkpoint2.pt")
    assert runs(tmp_path, {"checkpoint": 5})[0].check_unchanged() == []
    end(runs(tmp_path, {"checkpoint": "last"})[2], "checkpoint1.pt", "checkpoint_last.pt")
    assert runs(tmp_path, {"checkpoint": 5})[2].check_unchanged() == []
    wrong = {"train": {**content()["train"], "keep-last-epochs": "many"}}  # fairseq says so
    begin(runs(tmp_path, wrong)[2])
    assert runs(tmp_path)[2].check_unchanged() == []


def test_a_checkpoint_that_was_removed_is_missed_before_anything_is_done(tmp_path: Path) -> None:
    end(runs(tmp_path)[0], "checkpoint_best.pt")
    assert runs(tmp_path)[0].check_unchanged() == []
    assert runs(tmp_path, {"checkpoint": "best"})[0].check_unchanged() == []
    for checkpoint in ("last", 2):
        assert runs(tmp_path, {"checkpoint": checkpoint})[0].check_unchanged() == [
            f"a seed 1: checkpoint is {checkpoint}, but its file was removed after the training; "
            "restore it, or keep the former setting"
        ]


def test_other_data_of_the_same_name_are_refused(tmp_path: Path) -> None:
    data = tmp_path / "bin"
    data.mkdir()
    files = ("dict.en.txt", "dict.de.txt", "train.en-de.en.bin", "valid.en-de.de.idx")
    for file in (*(data / name for name in files), tmp_path / "test.de", tmp_path / "model.pt"):
        file.write_text("a\nb\n")
    (run, *_) = runs(tmp_path, {"start": "model.pt"})
    begin(run)
    assert run.check_unchanged() == []
    (data / "dict.en.txt").write_text("b\na\n")
    (data / "train.en-de.en.bin").write_text("c\nd\n")  # of the same size
    (data / "train.en-fr.en.bin").write_text("of another pair")
    (data / "test.en-de.en.bin").write_text("new")
    (tmp_path / "test.de").write_text("another\n")  # only changes the scores
    (tmp_path / "model.pt").write_text("b\na\n")
    dictionary, binary, model = run.check_unchanged()
    assert dictionary.startswith("dict.en.txt was sha256 ")
    assert re.fullmatch(
        r"train\.en-de\.en\.bin was 4 bytes, sha256 \w{16}, is 4 bytes, sha256 \w{16}", binary
    )
    assert model.startswith(f"{tmp_path / 'model.pt'} was 4 bytes, sha256 ")
    (data / "valid.en-de.de.idx").rename(data / "valid.de-en.de.idx")  # fairseq reads that, too
    assert "valid.de-en.de.idx" in run.reads()
    (data / "valid.de-en.de.idx").rename(data / "valid.en-de.de.idx")
    state = run.state()
    state["train"]["read"] = {"train.en-de.en.bin": "4 bytes"}  # of an earlier version
    run.write_state(state)
    assert run.check_unchanged() == []
    run.remember()
    assert "sha256" in run.state()["train"]["read"]["train.en-de.en.bin"]
    state["train"]["read"] = {"train.en-de.en.bin": "14 bytes"}
    run.write_state(state)
    assert len(run.check_unchanged()) == 1


def test_paths_of_changes_begin_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "größe"
    here.mkdir()
    monkeypatch.chdir(here)
    given = {
        "data=a b": f'data="{here}/a b"',
        "data=/a": "data=/a",
        "start=null": "start=null",
        "score.reference=[r1,/r2]": f'score.reference=["{here}/r1", "/r2"]',
        "score={reference: r, samples: 5}": f'score={{"reference": "{here}/r", "samples": 5}}',
        "score.outputs.copied=x": f'score.outputs.copied="{here}/x"',
        "generate.bpe_codes=c": f'generate.bpe_codes="{here}/c"',
        "generate.gpt2-vocab-bpe=https://x/y": "generate.gpt2-vocab-bpe=https://x/y",
        "train.max-epoch=9": "train.max-epoch=9",
        "data=${oc.env:HOME}": "data=${oc.env:HOME}",
    }
    assert from_here([*given]) == [*given.values()]
    assert from_here([*given.values()]) == [*given.values()]
    read(tmp_path)
    (first, *_) = runs_of(read_experiment([tmp_path / "t.yaml"], ["data=../bin"]), tmp_path)
    begin(first)
    stored = from_here(["data=../bin"])
    monkeypatch.chdir("/")
    (again, *_) = runs_of(read_experiment([tmp_path / "t.yaml"], stored), tmp_path)
    assert again.check_unchanged() == []
    assert os.path.realpath(again.experiment.data) == str(tmp_path / "bin")


def test_seeds_that_no_folder_can_have_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seeds 1, -1: expected whole numbers, at least 0"):
        runs_of(read(tmp_path), tmp_path, (), [1, -1])


@pytest.mark.parametrize("content", [b"", b'{"set": [', b"\xff"])
def test_a_damaged_file_is_named(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "command.json").write_bytes(content)
    assert main(["experiment", "status", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path / 'command.json'} is damaged (" in said and "or remove it and give" in said
    assert read_json(tmp_path / "none.json") is None


@pytest.mark.parametrize("content", ["{}", "[]", "5", '{"train": 5}'])
@pytest.mark.parametrize("name", ["command.json", "a/seed1/state.json"])
def test_a_file_with_other_json_is_damaged(
    name: str, content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (first, *_) = runs(tmp_path)
    write_json(first.work / "command.json", {**STARTED, "files": ["../t.yaml"]})
    first.folder.mkdir(parents=True)
    (first.work / name).write_text(content)
    known_state = content == "{}" and "state" in name  # of a run of which nothing is known
    assert main(["experiment", "status", str(first.work)]) == (0 if known_state else 2)
    said = capsys.readouterr().err
    damaged = f"{first.work / name} is damaged, its JSON is not that of an experiment: restore"
    assert (damaged in said) is not known_state
    with pytest.raises(ConfigError) if not known_state and "state" in name else nullcontext():
        experiment_check._check_folder(first.experiment, first.work)


def test_nothing_is_known_of_a_run_that_has_not_begun(tmp_path: Path) -> None:
    some: list[Any] = runs(tmp_path)
    for run in some:
        run.remember()
        assert run.check_unchanged() == [] and not run.folder.exists()
