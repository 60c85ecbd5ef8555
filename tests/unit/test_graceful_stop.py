"""Signals stop a training after the update, with a checkpoint."""

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.trainer import Trainer

from fairseq_recur import cli
from fairseq_recur.cli import graceful_stop
from tests.conftest import SMALL, TRAIN
from tests.forking import Fork
from tests.running import update_losses

CHECKPOINT = SimpleNamespace(no_save=False, no_last_checkpoints=False)
TRAINER = SimpleNamespace(data_parallel_world_size=1, get_num_updates=lambda: 7)


def update(train: Any) -> bool:
    """Run what fairseq calls after an update; return whether the training ends."""
    cfg = SimpleNamespace(checkpoint=CHECKPOINT)
    return bool(train.validate_and_save(cfg, TRAINER, None, None)[1])


@pytest.fixture(autouse=True)
def signals_of_a_terminal() -> Iterator[None]:
    """Handle signals as in a terminal: in the background SIGINT and SIGHUP may be ignored."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A stand-in for fairseq_cli.train, with the number of saved checkpoints."""
    module = SimpleNamespace(validate_and_save=lambda *_: ([None], False), saved=0)

    def save(*_: Any) -> None:
        module.saved += 1

    monkeypatch.setattr(checkpoint_utils, "save_checkpoint", save)
    return module


@pytest.mark.parametrize("number", graceful_stop.SIGNALS)
def test_a_signal_saves_and_stops(
    train: SimpleNamespace, number: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    before = signal.getsignal(number)
    caplog.set_level("INFO")
    with graceful_stop.on_signals(train) as stop:
        assert not update(train) and train.saved == 0
        os.kill(os.getpid(), number)
        assert update(train) and train.saved == 1
    assert stop.status == graceful_stop.STOPPED and signal.getsignal(number) == before
    assert f"due to {number.name}, after update 7: checkpoint_last.pt is saved" in caplog.text


def test_what_nohup_ignores_stays_ignored(train: SimpleNamespace) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with graceful_stop.on_signals(train):
            update(train)
            os.kill(os.getpid(), signal.SIGHUP)
            assert not update(train)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_interrupt_ends_at_once(train: SimpleNamespace) -> None:
    with graceful_stop.on_signals(train):
        update(train)
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_has_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Before the first update, and in every other command."""

    def interrupted(*_: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_dispatch", interrupted)
    assert cli.main(["train"]) == 130
    assert capsys.readouterr().err.count("\n") == 1


def train_here(argv: list[str], told_after: int | None) -> int:
    """Train by the program's own function; SIGTERM comes at the end of an update."""
    step = Trainer.train_step

    def told(trainer: Trainer, *args: Any, **kwargs: Any) -> Any:
        logged = step(trainer, *args, **kwargs)
        if trainer.get_num_updates() == told_after:
            os.kill(os.getpid(), signal.SIGTERM)
        return logged

    Trainer.train_step = told
    return cli.main(["train", *argv])


def test_a_real_training_stops_and_resumes(corpus: Path, tmp_path: Path) -> None:
    """After the update in which SIGTERM came, with a status of its own, and from there."""
    argv = [
        str(corpus / "bin"), "--arch", "transformer_biarn_tiny", *SMALL, *TRAIN, "--max-update",
        "5", "--save-dir", str(tmp_path / "run"), "--no-epoch-checkpoints",
    ]  # fmt: skip

    def train(told_after: int | None) -> tuple[int, list[int]]:
        with open(tmp_path / "output", "wb") as stream:
            status = Fork(partial(train_here, argv, told_after), stream).wait(timeout=300)
        output = (tmp_path / "output").read_text()
        assert "Traceback" not in output, output[-3000:]
        return status, list(update_losses(output))

    assert train(told_after=3) == (graceful_stop.STOPPED, [1, 2, 3])
    state = torch.load(tmp_path / "run" / "checkpoint_last.pt", weights_only=True)
    assert state["optimizer_history"][-1]["num_updates"] == 3
    assert train(told_after=None) == (0, [4, 5])
