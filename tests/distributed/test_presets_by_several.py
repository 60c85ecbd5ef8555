"""Two processes with half the batch train what one process with the whole trains."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Callable, Dict, List

import pytest
import torch

from tests.conftest import SMALL, STRUCTURES, SYSTEMS, TRAIN, write_corpus
from tests.running import USER_DIR, saved_weights

ROOT = Path(__file__).parents[2]
SENTENCES = 16  # the whole training set, and the batch of one update

# Plain gradient descent: Adam makes a step of full size of a gradient that is zero but for
# its last bit, like that of a bias that softmax cancels.
TRAINING = [
    *SMALL, *TRAIN, *"--optimizer sgd --lr 0.1 --lr-scheduler fixed --max-update 3".split(),
    *"--disable-validation --no-epoch-checkpoints --dropout 0 --attention-dropout 0".split(),
    *"--activation-dropout 0".split(),
]  # fmt: skip

BACKENDS: Dict[str, List[str]] = {
    "pytorch_ddp": ["--ddp-backend", "pytorch_ddp"],
    "legacy_ddp": ["--ddp-backend", "legacy_ddp"],
    "pytorch_ddp-checkpointed": ["--ddp-backend", "pytorch_ddp", "--checkpoint-activations"],
}
DEFAULT_BACKENDS = [name for name in BACKENDS if name != "legacy_ddp"]
DEFAULTS = [f"{preset}-default" for preset in STRUCTURES]
OPTIONS = [model for model in SYSTEMS if model not in DEFAULTS]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, cli: Callable[..., str]) -> Path:
    """Sixteen sentences of different lengths."""
    folder = tmp_path_factory.mktemp("sixteen")
    for name in ("train", "valid"):
        write_corpus(folder, name, SENTENCES, lambda words: words[::-1], 5)
    cli(
        "preprocess", "--source-lang", "src", "--target-lang", "tgt", "--joined-dictionary",
        "--trainpref", folder / "train", "--validpref", folder / "valid",
        "--destdir", folder / "bin",
    )  # fmt: skip
    return folder / "bin"


def arguments(data: Path, model: str, folder: Path, batch: int, *flags: str) -> List[str]:
    return [
        str(data), "--user-dir", USER_DIR, *SYSTEMS[model], *TRAINING, "--batch-size", str(batch),
        "--save-dir", str(folder), *flags,
    ]  # fmt: skip


def train_by_two(data: Path, folder: Path, models: List[str], backends: List[str]) -> Path:
    """Train all in two processes, and return the folder in which they are: MODEL/BACKEND."""
    plan = [
        arguments(data, model, folder / model / backend, SENTENCES // 2, *BACKENDS[backend])
        for model in models
        for backend in backends
    ]
    (folder / "plan.json").write_text(json.dumps(plan))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
         "-m", "tests.distributed.train_several", str(folder / "plan.json")],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return folder


def weights(folder: Path) -> Dict[str, torch.Tensor]:
    return saved_weights(folder / "checkpoint_last.pt")


@pytest.fixture(scope="module")
def presets(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The presets, by fairseq's default back end, also with activation checkpointing."""
    return train_by_two(data, tmp_path_factory.mktemp("presets"), DEFAULTS, DEFAULT_BACKENDS)


@pytest.fixture(scope="module")
def legacy(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The presets, by the other one."""
    return train_by_two(data, tmp_path_factory.mktemp("legacy"), DEFAULTS, ["legacy_ddp"])


@pytest.fixture(scope="module")
def options(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Their options, by one back end."""
    return train_by_two(data, tmp_path_factory.mktemp("options"), OPTIONS, ["pytorch_ddp"])


@pytest.mark.parametrize("model", DEFAULTS)
def test_two_processes_equal_one(
    model: str, data: Path, presets: Path, cli: Callable[..., str], tmp_path: Path
) -> None:
    assert_equal_one(data, presets / model, model, len(DEFAULT_BACKENDS), cli, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("model", DEFAULTS)
def test_two_processes_equal_one_with_legacy_ddp(
    model: str, data: Path, legacy: Path, cli: Callable[..., str], tmp_path: Path
) -> None:
    assert_equal_one(data, legacy / model, model, 1, cli, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("model", OPTIONS)
def test_two_processes_equal_one_with_options(
    model: str, data: Path, options: Path, cli: Callable[..., str], tmp_path: Path
) -> None:
    assert_equal_one(data, options / model, model, 1, cli, tmp_path)


def assert_equal_one(
    data: Path, two: Path, model: str, count: int, cli: Callable[..., str], tmp_path: Path
) -> None:
    """Train in one process, and compare with what two have trained by *count* back ends."""
    cli("train", *arguments(data, model, tmp_path / "one", SENTENCES))
    one = weights(tmp_path / "one")
    cli("train", *arguments(data, model, tmp_path / "start", SENTENCES, "--max-update", "1"))
    start = weights(tmp_path / "start")
    backends = list(two.iterdir())
    assert len(backends) == count
    for backend in backends:
        state = torch.load(backend / "checkpoint_last.pt", weights_only=True)
        assert state["cfg"]["distributed_training"]["distributed_world_size"] == 2
        assert state["optimizer_history"][-1]["num_updates"] == 3
        found = weights(backend)
        assert found.keys() == one.keys()
        for name, value in one.items():
            message = f"{backend.name}: {name}"
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-6, msg=message)
    moved = [name for name in start if (start[name] - one[name]).abs().max() > 1e-4]
    assert len(moved) > len(start) / 2, "the updates must be larger than the tolerance"
