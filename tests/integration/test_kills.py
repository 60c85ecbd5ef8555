"""Commands killed repeatedly at random moments lose nothing and leave no partial file."""

import errno
import gc
import importlib
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytest
import torch

from fairseq_recur.cli import main
from tests.forking import Fork
from tests.integration.test_resume import UPTO, train_flags
from tests.running import (
    SHORT,
    USER_DIR,
    assert_identical,
    hypotheses,
    saved,
    saved_weights,
    update_losses,
)

PRESET = "transformer_biarn_tiny"
EVERY = ["--save-interval-updates", 1]
"""A checkpoint after each update, so that many kills happen while it is written."""


def call(name: str, *argv: Any) -> int:
    """What the program does: fairseq's train or generate, or our average."""
    sys.argv = [name, *map(str, argv)]
    if name == "average":
        return main(sys.argv)
    return importlib.import_module(f"fairseq_cli.{name}").cli_main() or 0


def run(
    name: str, *argv: Any, output: Path, kill_after: float | None = None,
    once_there: Path | None = None,
) -> int:  # fmt: skip
    """Run a command in a fork, and kill it if it is still running after *kill_after* seconds.

    Args:
        once_there: a file; the seconds count from when it is there

    Returns:
        the exit status; -9 if the command was killed
    """
    with open(output, "wb") as stream:
        child = Fork(partial(call, name, *argv), stream)
    if kill_after is not None:
        while once_there is not None and not once_there.exists() and child.poll() is None:
            time.sleep(0.005)
        time.sleep(kill_after)
        child.kill()
    return child.wait()


@pytest.mark.parametrize("kills", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_training(kills: int, corpus: Path, tmp_path: Path) -> None:
    whole, folder, log = tmp_path / "whole", tmp_path / "killed", tmp_path / "log"
    started = time.monotonic()
    assert run("train", *train_flags(corpus, PRESET, whole, *UPTO[6], *EVERY), output=log) == 0
    seconds, expected = time.monotonic() - started, saved(whole)
    flags = train_flags(corpus, PRESET, folder, *UPTO[6], *EVERY)
    moments, done, finished, resumed = random.Random(kills), 0, 0, 0
    last = folder / "checkpoint_last.pt"
    while done < kills or not finished or not resumed:
        before = updates_in(last)
        # The first kill waits for a checkpoint: a restart would end with the same weights. After
        # the last kill the training must reach its end, however slow it is.
        first = None if before or resumed else last
        patience = moments.uniform(0, seconds) if done < kills else None
        patience = 0 if first else patience
        ended = run("train", *flags, output=log, kill_after=patience, once_there=first)
        assert ended in (0, -signal.SIGKILL), log.read_text()
        made = update_losses(log.read_text())
        assert not made or min(made) == before + 1, "it must go on after the checkpoint"
        resumed += bool(before and made)
        done += ended != 0
        for file in folder.glob("*.pt"):  # each file with a final name is complete
            torch.load(file, weights_only=True)
        if ended == 0:
            finished += 1
            assert_identical(saved(folder), expected)
            shutil.rmtree(folder)


def updates_in(checkpoint: Path) -> int:
    """The number of updates that a checkpoint holds; 0 if there is none."""
    if not checkpoint.exists():
        return 0
    return torch.load(checkpoint, weights_only=True)["optimizer_history"][-1]["num_updates"]


@pytest.mark.parametrize("kills", [pytest.param(60, marks=pytest.mark.slow)])
def test_averaging(kills: int, trained: Callable[..., Path], tmp_path: Path) -> None:
    inputs = [trained(PRESET) / f"checkpoint{n}.pt" for n in (5, 10)]
    output, log = tmp_path / "average.pt", tmp_path / "log"
    argv = ["--inputs", *inputs, "--output", output]
    started = time.monotonic()
    assert run("average", *argv, output=log) == 0, log.read_text()
    seconds, expected = time.monotonic() - started, saved_weights(output)
    output.unlink()
    moments, done = random.Random(kills), 0
    while done < kills:
        ended = run("average", *argv, output=log, kill_after=moments.uniform(0, seconds))
        assert ended in (0, -signal.SIGKILL), log.read_text()
        done += ended != 0
        if output.exists():
            assert_identical(saved_weights(output), expected)
            output.unlink()
    assert run("average", *argv, output=log) == 0
    assert_identical(saved_weights(output), expected)
    assert [file.name for file in tmp_path.iterdir() if file != log] == ["average.pt"]


@pytest.mark.parametrize("kills", [pytest.param(10, marks=pytest.mark.slow)])
def test_generating(kills: int, corpus: Path, trained: Callable[..., Path], tmp_path: Path) -> None:
    checkpoint = trained(PRESET) / "checkpoint10.pt"
    before = checkpoint.read_bytes()
    argv = [
        corpus / "bin", "--user-dir", USER_DIR, "--path", checkpoint, "--cpu", "--batch-size", 1,
        "--num-workers", 0, *SHORT,
    ]  # fmt: skip
    log = tmp_path / "log"
    started = time.monotonic()
    assert run("generate", *argv, output=log) == 0
    seconds, expected = time.monotonic() - started, hypotheses(log.read_text())
    assert len(expected) == 20
    moments, done = random.Random(kills), 0
    while done < kills:
        patience = moments.uniform(0, seconds)
        ended = run("generate", *argv, output=log, kill_after=patience)
        assert ended in (0, -signal.SIGKILL), log.read_text()
        done += ended != 0
        found = hypotheses(log.read_text().rpartition("\n")[0])  # the last line may be incomplete
        assert all(found[n] == expected[n] for n in found)
    assert run("generate", *argv, output=log) == 0
    assert hypotheses(log.read_text()) == expected and checkpoint.read_bytes() == before


def half_a_copy() -> None:
    """From now on, the process is killed in the middle of copying a file."""

    def copyfileobj(source: IO[bytes], target: IO[bytes], length: int = 0) -> None:
        content = source.read()
        target.write(content[: len(content) // 2])
        target.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    def copyfile(source: str, target: str, **_: Any) -> None:
        with open(source, "rb") as one, open(target, "wb") as other:
            copyfileobj(one, other)

    shutil.copyfileobj, shutil.copyfile = copyfileobj, copyfile


def train_after(before: Callable[[], None], log: Path, *flags: Any) -> tuple[int, str]:
    """Train in a fork that calls a function first; return the exit status and the output."""

    def both() -> int:
        before()
        return call("train", *flags)

    with open(log, "wb") as stream:
        status = Fork(both, stream).wait()
    return status, log.read_text()


def six_updates(cli: Callable[..., str], corpus: Path, folder: Path) -> dict[str, bytes]:
    cli("train", *train_flags(corpus, PRESET, folder, *UPTO[6]))
    gc.collect()  # the trainer, which holds the folder's lock
    return {file.name: file.read_bytes() for file in folder.glob("*.pt")}


def assert_resumes(cli: Callable[..., str], corpus: Path, folder: Path) -> None:
    """The training resumes and becomes equal to one that was never stopped."""
    cli("train", *train_flags(corpus, PRESET, folder, *UPTO[12]))
    whole = folder.with_name("whole")
    cli("train", *train_flags(corpus, PRESET, whole, *UPTO[12]))
    assert_identical(saved(folder), saved(whole))


@pytest.mark.slow
def test_killed_while_the_last_checkpoint_is_copied(
    cli: Callable[..., str], corpus: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "train"
    before = six_updates(cli, corpus, folder)
    flags = train_flags(corpus, PRESET, folder, *UPTO[12], "--save-interval-updates", 2)
    status, said = train_after(half_a_copy, tmp_path / "log", *flags)
    assert status == -signal.SIGKILL, said
    (left,) = folder.glob("checkpoint_last.pt.*.tmp")
    assert left.stat().st_size < len(before["checkpoint_last.pt"])
    assert (folder / "checkpoint_last.pt").read_bytes() == before["checkpoint_last.pt"]
    assert_resumes(cli, corpus, folder)
    assert not left.exists()


@pytest.mark.slow
def test_a_disk_that_fills_up(cli: Callable[..., str], corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "train"
    before = six_updates(cli, corpus, folder)
    half = len(before["checkpoint_last.pt"]) // 2

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (half, half))

    flags = train_flags(corpus, PRESET, folder, *UPTO[12])
    status, said = train_after(small_files, tmp_path / "log", *flags)
    assert status not in (0, -signal.SIGKILL)
    last = said.strip().splitlines()[-1]
    assert "could not be written" in last and "GB left" in last and "free some space" in last
    assert not list(folder.glob("*.tmp"))
    assert {file.name: file.read_bytes() for file in folder.glob("*.pt")} == before
    assert_resumes(cli, corpus, folder)


def test_a_write_that_fails_once_leaves_no_mixture(tmp_path: Path) -> None:
    """Stock fairseq retries in the same file; here there is one error and the earlier file."""
    from fairseq import checkpoint_utils

    class Unwritable:
        def __reduce__(self) -> str:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "checkpoint1.pt"
    checkpoint_utils.torch_persistent_save({"n": torch.ones(3)}, str(path))
    before = path.read_bytes()
    with pytest.raises(RuntimeError, match="could not be written"):
        checkpoint_utils.torch_persistent_save({"n": Unwritable()}, str(path))
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == [path.name]
