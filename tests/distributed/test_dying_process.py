"""Killing one process ends the whole training soon, with one error; nothing is lost."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import SMALL, TRAIN
from tests.distributed.dying import UPDATES
from tests.running import USER_DIR, saved_weights

ROOT = Path(__file__).parents[2]
SECONDS = 120
"""Much longer than the start takes, much shorter than gloo's timeout of half an hour."""


def flags(corpus: Path, folder: Path) -> list[str]:
    return [
        str(corpus / "bin"), "--arch", "transformer_biarn_tiny", *SMALL, *TRAIN,
        "--max-update", "8", "--save-dir", str(folder), "--save-interval-updates", "1",
        "--keep-interval-updates", "1",
    ]  # fmt: skip


def environment(**more: object) -> dict[str, str]:
    """Return this process's environment without a launcher's variables."""
    launcher = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK")
    kept = {name: value for name, value in os.environ.items() if name not in launcher}
    return {**kept, "OMP_NUM_THREADS": "1", **{name: str(value) for name, value in more.items()}}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def by_hand(
    victim: int, processes: int, arguments: list[str]
) -> list["subprocess.CompletedProcess[str]"]:
    """Processes without a supervisor, as `srun` starts them."""
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": processes}
    argv = [sys.executable, "-m", "tests.distributed.dying", str(victim), *arguments]
    running = [
        subprocess.Popen(
            argv, cwd=ROOT, env=environment(RANK=rank, **rendezvous), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(processes)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=SECONDS) for process in running]
    finally:
        for process in running:
            process.kill()
    return [
        subprocess.CompletedProcess(argv, process.returncode, *texts)
        for process, texts in zip(running, said)
    ]


def assert_resumes(cli: Callable[..., str], corpus: Path, folder: Path) -> None:
    """The last checkpoint is complete and recent, and training resumes from it."""
    assert saved_weights(folder / "checkpoint_last.pt")
    output = cli("train", *flags(corpus, folder), "--user-dir", USER_DIR)
    assert f"@ {UPDATES} updates" in output


@pytest.mark.slow
@pytest.mark.parametrize("victim, processes", [(0, 2), (0, 3), (2, 3)])
def test_the_others_end_with_one_error(
    victim: int, processes: int, corpus: Path, cli: Callable[..., str], tmp_path: Path
) -> None:
    for rank, ended in enumerate(by_hand(victim, processes, flags(corpus, tmp_path))):
        if rank == victim:
            assert ended.returncode == -signal.SIGKILL
        else:
            assert ended.returncode == 1, ended.stderr
            assert "Traceback" not in ended.stderr
            (error,) = (line for line in ended.stderr.splitlines() if "error:" in line)
            assert "another process of this training has ended, or could not" in error
            assert f"rank {rank} was told: " in error and "gloo/" not in error
            assert "continues from the last checkpoint" in ended.stderr
    assert_resumes(cli, corpus, tmp_path)


@pytest.mark.slow
def test_torchrun_ends(corpus: Path, cli: Callable[..., str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
         "-m", "tests.distributed.dying", "1", *flags(corpus, tmp_path)],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Signal 9 (SIGKILL) received by PID" in done.stderr
    assert_resumes(cli, corpus, tmp_path)
