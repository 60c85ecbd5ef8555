"""How the steps of an experiment are run, with a small program in place of fairseq-recur."""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairseq_recur.cli import experiment_check, experiment_run, experiment_stop, main
from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments import folder_lock, runner, speed
from fairseq_recur.experiments.runner import OF_3_10, Runner, Stopped, plugin_environment
from fairseq_recur.experiments.runs import SystemRun, runs_of
from fairseq_recur.files import read_json, write_json
from fairseq_recur.locks import hold
from tests.unit.test_experiments import STARTED, runs

PROGRAM = """
import json, os, pathlib, signal, sys, time
step = sys.argv[1]
words = dict(zip(sys.argv, sys.argv[1:]))
folder = pathlib.Path(words.get("--save-dir") or pathlib.Path(words["--path"]).parent)
name = folder.parent.name
with open(os.environ["CALLS"], "a") as calls:
    print(step, name, file=calls)
line = {"epoch": 1, "update": 1.0, "loss": "2.5", "num_updates": "4"}
if step == "train":
    (folder / "train.log").write_text(json.dumps(line))
elif step + name in os.environ.get("FAILS", ""):
    sys.exit("no memory is left")
else:
    for number in range(1 if step + name in os.environ.get("STOPS_EARLY", "") else 2):
        print(f"H-{number}\\t-0.5\\tein Satz")
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Replace fairseq-recur; returns the calls so far."""
    (tmp_path / "calls").touch()
    (tmp_path / "test.de").write_text("ein Satz\nein Satz\n")
    monkeypatch.setattr(runner, "PROGRAM", [sys.executable, "-c", PROGRAM])
    monkeypatch.setattr(runner, "POLL", 0.02)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return lambda: (tmp_path / "calls").read_text().splitlines()


def three(folder: Path) -> list[SystemRun]:
    """One run of each of three systems, of which the second starts from the first."""
    systems = {name: {"flags": {"arch": "transformer"}} for name in "abc"}
    systems["b"]["start_from"] = "a"  # type: ignore[assignment]
    changed = {"systems": systems, "seeds": [1], "checkpoint": "last"}
    return runs(folder, {**changed, "score": {"reference": "test.de", "samples": 5}})


def test_an_output_without_all_translations_fails_only_its_run(
    tmp_path: Path, calls: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STOPS_EARLY", "generatea")
    a, b, c = some = three(tmp_path)
    write_json(tmp_path / "work/command.json", STARTED)
    assert experiment_run.work_on(some, a.work, 2, [], validation=False) == 1
    said = capsys.readouterr()
    assert "a seed 1: generate failed: " in said.out and "without id 1" in said.out
    assert "a seed 1 failed; see its folder" in said.err and "| c | 1 |" in said.out
    assert not a.finished() and b.finished() and c.finished() and not a.output.exists()
    monkeypatch.delenv("STOPS_EARLY")
    assert experiment_run.work_on(some, a.work, 2, [], validation=False) == 0
    assert calls().count("generate a") == 2 and calls().count("train a") == 1


def test_an_old_output_that_cannot_be_scored_does_not_stop_the_others(
    tmp_path: Path, calls: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, c = some = three(tmp_path)
    assert Runner([a], 1)() == []
    a.output.write_text("H-0\t-0.5\tein Satz\n")
    write_json(tmp_path / "work/command.json", STARTED)
    assert experiment_run.work_on(some, a.work, 1, [], validation=False) == 1
    said = capsys.readouterr().err
    assert "the table is not written: " in said and "without id 1" in said
    assert c.finished() and not (a.work / "table.md").exists()
    a.output.unlink()
    assert experiment_run.work_on(some, a.work, 1, [], validation=False) == 0
    assert len(calls()) == 7 and calls()[-1] == "generate a"


def test_results_that_cannot_be_written_do_not_stop_the_trainings(
    tmp_path: Path, calls: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(run: Any) -> None:
        raise OSError(28, "No space left on device")

    a, b, _ = three(tmp_path)
    assert Runner([a, b], 1, finished=full)() == [] and a.finished() and b.finished()
    said = capsys.readouterr().out
    assert "a seed 1: its results are not recorded yet: [Errno 28] No space left" in said


def test_a_row_needs_only_the_model_of_the_row_that_it_starts_from(
    tmp_path: Path, calls: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That this model cannot be decoded does not matter."""
    monkeypatch.setenv("FAILS", "generatea")
    a, b, _ = three(tmp_path)
    assert Runner([a, b], 1)() == ["a seed 1"]
    said = capsys.readouterr().out
    assert "a seed 1: generate failed (1); the end of" in said and "no memory is left" in said
    assert b.finished() and calls() == ["train a", "generate a", "train b", "generate b"]


def test_a_row_without_its_first_model_is_not_begun(tmp_path: Path, calls: Any) -> None:
    _, b, _ = three(tmp_path)
    waiting = Runner([b], 1)
    assert not waiting.ready(b) and waiting.failed == {b.name}
    assert waiting() == [b.name] and calls() == []


def test_a_chosen_row_brings_the_rows_that_it_starts_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also those that these start from; `status` lists the same runs."""
    experiment = three(tmp_path)[0].experiment
    systems = experiment.systems
    systems["c"].start_from = "b"

    def chosen(*names: str) -> list[str]:
        return [run.system.name for run in runs_of(experiment, tmp_path, names, [1])]

    assert chosen("c") == ["a", "b", "c"] and chosen("b") == ["a", "b"] and chosen("a") == ["a"]
    assert chosen() == [*systems]
    words = {"files": [str(tmp_path / "t.yaml")], "set": [], "seeds": []}
    args = argparse.Namespace(**words, work_dir=str(tmp_path / "work"), systems=["b"])
    assert [run.name for run in experiment_run.runs_from(args)] == ["a seed 1", "b seed 1"]
    (tmp_path / "work").mkdir()
    experiment_run.write_about(args, tmp_path / "work", {})
    capsys.readouterr()
    assert main(["experiment", "status", str(tmp_path / "work")]) == 0
    assert re.findall(r"^  (\w seed \d): waiting", capsys.readouterr().out, re.M) == [
        "a seed 1", "b seed 1"
    ]  # fmt: skip


STUBBORN = """
import os, signal, sys, time
def end(*_):
    time.sleep({before})
    {then}
signal.signal(signal.SIGTERM, end)
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(60)
"""


def stop_a_training(folder: Path, monkeypatch: pytest.MonkeyPatch, then: str) -> float:
    """Stop a training that does *then* half a second later; return how long it took."""
    code = STUBBORN.format(before=0.5, then=then)
    monkeypatch.setattr(runner, "PROGRAM", [sys.executable, "-c", code])
    monkeypatch.setattr(runner, "POLL", 0.02)
    began = time.monotonic()
    with pytest.raises(Stopped, match="SIGTERM"):
        Runner(runs(folder)[:1], 1)()
    return time.monotonic() - began


def test_a_run_that_a_signal_ends_has_not_failed(
    tmp_path: Path, calls: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C also reaches the training, which saves and ends before the runner looks again."""
    code = "import os, signal, sys; os.kill(os.getppid(), signal.SIGINT); sys.exit(75)"
    monkeypatch.setattr(runner, "PROGRAM", [sys.executable, "-c", code])
    monkeypatch.setattr(runner, "POLL", 1.0)
    a, _, c = three(tmp_path)
    with pytest.raises(Stopped, match="SIGINT"):
        Runner([a, c], 1)()
    assert "failed" not in capsys.readouterr().out and not c.state()


def test_seconds_before_a_stop_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seconds of a step are those of all its starts."""
    (run,) = runs(tmp_path)[:1]
    for _ in range(2):
        stop_a_training(tmp_path, monkeypatch, "sys.exit(75)")
    assert 1.0 < run.state()["train"]["seconds"] < 20 and not run.done("train")


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with runner.stoppable():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_IGN, signal.SIG_DFL)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_stopped_training_has_time_to_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Minutes, because a validation may have to end before."""
    then = f"open({str(tmp_path / 'saved')!r}, 'w').close(); sys.exit()"
    assert runner.PATIENCE >= 300
    monkeypatch.setattr(runner, "PATIENCE", 30)
    assert stop_a_training(tmp_path, monkeypatch, then) < 20
    assert (tmp_path / "saved").exists() and "a second signal ends all" in capsys.readouterr().out
    monkeypatch.setattr(runner, "PATIENCE", 0.2)
    (tmp_path / "saved").unlink()
    stop_a_training(tmp_path, monkeypatch, then)
    assert not (tmp_path / "saved").exists(), "in the end it is killed"


def test_a_second_signal_ends_a_training_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "TOGETHER", 0.1)
    again = "os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)"
    assert stop_a_training(tmp_path, monkeypatch, again) < 15


def test_a_child_imports_nothing_from_the_current_folder(tmp_path: Path) -> None:
    """Which may be a clone of fairseq; argparse is imported faster."""
    (tmp_path / "argparse.py").write_text("raise ImportError('a module of the current folder')")
    for program in (runner.PROGRAM, [sys.executable, "-c", OF_3_10]):
        done = subprocess.run(
            [*program, "path"], cwd=tmp_path, env=plugin_environment(), capture_output=True
        )
        assert done.returncode == 0, done.stderr
    assert speed.PROGRAM is runner.PROGRAM is experiment_run.PROGRAM


@pytest.fixture
def background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> int:
    """An experiment that has just been started in the background; returns its process."""
    runs(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(experiment_check, "check", lambda runs: {})
    monkeypatch.setattr(
        experiment_run, "PROGRAM", [sys.executable, "-c", "import time; time.sleep(60)"]
    )
    argv = ["experiment", "run", "t.yaml", "--work-dir", "work", "--background"]
    monkeypatch.setattr(sys, "argv", ["fairseq-recur", *argv])
    assert main([*argv, "--set", "data=elsewhere", "--set", "speed=null"]) == 0
    return int(capsys.readouterr().out.split()[1])


def test_the_background_holds_its_folder_from_the_beginning(
    background: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert folder_lock.process_of(Path("work")) == f"{background} on {socket.gethostname()}"
    assert main(["experiment", "status", "work"]) == 0
    assert f"process {background} on" in capsys.readouterr().out
    assert main(["experiment", "stop", "work"]) == 0
    said = capsys.readouterr().out
    assert "waiting until each training has saved" in said and "stopped; all checkpoints" in said
    assert not folder_lock.is_held(Path("work"))


def test_paths_of_set_are_stored_absolute(background: int, tmp_path: Path) -> None:
    """The next start may come from another folder."""
    os.kill(background, signal.SIGKILL)
    stored = read_json(tmp_path / "work/command.json")["set"]
    assert stored == [f"data={json.dumps(str(tmp_path / 'elsewhere'))}", "speed=null"]


def test_a_lock_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = hold(tmp_path / "lock")
    assert lock is not None
    with pytest.raises(ConfigError, match="an experiment runs in"):
        folder_lock.exclusive(tmp_path)
    monkeypatch.setenv(folder_lock.HELD, str(os.dup(lock.fileno())))
    lock.close()
    with folder_lock.exclusive(tmp_path):
        assert folder_lock.is_held(tmp_path)
        assert folder_lock.HELD not in os.environ, "a training does not take it over"
    assert not folder_lock.is_held(tmp_path)


def test_stop_waits_longer_than_a_training_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(tmp_path / "command.json", STARTED)
    lock, now = hold(tmp_path / "lock"), [0.0]
    assert lock is not None
    monkeypatch.setattr(experiment_stop.os, "kill", lambda *_: None)
    monkeypatch.setattr(experiment_stop.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(experiment_stop.time, "sleep", lambda _: now.__setitem__(0, now[0] + 1))
    with lock:
        print("4194305", file=lock, flush=True)
        assert main(["experiment", "stop", str(tmp_path)]) == 2
    assert "has not ended after 11 minutes" in capsys.readouterr().err
    assert now[0] > runner.PATIENCE


def test_nothing_is_known_of_a_step_that_other_settings_had(tmp_path: Path, calls: Any) -> None:
    """An average of a shorter training would stand for the longer one."""
    run, *_ = three(tmp_path)
    assert "average" not in run.steps
    run.write_state({"average": {"key": [], "done": True}})
    assert Runner([run], 1)() == [] and run.finished()
    assert run.state().keys() == {*run.steps}


def test_what_a_training_reads_is_stored(tmp_path: Path, calls: Any) -> None:
    """Also of one that an earlier version began, when it is accepted; nothing is trained again."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/dict.en.txt").write_text("the 3\n")
    a, b, _ = three(tmp_path)
    assert Runner([a, b], 1)() == [] and len(calls()) == 4
    read = b.state()["train"]["read"]
    assert read["start_from"] == "a seed 1 (max-epoch 4, checkpoint last)"
    assert read["dict.en.txt"].startswith("sha256 ")
    old = a.state()
    del old["train"]["read"]
    a.write_state(old)
    assert Runner([a, b], 1)() == [] and len(calls()) == 4
    assert a.state()["train"]["read"] == {k: v for k, v in read.items() if k != "start_from"}
    (tmp_path / "bin/dict.en.txt").write_text("the 4\n")
    assert len(a.check_unchanged()) == 1
