"""Several trainings in sequence in each of several processes, which torchrun's launcher starts.

The processes are forks of this one, and are told their ranks as those of the program are.
"""

import os
from functools import partial
from pathlib import Path

from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from fairseq_recur.errors import ConfigError
from tests.forking import Fork
from tests.running import run_command


def train(plan: list[list[str]], refused: bool) -> None:
    """Train in this process; or, if every training must be refused, print why."""
    rank = os.environ["RANK"]
    for number, arguments in enumerate(plan):
        words = [word.replace("$RANK", rank) for word in arguments]
        if not refused:
            print(run_command("train", *words))
            continue
        try:
            run_command("train", *words)
            print(f"training {number} on rank {rank} was not refused")
        except ConfigError as error:
            print(f"training {number} on rank {rank}: {error}")


def launch(processes: int, plan: list[list[str]], refused: bool) -> None:
    """Do what ``torchrun --standalone`` does, with a function in place of a program."""
    config = LaunchConfig(
        1, 1, processes, run_id="tests", rdzv_backend="c10d", rdzv_endpoint="localhost:0",
        max_restarts=0, start_method="fork",
    )  # fmt: skip
    elastic_launch(config, train)(plan, refused)


def run_plan(processes: int, plan: list[list[str]], folder: Path, refused: bool = False) -> str:
    """Train several times in several processes; return their output.

    Args:
        processes: their number
        plan: the arguments of each training; $RANK in them is the process's number
        folder: for the output
        refused: whether each training must end with a ConfigError, which is printed
    """
    with open(folder / "output", "wb") as stream:
        child = Fork(partial(launch, processes, plan, refused), stream)
    try:
        status = child.wait()
    finally:
        child.kill()
    output = (folder / "output").read_text()
    assert status == 0, output[-4000:]
    return output
