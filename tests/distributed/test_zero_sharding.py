"""--zero-sharding os changes only which process keeps which part of the optimizer's state."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import SMALL, TRAIN
from tests.distributed.test_presets_by_several import data, run_plan  # noqa: F401
from tests.running import USER_DIR, saved_weights

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


def arguments(data: Path, folder: Path, kind: str, sharding: str, updates: int) -> list[str]:
    return [
        str(data), "--user-dir", USER_DIR, *FLAGS, *KINDS[kind], "--zero-sharding", sharding,
        "--max-update", str(updates), "--save-dir", str(folder / kind / sharding),
    ]  # fmt: skip


def assert_equal(found: Any, expected: Any) -> None:
    """Compare nested states bit for bit."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            assert_equal(found[name], expected[name])
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected):
            assert_equal(one, other)
    elif isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype and torch.equal(found, expected)
    else:
        assert found == expected


def assert_equal_checkpoints(folder: Path, updates: int) -> None:
    """What was trained with the flag equals what was trained without it."""
    for kind in KINDS:
        plain, sharded = (folder / kind / s / "checkpoint_last.pt" for s in ("none", "os"))
        assert_equal(saved_weights(sharded), saved_weights(plain))
        states = [torch.load(file, weights_only=True) for file in (sharded, plain)]
        assert [s["optimizer_history"][-1]["num_updates"] for s in states] == [updates] * 2
        optimizers = [s["last_optimizer_state"] for s in states]
        assert len(optimizers[0]["param_groups"]) >= 3 and len(optimizers[0]["state"]) > 40
        assert_equal(*optimizers)


def test_bits_of_two_processes_then_of_four_then_of_one(
    data: Path, cli: Callable[..., str], tmp_path: Path
) -> None:
    """Each number of processes continues where the one before it has stopped, after an epoch."""
    both = [(kind, sharding) for kind in KINDS for sharding in ("none", "os")]
    for processes, updates in ((2, 4), (4, 8)):
        plan = [arguments(data, tmp_path, *each, updates) for each in both]
        output = run_plan(processes, plan, tmp_path)
        assert_equal_checkpoints(tmp_path, updates)
        shares = re.findall(r"keeps the state of (\d+) of (\d+) parameters", output)
        assert len(shares) >= len(KINDS)
        for own, every in shares:
            assert 0.5 < int(own) * processes / int(every) < 1.5
    for kind, sharding in both:
        output = cli("train", *arguments(data, tmp_path, kind, sharding, 12))
        assert ("one process keeps the state of all" in output) is (sharding == "os")
    assert_equal_checkpoints(tmp_path, 12)
