"""Several trainings in sequence in each of several processes, which torchrun's launcher starts.

The processes are forks of this one, and are told their ranks as those of the program are.
"""

from functools import partial
from pathlib import Path

from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from tests.forking import Fork
from tests.running import run_command


def train(plan: list[list[str]]) -> None:
    """Train in this process."""
    for arguments in plan:
        print(run_command("train", *arguments))


def launch(processes: int, plan: list[list[str]]) -> None:
    """Do what ``torchrun --standalone`` does, with a function in place of a program."""
    config = LaunchConfig(
        1, 1, processes, run_id="tests", rdzv_backend="c10d", rdzv_endpoint="localhost:0",
        max_restarts=0, start_method="fork",
    )  # fmt: skip
    elastic_launch(config, train)(plan)


def run_plan(processes: int, plan: list[list[str]], folder: Path) -> str:
    """Train several times in several processes; return their output.

    Args:
        processes: their number
        plan: the arguments of each training
        folder: for the output
    """
    with open(folder / "output", "wb") as stream:
        child = Fork(partial(launch, processes, plan), stream)
    try:
        status = child.wait()
    finally:
        child.kill()
    output = (folder / "output").read_text()
    assert status == 0, output[-4000:]
    return output
