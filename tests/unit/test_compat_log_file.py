"""The training's log: a line is written once, and a file has the lines of a pipe."""

import io
import logging
import sys
from pathlib import Path

import pytest
import torch
from fairseq import trainer
from fairseq.logging import progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_every_line_is_written_once(
    stream: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shown = stream()
    monkeypatch.setattr(sys, "stderr", shown)
    caplog.set_level("INFO")
    for name in ("one.log", "two.log"):
        log = tmp_path / name
        for epoch in (1, 2, 3):
            bar = progress_bar.progress_bar(
                range(4), log_file=str(log), log_interval=2, epoch=epoch,
                tensorboard_logdir=str(tmp_path / "board") if epoch == 3 else None,
            )  # fmt: skip
            for step in bar:
                update = 4 * (epoch - 1) + step + 1
                bar.log({"loss": 9 - update / 2, "num_updates": update}, "train_inner", update)
            valid = progress_bar.progress_bar(range(1), epoch=epoch, prefix="valid")
            valid.print({"loss": 1.0}, "valid", 4 * epoch)
            bar.print({"loss": 1.0 + epoch, "num_updates": 4 * epoch}, "train", 4 * epoch)
        lines = log.read_text().splitlines()
        assert len(lines) == len(set(lines)) == 3 * (2 + 2)
        assert lines[4].split() == "epoch 002: 2 / 4 loss=6, num_updates=6".split()
    open_files = [h for h in progress_bar.logger.handlers if isinstance(h, logging.FileHandler)]
    assert [Path(handler.baseFilename).name for handler in open_files] == ["two.log"]
    if stream is Terminal:  # whose lines of an interval are the bar's
        assert "loss=6" not in caplog.text and "epoch 003" in shown.getvalue()
    open_files[0].close()
    progress_bar.logger.removeHandler(open_files[0])


def test_missing_parameters_are_not_shared() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2, bias=False) for _ in range(3)))
    assert trainer._catalog_shared_params(model) == []
    model[2].weight = model[0].weight
    assert trainer._catalog_shared_params(model) == [["0.weight", "2.weight"]]
