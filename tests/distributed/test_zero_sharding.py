"""--zero-sharding os changes only which process keeps which part of the optimizer's state."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conftest import SMALL, TRAIN
from tests.distributed.several import run_plan
from tests.distributed.test_presets_by_several import data  # noqa: F401
from tests.running import USER_DIR, assert_identical, saved_weights

pytestmark = pytest.mark.slow

# Weight decay, from which RSA's parameters are exempt, and a learning rate of BiARN's own make
# several groups of parameters.
FLAGS = [
    *"--arch rsa_transformer --recurrence biarn --recurrence-lr-scale 2".split(), *SMALL, *TRAIN,
    *"--weight-decay 0.01 --batch-size 4 --disable-validation --no-epoch-checkpoints".split(),
]  # fmt: skip
KINDS = {
    "adam": [],
    "adamw_fused": ["--optimizer", "adamw_fused"],
    "half": ["--memory-efficient-fp16", "--fp16-init-scale", "4"],  # float32 state of fp16 weights
}
STAGES = [(2, 4), (4, 8), (2, 12), (1, 16)]
"""How many processes train up to which update: whole epochs, and at last a part of one."""

SHARDING = {"adam": "os os os os", "adamw_fused": "os none os os", "half": "none os none os"}
"""The flag in each stage of each kind: checkpoints go to and come from trainings without it."""


def arguments(data: Path, folder: Path, kind: str, sharding: str, updates: int) -> list[str]:
    return [
        str(data), "--user-dir", USER_DIR, *FLAGS, *KINDS[kind], "--zero-sharding", sharding,
        "--max-update", str(updates), "--save-dir", str(folder / kind),
    ]  # fmt: skip


def assert_equal_checkpoints(folder: Path, plain: Path, updates: int) -> None:
    """What was trained with the flag equals what was trained without it."""
    for kind in KINDS:
        files = [each / kind / "checkpoint_last.pt" for each in (folder, plain)]
        assert_identical(*map(saved_weights, files))
        states = [torch.load(file, weights_only=True) for file in files]
        assert [s["optimizer_history"][-1]["num_updates"] for s in states] == [updates] * 2
        optimizers = [s["last_optimizer_state"] for s in states]
        assert len(optimizers[0]["param_groups"]) >= 3 and len(optimizers[0]["state"]) > 40
        assert_identical(*optimizers)


def test_bits_of_two_four_two_and_one_process(
    data: Path, cli: Callable[..., str], tmp_path: Path
) -> None:
    """Each number of processes continues where the one before it has stopped."""
    plain = tmp_path / "plain"
    for stage, (processes, updates) in enumerate(STAGES):
        flags = {kind: SHARDING[kind].split()[stage] for kind in KINDS}
        plan = [arguments(data, tmp_path, *each, updates) for each in flags.items()]
        plan += [arguments(data, plain, kind, "none", updates) for kind in KINDS]
        if processes > 1:
            output = run_plan(processes, plan, tmp_path)
            shares = re.findall(r"keeps the state of (\d+) of (\d+) parameters", output)
            assert len(shares) >= list(flags.values()).count("os")
            for own, every in shares:
                assert 0.5 < int(own) * processes / int(every) < 1.5
        else:
            output = "".join(cli("train", *each) for each in plan)
            assert output.count("one process keeps the state of all") == len(KINDS)
        assert_equal_checkpoints(tmp_path, plain, updates)
