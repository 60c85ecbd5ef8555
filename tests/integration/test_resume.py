"""A training that was stopped and resumed equals one that was never stopped."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import series
from tests.conftest import FORECASTERS, SMALL, TRAIN, fast_or_slow, preset_flags
from tests.running import (
    USER_DIR,
    assert_half_precision_resumes,
    assert_identical,
    saved,
    update_losses,
)
from tests.systems import SRFORMER_VARIANTS

Cli = Callable[..., str]

# An epoch has four updates, so six updates end in the middle of one.
UPTO = {n: ["--max-update", str(n)] for n in (6, 12)}


def train_flags(corpus: Path, arch: str, folder: Path, *flags: Any) -> list[str]:
    return [
        str(flag)
        for flag in (
            corpus / "bin", "--user-dir", USER_DIR, "--arch", arch, *SMALL, *TRAIN,
            *preset_flags(arch), "--save-interval", 10, "--save-dir", folder, *flags,
        )
    ]  # fmt: skip


def assert_resumes(arch: str, cli: Cli, corpus: Path, folder: Path, flags: list[Any]) -> None:
    """Losses and checkpoint are those of the training that was never stopped."""
    flags = ["--dropout", 0.1, "--attention-dropout", 0.1, *flags]
    at_once, in_two = folder / "once", folder / "two"
    expected = update_losses(cli("train", *train_flags(corpus, arch, at_once, *flags, *UPTO[12])))
    assert list(expected) == list(range(1, 13)) and len(set(expected.values())) > 8
    first = update_losses(cli("train", *train_flags(corpus, arch, in_two, *flags, *UPTO[6])))
    second = update_losses(cli("train", *train_flags(corpus, arch, in_two, *flags, *UPTO[12])))
    assert list(first) == list(range(1, 7)) and list(second) == list(range(7, 13))
    assert {**first, **second} == expected
    assert_identical(saved(in_two), saved(at_once))


@pytest.mark.slow_presets
def test_resumed_equals_never_stopped(preset: str, cli: Cli, corpus: Path, tmp_path: Path) -> None:
    flags = ["--recurrence-lr-scale", 3] if preset == "transformer_biarn" else []
    assert_resumes(preset, cli, corpus, tmp_path, flags)


@pytest.mark.slow
def test_all_three_systems_together_resume(cli: Cli, corpus: Path, tmp_path: Path) -> None:
    assert_resumes("srformer", cli, corpus, tmp_path, SRFORMER_VARIANTS["all-three"])


@pytest.mark.slow_presets
def test_float32_copies_are_resumed(preset: str, cli: Cli, corpus: Path, tmp_path: Path) -> None:
    flags = ["--bf16", "--dropout", 0.1]
    at_once, in_two = tmp_path / "once", tmp_path / "two"
    cli("train", *train_flags(corpus, preset, at_once, *flags, *UPTO[12]))
    for updates in (6, 12):
        cli("train", *train_flags(corpus, preset, in_two, *flags, *UPTO[updates]))
    found, expected = saved(in_two), saved(at_once)
    assert_identical(found, expected)
    copies = expected["optimizer"]["half_precision"]["copies"]
    assert not all(x.equal(x.bfloat16().float()) for x in copies), "they are more than weights"


@pytest.mark.parametrize(
    "arch", [fast_or_slow(a, a, a == "rsa_xl_forecaster") for a in FORECASTERS]
)
def test_forecasters_in_half_precision(arch: str, cli: Cli, tmp_path: Path) -> None:
    """The same with float16 and, in one of them, with a memory of the batch before."""
    path = series.write_series(tmp_path / "x.csv")
    half = "--memory-efficient-fp16 --fp16-init-scale 4 --fp16-scale-window 5".split()
    half += ["--batch-size", "8"]

    def train(folder: str, updates: int) -> dict[int, float]:
        flags = [*half, "--save-dir", tmp_path / folder, "--max-update", updates]
        words = ["--user-dir", USER_DIR, "--arch", arch, *series.flags(path, *flags)]
        return update_losses(cli("train", *words))

    assert_half_precision_resumes(train, tmp_path)


def test_a_finished_training_is_unchanged(cli: Cli, corpus: Path, tmp_path: Path) -> None:
    """It ends immediately when it is started again; stock fairseq does another update each time."""
    flags = train_flags(corpus, "transformer_biarn_tiny", tmp_path, *UPTO[6])
    cli("train", *flags)
    before = (tmp_path / "checkpoint_last.pt").read_bytes()
    output = cli("train", *flags)
    assert "Nothing is left to train: 6 updates are made, --max-update is 6" in output
    assert not update_losses(output)
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == before


@pytest.mark.slow
def test_patience_outlives_a_stop(
    cli: Cli, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a rate of 0 no validation after the first is better, so a patience of 2 ends at 3."""
    flags = ["--lr", 0, "--patience", 2, "--no-epoch-checkpoints", "--save-interval", 1]

    def train(name: str, epochs: int) -> str:
        argv = train_flags(corpus, "transformer", tmp_path / name, *flags)
        return cli("train", *argv, "--max-epoch", epochs)

    def ended(output: str) -> list[str]:
        return re.findall(r"end of epoch (\d+) ", output)

    monkeypatch.setattr("tests.running.reset_command_state", lambda: None)
    assert ended(train("once", 20)) == ["1", "2", "3"]
    assert ended(train("two", 2)) == ["1", "2"], "counted by another training of this process"
    monkeypatch.undo()
    assert ended(train("two", 20)) == ["3"]
    output = train("two", 20)
    assert "Nothing is left to train: 2 validations were not better, --patience is 2" in output
    assert not ended(output)


@pytest.mark.parametrize("updates", [6, 8])
def test_a_plateau_outlives_a_stop(cli: Cli, corpus: Path, tmp_path: Path, updates: int) -> None:
    """No validation is better than infinity by 1,000 %: the rate halves after every second one."""
    flags = ["--lr-scheduler", "reduce_lr_on_plateau", "--lr", 1e-3, "--lr-shrink", 0.5]
    flags += ["--lr-patience", 1, "--lr-threshold", 10, "--warmup-updates", 2]

    def train(name: str, upto: int) -> None:
        argv = train_flags(corpus, "transformer", tmp_path / name, *flags)
        cli("train", *argv, "--max-update", upto, "--save-interval", 1, "--no-epoch-checkpoints")

    train("once", 20)
    train("two", updates)
    train("two", 20)
    expected = saved(tmp_path / "once")
    assert expected["optimizer"]["param_groups"][0]["lr"] == 1e-3 / 4
    assert_identical(saved(tmp_path / "two"), expected)


@pytest.mark.parametrize("way", ["--finetune-from-model", "resumed"])
def test_averages_begin_with_a_checkpoint_without_them(
    way: str, cli: Cli, corpus: Path, tmp_path: Path
) -> None:
    """The first average is of its weights, and of those after the first update."""
    before = after = tmp_path / "before"
    cli("train", *train_flags(corpus, "transformer", before, *UPTO[6]))
    start = saved(before)["model"]
    flags = ["--store-ema", "--ema-decay", 0.5, "--save-interval-updates", 1, "--save-interval", 1]
    arch, updates = "transformer", 7
    if way != "resumed":
        arch, updates, after = "transformer_biarn", 1, tmp_path / "after"
        flags += [way, before / "checkpoint_last.pt"]
    cli("train", *train_flags(corpus, arch, after, *flags, "--max-update", updates))
    state = torch.load(after / "checkpoint_last.pt", weights_only=True)
    averages, weights = state["extra_state"]["ema"], state["model"]
    of_both = [name for name in averages if name in start and start[name].is_floating_point()]
    assert len(of_both) > 20
    for name in of_both:
        expected = (start[name].float() + weights[name].float()) / 2
        torch.testing.assert_close(averages[name].float(), expected)


def test_averaged_weights_outlive_a_stop(cli: Cli, corpus: Path, tmp_path: Path) -> None:
    """Averaged at every fourth update, so the next of 6 is 8, and not 10."""
    flags = ["--store-ema", "--ema-decay", 0.5, "--ema-update-freq", 4, "--dropout", 0.1]
    for name, updates in (("once", 10), ("two", 6), ("two", 10)):
        argv = train_flags(corpus, "transformer", tmp_path / name, *flags)
        cli("train", *argv, "--max-update", updates)
    averages = [
        torch.load(tmp_path / name / "checkpoint_last.pt", weights_only=True)["extra_state"]["ema"]
        for name in ("two", "once")
    ]
    assert_identical(*averages)


def test_a_curriculum_outlives_a_stop(cli: Cli, corpus: Path, tmp_path: Path) -> None:
    """The first epoch has the corpus's order, and the others are shuffled, resumed or not."""

    def sizes(name: str, updates: int) -> list[str]:
        argv = train_flags(corpus, "transformer", tmp_path / name, "--curriculum", 1)
        return re.findall(r", bsz=(\d+), ", cli("train", *argv, "--max-update", updates))

    once = sizes("once", 16)
    assert len(once) == 16 and once[4:8] != once[:4]
    assert sizes("two", 4) + sizes("two", 16) == once
    assert_identical(saved(tmp_path / "two"), saved(tmp_path / "once"))


KILLED_AT_NINE = """
import os, signal
from fairseq.trainer import Trainer
step = Trainer.train_step
def train_step(self, *args, **kwargs):
    if self.get_num_updates() == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, *args, **kwargs)
Trainer.train_step = train_step
from fairseq_cli.train import cli_main
cli_main()
"""


@pytest.mark.slow  # the kills of test_kills.py are at random moments
def test_killed_and_resumed_equals_never_stopped(cli: Cli, corpus: Path, tmp_path: Path) -> None:
    """Killed after nine updates, with a checkpoint of the sixth."""
    at_once, killed = tmp_path / "once", tmp_path / "killed"
    preset = "transformer_biarn_tiny"
    cli("train", *train_flags(corpus, preset, at_once, *UPTO[12]))
    flags = train_flags(corpus, preset, killed, *UPTO[12], "--save-interval-updates", 6)
    done = subprocess.run(
        [sys.executable, "-c", KILLED_AT_NINE, *flags], capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    assert 9 in update_losses(done.stdout) or 9 in update_losses(done.stderr)
    resumed = update_losses(cli("train", *flags))
    assert list(resumed) == list(range(7, 13))
    assert_identical(saved(killed), saved(at_once))
