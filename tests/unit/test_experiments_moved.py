"""An experiment's folder that was moved, renamed or copied, and one that can only be read."""

import builtins
import io
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairseq_recur.cli import experiment_check, main
from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments import folder_lock, speed
from fairseq_recur.experiments.other_sets import Decoding
from fairseq_recur.experiments.reading import stored, stored_experiment
from fairseq_recur.experiments.runs import SystemRun, runs_of
from fairseq_recur.files import read_json, write_json
from fairseq_recur.locks import hold, is_locked
from tests.unit.test_experiments import content, read


def absolute(run: SystemRun, step: str) -> list[str]:
    """The key of a step that an earlier version stored."""
    return run.key(step) if step == "average" else run.argv(step)


def present(run: SystemRun, step: str) -> list[str]:
    return run.key(step)


def finish(run: SystemRun, key: Callable[[SystemRun, str], list[str]] = present) -> None:
    """Store what the runner stores when everything is done."""
    state: dict[str, Any] = {s: {"key": key(run, s), "done": True} for s in run.steps}
    if "train" in state:
        state["train"]["read"] = run.reads()
    run.write_state(state)
    run.output.touch()


def finished(folder: Path, key: Callable[[SystemRun, str], list[str]] = present) -> Path:
    """The folder of a finished experiment, with its data and its file in it."""
    work = folder / "w"
    (work / "bin").mkdir(parents=True)
    (work / "bin/dict.en.txt").write_text("a 1\n")
    read(work)
    about = stored([str(work / "t.yaml")], [f"data={work / 'bin'}"], work)
    write_json(work / "command.json", {**about, "systems": [], "seeds": [], "parameters": {}})
    for run in runs_of(stored_experiment(about, work), work):
        finish(run, key)
    return work


def changed(work: Path) -> list[str]:
    """What is refused of a folder, and what is not done in it."""
    some = runs_of(stored_experiment(read_json(work / "command.json"), work), work)
    experiment_check._check_folder(some[0].experiment, work)
    left = [f"{run.name} is not done" for run in some if not run.finished()]
    return [*left, *(line for run in some for line in run.check_unchanged())]


@pytest.mark.parametrize("key", [present, absolute])
def test_a_copied_or_moved_folder_is_recognised(
    key: Callable[[SystemRun, str], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its data and its file, which are the copies; also one of an earlier version."""
    work = finished(tmp_path, key)
    assert changed(work) == []
    shutil.copytree(work, tmp_path / "copy")
    assert changed(tmp_path / "copy") == []
    work.rename(tmp_path / "moved")
    assert changed(tmp_path / "moved") == []
    assert main(["experiment", "status", str(tmp_path / "moved")]) == 0
    assert capsys.readouterr().out.count(": done\n") == 4


def test_a_folder_that_is_reached_through_a_link_can_be_moved(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    work = finished(tmp_path / "link")
    assert changed(work) == changed(tmp_path / "disk/w") == []
    work.rename(tmp_path / "disk/moved")
    assert changed(tmp_path / "link/moved") == changed(tmp_path / "disk/moved") == []


def test_the_same_data_may_have_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here that of a link in the experiment's folder, and that of the folder it leads to."""
    work = finished(tmp_path)
    (work / "bin").rename(tmp_path / "data")
    (work / "bin").symlink_to("../data")
    given = {**content(), "data": str(tmp_path / "data")}
    for place in (tmp_path, work, work / "bin"):
        monkeypatch.chdir(place)
        for run in (*runs_of(read(tmp_path, given), work), *runs_of(read(work), work)):
            assert run.finished() and run.check_unchanged() == []


def test_another_experiment_of_the_same_shape_is_not_recognised(tmp_path: Path) -> None:
    work = finished(tmp_path)
    given = {**content(), "data": str(tmp_path / "other")}
    (run, *_) = runs_of(read(tmp_path, given), work)
    assert run.check_unchanged() == [f"a seed 1: --argument 1 was bin, is {tmp_path / 'other'}"]
    with pytest.raises(ConfigError, match="has another experiment, a, b on bin, whose"):
        experiment_check._check_folder(run.experiment, work)


def test_a_start_from_the_same_row_of_another_experiment_is_outside(tmp_path: Path) -> None:
    """Its checkpoint may be in a folder whose path ends like that of the run."""
    changed = {"start": str(tmp_path / "first/a/seed1/average.pt")}
    (run, *_) = runs_of(read(tmp_path, changed), tmp_path / "w")
    words = run.key("train")
    assert words[words.index("--finetune-from-model") + 1] == run.start
    assert words[words.index("--save-dir") + 1] == "a/seed1"


def test_what_is_stored_names_nothing_outside_by_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    changes = ["data=w/bin", "start=m.pt", "score.outputs.x=w/x", "train.lr=1", "seeds=[${s}]"]
    about = stored(["t.yaml", "w/t.yaml", "w/../t.yaml"], changes, Path("w"))
    assert about["files"] == [str(tmp_path / "t.yaml"), "t.yaml", str(tmp_path / "w/../t.yaml")]
    assert about["set"] == [
        'data="bin"', f'start="{tmp_path / "m.pt"}"', 'score.outputs.x="x"', "train.lr=1",
        "seeds=[${s}]",
    ]  # fmt: skip
    (run, *_) = runs_of(read(tmp_path), tmp_path / "w")
    assert run.key("train")[1] == str(tmp_path / "bin")
    assert run.key("train")[-3:] == ["a/seed1", "--log-file", "a/seed1/train.log"]


def test_other_sets_and_speed_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = finished(tmp_path)

    def decoding(work: Path) -> Decoding:
        (run, *_) = runs_of(stored_experiment(read_json(work / "command.json"), work), work)
        folder = work / "other_sets/more"
        here = replace(run.experiment, data=str(folder / "data"))
        return Decoding(here, run.system, run.seed, folder, run)

    before = decoding(work)
    before.work.mkdir(parents=True)
    before.model.touch()
    (before.work / "test.en").write_text("a\n")
    assert before.key("generate")[1] == "other_sets/more/data"
    finish(before)
    (run, *_) = runs_of(read(work, {"speed": {}}), work)
    words = [*run.train_argv(), *run.generate_argv()]  # as an earlier version stored them
    limits = {"updates": 40, "warmup": 10, "repeats": 3}
    write_json(work / "speed.json", {"key": [limits, words], "systems": {run.system.name: {}}})
    work.rename(tmp_path / "moved")
    assert decoding(tmp_path / "moved").finished()
    monkeypatch.setattr(speed, "_call", None)
    moved = runs_of(read(tmp_path / "moved", {"speed": {}}), tmp_path / "moved")
    speed.measure_speed(moved[:1], {})
    with pytest.raises(TypeError):  # another row has to be measured
        speed.measure_speed(moved[1:2], {})


def test_a_folder_of_a_colleague_is_only_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether its locks are there or not; one that is held shows that something runs."""
    work = finished(tmp_path)
    for run in runs_of(read(work), work, ["b"], [2]):
        run.output.unlink()
        state = run.state()
        run.write_state({**state, "train": {**state["train"], "done": False}})
    before = sorted(work.rglob("*"))
    opened = builtins.open

    def read_only(file: Any, mode: str = "r", *args: Any, **more: Any) -> Any:
        if isinstance(file, (str, os.PathLike)) and str(file).startswith(str(work)):
            if mode.strip("bt") != "r":
                raise PermissionError(13, "Permission denied", str(file))
        return opened(file, mode, *args, **more)

    held = hold(tmp_path / "lock")
    assert held is not None and is_locked(tmp_path / "lock")
    for module in (builtins, io):
        monkeypatch.setattr(module, "open", read_only)
    argv = ["experiment", "status", str(work)]
    assert main(argv) == 0 and sorted(work.rglob("*")) == before
    said = capsys.readouterr().out
    assert "nothing is running" in said and "b seed 2: waiting" in said
    assert main(["experiment", "stop", str(work)]) == 0
    assert "nothing is running" in capsys.readouterr().out
    os.rename(tmp_path / "lock", work / "lock")
    held.write("17 on here")
    held.flush()
    assert main(argv) == 0 and "process 17 on here is running" in capsys.readouterr().out
    held.close()
    assert not folder_lock.is_held(work) and json.loads((work / "command.json").read_text())
