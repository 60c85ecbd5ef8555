"""The regular languages through the command line, and the runner of the example."""

import fcntl
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import fairseq_recur.criterions  # noqa: F401
import fairseq_recur.tasks  # noqa: F401
from tests.docs.commands import parse
from tests.running import USER_DIR, saved_weights

Cli = Callable[..., str]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "regular_languages"

SMALL = (
    "--task regular_languages --language d_2 --train-size 80 --bin-size 20 --longest-string 30 "
    "--criterion string_accuracy --decoder-layers 1 --decoder-attention-heads 2 "
    "--decoder-embed-dim 8 --decoder-input-dim 8 --decoder-output-dim 8 "
    "--decoder-ffn-embed-dim 16 --dropout 0 --optimizer adamw_fused --lr 0.005,0.005,0.0025 "
    "--lr-scheduler fixed --batch-size 32 --valid-subset bin0,bin1 --num-workers 0 --cpu "
    "--seed 1 --log-format json --log-interval 1 --no-epoch-checkpoints"
).split()
ARCHS = {
    "transformer": ["--arch", "transformer_lm"],
    "rsa": "--arch rsa_transformer_lm --rsa-heads 1,0,0,1,0,0 --rsa-dilations 2".split(),
    "relative": (
        "--arch rsa_transformer_lm --decoder-self-attention relative "
        "--no-token-positional-embeddings"
    ).split(),
}


def results(output: str, part: str) -> dict[int, dict[str, float]]:
    """What validation on a bin logged, by epoch."""
    lines = re.findall(rf"^(\{{.*\"{part}_accuracy\".*\}})$", output, re.M)
    found = [json.loads(line) for line in lines]
    kept = ({k: float(v) for k, v in line.items() if "wps" not in k} for line in found)
    return {int(line["epoch"]): line for line in kept}


@pytest.mark.parametrize("arch", ARCHS)
def test_trains_and_resumes_as_if_never_stopped(arch: str, cli: Cli, tmp_path: Path) -> None:
    flags = ["--user-dir", USER_DIR, *ARCHS[arch], *SMALL, "--save-dir"]
    at_once = cli("train", *flags, tmp_path / "once", "--max-epoch", 3)
    cli("train", *flags, tmp_path / "two", "--max-epoch", 1)
    resumed = cli("train", *flags, tmp_path / "two", "--max-epoch", 3)
    for part in ("bin0", "bin1"):
        expected = results(at_once, part)
        assert list(expected) == [1, 2, 3]
        assert {n: expected[n] for n in (2, 3)} == results(resumed, part)
        assert all(0 <= line[f"{part}_accuracy"] <= 1 for line in expected.values())
    once, two = (saved_weights(tmp_path / name / "checkpoint_last.pt") for name in ("once", "two"))
    assert once.keys() == two.keys() and all(torch.equal(once[k], two[k]) for k in once)
    rates = {float(r) for r in re.findall(r'"lr": "([\d.]+)", "gnorm"', at_once)}
    assert rates == {0.005, 0.0025}


def test_learns(cli: Cli, tmp_path: Path) -> None:
    """Letters of D_1 tell by themselves what may follow: every string is right soon."""
    output = cli(
        "train", "--user-dir", USER_DIR, *ARCHS["transformer"], *SMALL, "--language", "d_1",
        "--train-size", 40, "--bin-size", 9, "--longest-string", 100, "--lr", 0.02,
        "--batch-size", 4, "--max-epoch", 6, "--no-token-positional-embeddings", "--no-save",
    )  # fmt: skip
    for part in ("bin0", "bin1"):
        last = results(output, part)[6]
        assert last[f"{part}_accuracy"] == 1 and last[f"{part}_position_accuracy"] == 1
        assert last[f"{part}_loss"] < 0.05


def test_validate_reads_a_checkpoint(cli: Cli, tmp_path: Path) -> None:
    flags = ["--user-dir", USER_DIR, *SMALL[: SMALL.index("--decoder-layers")]]
    trained = cli(
        "train", "--user-dir", USER_DIR, *ARCHS["rsa"], *SMALL, "--save-dir", tmp_path,
        "--max-epoch", 1,
    )  # fmt: skip
    again = cli(
        "validate", *flags, "--path", tmp_path / "checkpoint_last.pt", "--valid-subset", "bin1",
        "--batch-size", 7, "--cpu", "--num-workers", 0, "--log-format", "simple",
    )  # fmt: skip
    found = float(re.search(r"valid on 'bin1' subset \| loss ([\d.]+)", again)[1])
    assert found == pytest.approx(results(trained, "bin1")[1]["bin1_loss"], abs=2e-5)


def test_wrong_subset_is_refused_before_training(cli: Cli, tmp_path: Path) -> None:
    flags = ["--user-dir", USER_DIR, *ARCHS["transformer"], *SMALL, "--save-dir", tmp_path]
    with pytest.raises(ValueError, match="train, bin0, bin1, not 'valid'"):
        cli("train", *flags, "--valid-subset", "valid", "--max-epoch", 1)


# The runner ---------------------------------------------------------------------------

# Stands for fairseq-recur: each call trains one epoch more than there was, or fails.
PROGRAM = """#!{python}
import json, os, pathlib, sys, time
words = dict(zip(sys.argv, sys.argv[1:]))
folder = pathlib.Path(words["--save-dir"])
with open(folder / "calls", "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + chr(10))
if words["--language"] == os.environ.get("FAILS"):
    sys.exit("fairseq stumbled")
done = folder / "epochs"
first = int(done.read_text()) + 1 if done.exists() else 1
for epoch in range(first, int(words["--max-epoch"]) + 1):
    for part, value in (("bin0", 0.9 - 0.01 * epoch), ("bin1", 0.1 * epoch)):
        stats = {{"epoch": epoch, part + "_accuracy": str(value)}}
        print(f"2026-01-01 00:00:00 | INFO | {{part}} | " + json.dumps(stats), flush=True)
    done.write_text(str(epoch))
    if str(epoch) == os.environ.get("STOPS_AFTER"):
        (folder / "new").write_text(str(os.getpid()))
        (folder / "new").rename(folder / "waiting")
        time.sleep(60)
"""


class Runner:
    """Runs run.py with a program in the place of fairseq-recur."""

    def __init__(self, folder: Path) -> None:
        self.work, self.program = folder / "work", folder / "bin" / "fairseq-recur"
        self.program.parent.mkdir()
        self.program.write_text(PROGRAM.format(python=sys.executable))
        self.program.chmod(0o755)

    def start(self, *arguments: str, **variables: Any) -> subprocess.Popen:
        settings = {"LANGUAGES": "d_2 parity", "SYSTEMS": "transformer rsa_1", "EPOCHS": 3}
        clean = {k: v for k, v in os.environ.items() if k not in ("SEEDS", "OPTIONS", "POSITIONS")}
        environment = {
            **clean, "WORK": self.work, "POLL": "0.05",
            "PATH": f"{self.program.parent}:{os.environ['PATH']}",
            "JOBS": 2, **settings, **variables,
        }  # fmt: skip
        return subprocess.Popen(
            [sys.executable, EXAMPLE / "run.py", *arguments], text=True,
            env={k: str(v) for k, v in environment.items()},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *arguments: str, **variables: Any) -> subprocess.CompletedProcess:
        process = self.start(*arguments, **variables)
        output, errors = process.communicate(timeout=60)
        return subprocess.CompletedProcess([], process.returncode, output, errors)

    def folder(self, language: str, system: str, seed: int = 1) -> Path:
        return self.work / language / system / f"seed{seed}"

    def calls(self) -> list[list[str]]:
        files = sorted(self.work.rglob("calls"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def wait_for(path: Path) -> None:
    for _ in range(300):
        if path.exists():
            return
        time.sleep(0.05)
    raise AssertionError(f"{path} did not appear")


def test_runner_trains_everything_once(runner: Runner) -> None:
    first = runner.run(SEEDS="1 2")
    assert first.returncode == 0, first.stderr
    assert "8 of 8 runs done, 100 % of all epochs" in first.stdout
    assert len(runner.calls()) == 8
    report = json.loads((runner.work / "results.json").read_text())
    result = report["runs"]["d_2"]["rsa_1"]["2"]
    assert result["bin0"] == {"max": 0.89, "last": 0.87, "epochs": [0.89, 0.88, 0.87]}
    assert result["bin1"]["max"] == result["bin1"]["last"] == pytest.approx(0.3)
    row = r"D_2 +RSA I \(5,0,0,0,0,0\) +1.00 +0.89 +0.87 +1.00 +0.30 +0.30 +2"
    assert re.search(row, first.stdout)
    assert "D_2, RSA I (5,0,0,0,0,0), bin 1: 0.30, paper 1.00" in first.stdout
    assert "Parity, RSA I (5,0,0,0,0,0), bin 0: " not in first.stdout  # 0.89 is near 0.99
    assert report["settings"]["SEEDS"] == "1 2" and report["versions"]["torch"] == version("torch")
    assert "SEEDS='1 2'" in report["command"]
    page = (runner.work / "results.md").read_text()
    assert "| Parity | rsa_1 | 2 | 0.8900 | 0.8700 | 0.3000 | 0.3000 |" in page

    again = runner.run(SEEDS="1 2")
    assert "8 of them done before" in again.stdout and len(runner.calls()) == 8
    table = runner.run("table")  # one seed of the two
    assert re.search(r"D_2 +RSA I .* 1$", table.stdout, re.M) and len(runner.calls()) == 8


@pytest.mark.slow
def test_runner_goes_on_after_it_was_stopped(runner: Runner) -> None:
    process = runner.start(STOPS_AFTER=2)
    for system in ("transformer", "rsa_1"):
        wait_for(runner.folder("d_2", system) / "waiting")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and "goes on from here" in errors
    assert runner.run("table").stdout.startswith("\nNo training is finished yet.")
    again = runner.run()
    assert again.returncode == 0 and "4 of 4 runs done" in again.stdout
    log = (runner.folder("d_2", "rsa_1") / "train.log").read_text()
    assert re.findall(r'bin1 \| {"epoch": (\d)', log) == ["1", "2", "3"]


@pytest.mark.slow
def test_runner_continues_with_more_epochs_and_starts_anew_with_other_flags(runner: Runner) -> None:
    only = {"LANGUAGES": "parity", "SYSTEMS": "rsa_1"}
    runner.run(**only)
    runner.run(**only, **{"EPOCHS": 5})
    log = runner.folder("parity", "rsa_1") / "train.log"
    assert re.findall(r'bin1 \| {"epoch": (\d)', log.read_text()) == list("12345")
    fewer = runner.run(**only)  # the first three epochs count
    assert json.loads((runner.work / "results.json").read_text())["runs"]["parity"]["rsa_1"]["1"][
        "bin1"
    ]["epochs"] == pytest.approx([0.1, 0.2, 0.3])
    assert "1 of them done before" in fewer.stdout
    other = runner.run(**only, **{"GATE": "-1"})
    assert "the settings have changed" in other.stdout
    assert re.findall(r'bin1 \| {"epoch": (\d)', log.read_text()) == list("123")
    assert "--rsa-gate-init=-1" in runner.calls()[-1]


def test_runner_tells_what_failed_and_does_the_rest(runner: Runner) -> None:
    result = runner.run(FAILS="d_2")
    assert result.returncode == 1
    assert "fairseq stumbled" in result.stderr and "failed: d_2 rsa_1 seed 1" in result.stderr
    assert "2 of 4 runs done" in result.stdout and "Parity" in result.stdout
    assert runner.run().returncode == 0


def test_runner_waits_for_a_training_that_another_started(runner: Runner) -> None:
    folder = runner.folder("parity", "rsa_1")
    folder.mkdir(parents=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = runner.start(LANGUAGES="parity")
        wait_for(runner.folder("parity", "transformer") / "epochs")
        time.sleep(0.5)
        assert process.poll() is None and not (folder / "calls").exists()
    assert process.wait(timeout=30) == 0
    assert (folder / "calls").exists()
    process.communicate()


def test_runner_waits_for_a_training_that_outlived_its_runner(runner: Runner) -> None:
    only = {"LANGUAGES": "parity", "SYSTEMS": "rsa_1"}
    killed = runner.start(**only, STOPS_AFTER=2)
    folder = runner.folder("parity", "rsa_1")
    wait_for(folder / "waiting")
    killed.kill()
    killed.communicate()
    process = runner.start(**only)
    time.sleep(0.7)
    assert len(runner.calls()) == 1 and process.poll() is None
    os.kill(int((folder / "waiting").read_text()), signal.SIGKILL)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and len(runner.calls()) == 2
    assert "1 of 1 runs done" in output


@pytest.mark.slow
def test_runner_refuses_wrong_settings(runner: Runner) -> None:
    for name, value, message in (
        ("LANGUAGES", "tomita_4", "LANGUAGES: tomita_4; expected some of: d_2 d_4"),
        ("SYSTEMS", "rsa", "SYSTEMS: rsa; expected some of"),
        ("SEEDS", "one", "SEEDS: 'one'; expected a whole number"),
        ("EPOCHS", "0", "EPOCHS: '0'"),
        ("POSITIONS", "yes", "POSITIONS: 'yes'; expected 0 or 1"),
        ("DEVICE", "gpu", "DEVICE: 'gpu'; expected cpu or cuda"),
        ("JOBS", "0", "with JOBS=0; expected bash run.sh [table], and JOBS from 1"),
    ):
        result = runner.run(**{name: value})
        assert result.returncode == 2 and message in result.stderr
    assert not runner.work.exists()


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    for name in ("LANGUAGES", "SYSTEMS", "SEEDS", "EPOCHS", "GATE", "OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "settings", raising=False)
    return importlib.import_module("settings")


def test_every_command_parses(settings: ModuleType) -> None:
    """A command for each system is taken by the real parsers; the languages are in their place."""
    everything = list(settings.runs(settings.Settings(seeds="1 2")))
    assert len({run.name for run in everything}) == len(everything) == 72
    assert {run.flags[run.flags.index("--language") + 1] for run in everything} == set(
        settings.LANGUAGES.split()
    )
    cases = list(settings.runs(settings.Settings(languages="d_4", positions="1", gate="-1")))
    for run in [*cases[2:4], *everything[:6]]:
        command = run.command(Path("work"))
        assert command[0] == "fairseq-recur"
        parse(command)
    assert all("--cpu" in run.flags for run in everything)
    assert not any("--cpu" in r.flags for r in settings.runs(settings.Settings(device="cuda")))
    rates = command[command.index("--lr") + 1].split(",")
    assert len(rates) == 25
    assert [float(r) for r in (rates[4], rates[5], rates[24])] == [0.005, 0.0025, 0.0003125]
    heads = {r.system: [int(n) for n in r.flags[r.flags.index("--rsa-heads") + 1].split(",")]
             for r in everything if "--rsa-heads" in r.flags}  # fmt: skip
    expected = json.loads((EXAMPLE / "expected.json").read_text())["systems"]
    assert len(heads) == 4
    for system, numbers in heads.items():
        assert sum(numbers) == 5
        assert f"({','.join(map(str, numbers))})" in expected[system]
