"""The tables of examples: their variables, what they record, and errors."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments import runner
from fairseq_recur.experiments.grid import GridRun, move, run_and_report
from fairseq_recur.experiments.records import as_json, provenance
from fairseq_recur.experiments.schema import setting
from fairseq_recur.experiments.variables import read_variables


@dataclass
class Settings:
    seeds: list[int] = setting([1], "whole numbers", least=1)
    systems: list[str] = setting(["a"], "names")


CPU = ("--cpu",)


class EmptyRun(GridRun):
    """A training that does nothing."""

    def learning_rate(self, epoch: int) -> float:
        return 0.1


def unchecked(runs: Sequence[EmptyRun]) -> None:
    """A check that finds nothing."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EmptyRun:
    monkeypatch.setattr(runner, "PROGRAM", ["true"])
    monkeypatch.setattr(runner, "POLL", 0.02)
    return EmptyRun(tmp_path, "row", "a", 1, CPU, 1)


def test_nothing_runs_if_the_check_finds_something(
    run: EmptyRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table alone needs no check."""

    def check(runs: Sequence[EmptyRun]) -> None:
        raise ConfigError(f"{len(runs)} wrong")

    assert run_and_report([run], 0, run.work, lambda run: None, lambda: "", [], check) == 0
    assert run_and_report([run], 1, run.work, lambda run: None, lambda: "", [], check) == 2
    assert capsys.readouterr().err == "error: 1 wrong\n" and not run.finished()


def test_a_training_for_a_gpu_does_not_fall_back_to_the_cpu(
    run: EmptyRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table needs no GPU."""
    run = EmptyRun(run.work, "row", "a", 1, (), 1)
    assert run_and_report([run], 0, run.work, lambda run: None, lambda: "", [], unchecked) == 0
    assert run_and_report([run], 1, run.work, lambda run: None, lambda: "", [], unchecked) == 2
    message = "error: DEVICE=cuda: torch finds no GPU here; give DEVICE=cpu\n"
    assert capsys.readouterr().err == message and not run.finished()
    assert run_and_report([run], 1, run.work, lambda run: None, lambda: "", ["0"], unchecked) == 0


def test_what_is_named_twice_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEEDS", "2 1 02 1")
    monkeypatch.setenv("SYSTEMS", "b a b")
    settings = read_variables(Settings, ["seeds", "systems"])
    assert (settings.seeds, settings.systems) == ([2, 1], ["b", "a"])


def test_wrong_words_are_shown_as_they_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEEDS", "1 a")
    with pytest.raises(ConfigError, match="SEEDS=1 a: expected whole numbers"):
        read_variables(Settings, ["seeds", "systems"])


def test_a_table_without_a_result_says_what_to_do(
    run: EmptyRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a training that failed, other variables are no remedy."""
    assert run_and_report([run], 0, run.work, lambda run: None, lambda: "", [], unchecked) == 0
    said = "\nNothing is finished with these settings; give the variables of the training\n"
    assert capsys.readouterr().out == said
    assert run_and_report([run], 1, run.work, lambda run: None, lambda: "", [], unchecked) == 0
    printed = capsys.readouterr().out
    assert printed.endswith("\nNothing is finished with these settings\n")
    assert run_and_report([run], 0, run.work, lambda run: None, lambda: "x", [], unchecked) == 0
    assert capsys.readouterr().out.startswith("\nx\n\nEverything is in ")


def test_the_machine_is_that_of_the_training(
    run: EmptyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table may be written anew on another one, and with other versions."""
    monkeypatch.setattr(runner.machine, "machine", lambda: "there")
    monkeypatch.setattr(runner.machine, "versions", lambda: {"torch": "1"})
    assert run_and_report([run], 1, run.work, lambda run: None, lambda: "", [], unchecked) == 0
    monkeypatch.setattr(runner.machine, "machine", lambda: "here")
    monkeypatch.setattr(runner.machine, "versions", lambda: {"torch": "2", "python": "3"})
    before = provenance({}, ["x"], [EmptyRun(run.work, "row", "a", 3, CPU, 1)])
    assert (before["machine"], before["versions"]["torch"]) == ("here", "2")
    after = provenance({}, ["x"], [run])
    assert (after["machine"], after["versions"]) == ("there", {"torch": "1"})
    other = EmptyRun(run.work, "row", "a", 2, CPU, 1)
    other.folder.mkdir(parents=True)
    old: dict[str, Any] = {"key": other.key("train"), "done": True, "commit": "c"}
    other.write_state({"train": {**old, "versions": {"torch": "0"}}})
    both = provenance({}, ["x"], [run, other])
    assert both["machine"] == "there; a machine that was not recorded"
    assert both["versions"] == {"torch": "1, 0"}


def test_each_training_has_one_gpu(run: EmptyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each would divide its batches among all of them."""
    monkeypatch.setattr(runner, "PROGRAM", ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES; sleep 0.2"])
    runs = [run, EmptyRun(run.work, "row", "b", 1, CPU, 1)]
    assert (
        run_and_report(runs, 2, run.work, lambda run: None, lambda: "", ["4", "7"], unchecked) == 0
    )
    assert {(run.folder / "train.out").read_text() for run in runs} == {"4\n", "7\n"}


def test_a_moved_folder_is_not_trained_again(run: EmptyRun) -> None:
    run.folder.mkdir(parents=True)
    for key in (run.key("train"), run.argv("train")):  # the second is of an earlier version
        run.write_state({"train": {"key": key, "done": True}})
        moved = EmptyRun(run.work.rename(run.work.with_name("moved")), "row", "a", 1, CPU, 1)
        assert moved.done("train")
        moved.prepare()
        assert moved.done("train")
        moved.work.rename(run.work)


def test_the_state_is_moved_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between two files leaves it where the next start looks for it."""
    source, target, moved = tmp_path / "a", tmp_path / "b", []
    for folder in (source, target):
        folder.mkdir()
    for name in ("checkpoint_last.pt", "lock", "state.json", "train.log"):
        (source / name).touch()
    rename = Path.rename
    monkeypatch.setattr(
        Path, "rename", lambda path, to: [moved.append(path.name), rename(path, to)]
    )
    move(source, target)
    assert moved == ["checkpoint_last.pt", "train.log", "state.json"]
    assert [path.name for path in source.iterdir()] == ["lock"]


def test_files_that_cannot_be_used_are_one_message(
    run: EmptyRun, capsys: pytest.CaptureFixture[str]
) -> None:
    def report() -> str:
        raise ConfigError("x.csv is empty")

    assert run_and_report([run], 0, run.work, lambda run: None, report, [], unchecked) == 2
    assert capsys.readouterr().err == "error: x.csv is empty\n"
    run.folder.mkdir(parents=True)
    (run.folder / "state.json").write_text('{"train": {')
    assert run_and_report([run], 1, run.work, lambda run: None, lambda: "", [], unchecked) == 2
    assert "state.json is damaged" in capsys.readouterr().err


def test_lists_of_numbers_are_on_one_line() -> None:
    content = {"curve": [[0, -0.5], [7, 1e-05]], "values": [1, 2.5], "names": ["a", "b"]}
    lines = as_json(content).splitlines()
    assert [line.strip() for line in lines if "0" in line or "values" in line] == [
        "[0, -0.5],", "[7, 1e-05]", '"values": [1, 2.5],'
    ]  # fmt: skip


def test_texts_stay_as_they_are() -> None:
    content = {"command": 'OPTIONS="x [1  2]" run [3\t4]', "[1  2]": "a \\"}
    assert json.loads(as_json(content)) == content
