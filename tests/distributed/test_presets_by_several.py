"""Two and four processes train the same model as one, also with uneven batches."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from fairseq_recur.modules.stream_memory import is_memory
from tests.conftest import FAST_STRUCTURES, SMALL, STRUCTURES, SYSTEMS, TRAIN, write_corpus
from tests.distributed.several import run_plan
from tests.running import USER_DIR, saved_weights
from tests.systems import has_neuron

SENTENCES = 16  # the whole training set
UPDATES = 12

# Plain gradient descent: Adam turns the last bit of a zero gradient, such as that of a bias that
# softmax cancels, into a step of full size.
TRAINING = [
    *SMALL, *TRAIN, *"--optimizer sgd --lr 0.05 --lr-scheduler fixed".split(),
    *f"--max-update {UPDATES} --disable-validation --no-epoch-checkpoints".split(),
    *"--dropout 0 --attention-dropout 0 --activation-dropout 0".split(),
    *"--required-batch-size-multiple 1".split(),
]  # fmt: skip


# At the paper's threshold of 0.1 SRformer's neuron amplifies rounding: after 20 updates, half the
# batch twice per update is 0.007 away from the whole batch. At the unit scale no neuron would fire
# at 1, so there it keeps its default.
NEURON = ["--srformer-threshold-init", "1"]


# Each process draws the keys anew in each forward pass, as it draws dropout. So all are drawn here.
DRAWN = ["--prob-sparse-factor", "9"]


class Shares(NamedTuple):
    """The number of processes that share an update, and the sentences in each one's batch."""

    processes: int
    each: int

    @property
    def alone(self) -> list[str]:
        """The flags of the same training in one process."""
        return ["--batch-size", str(self.each), "--update-freq", str(self.processes)]


# Batches of 7, 7 and 2, or five of 3 and one of 1: in the second update of each epoch, one of two
# processes or two of four have no batch.
TWO, FOUR = Shares(2, 7), Shares(4, 3)

BACKENDS: dict[str, list[str]] = {
    "pytorch_ddp": ["--ddp-backend", "pytorch_ddp"],
    "legacy_ddp": ["--ddp-backend", "legacy_ddp"],
    "pytorch_ddp-checkpointed": ["--ddp-backend", "pytorch_ddp", "--checkpoint-activations"],
}
OTHERS = ["legacy_ddp", "pytorch_ddp-checkpointed"]
FAST = [f"{preset}-default" for preset in FAST_STRUCTURES]
DEFAULTS = [f"{preset}-default" for preset in STRUCTURES]
OPTIONS = [model for model in SYSTEMS if model not in FAST]


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


def arguments(data: Path, model: str, folder: Path, *flags: str) -> list[str]:
    system = SYSTEMS[model]
    neuron = NEURON if has_neuron(system) and "--srformer-scale" not in system else []
    drawn = DRAWN if "prob_sparse" in system else []
    return [
        str(data), "--user-dir", USER_DIR, *system, *TRAINING, "--save-dir", str(folder),
        *neuron, *drawn, *flags,
    ]  # fmt: skip


def train_by(
    shares: Shares, data: Path, folder: Path, models: list[str], backends: list[str]
) -> Path:
    """Train all models in several processes, each into (folder)/MODEL/BACKEND."""
    batch = ["--batch-size", str(shares.each)]
    plan = [
        arguments(data, model, folder / model / backend, *batch, *BACKENDS[backend])
        for model in models
        for backend in backends
    ]
    run_plan(shares.processes, plan, folder)
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return saved_weights(folder / "checkpoint_last.pt")


@pytest.fixture(scope="module")
def two(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some presets, trained with fairseq's default back end."""
    return train_by(TWO, data, tmp_path_factory.mktemp("two"), FAST, ["pytorch_ddp"])


@pytest.fixture(scope="module")
def four(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_by(FOUR, data, tmp_path_factory.mktemp("four"), DEFAULTS, ["pytorch_ddp"])


@pytest.fixture(scope="module")
def others(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The presets, trained with the other back end, and with activation checkpointing."""
    return train_by(TWO, data, tmp_path_factory.mktemp("others"), DEFAULTS, OTHERS)


@pytest.fixture(scope="module")
def options(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The other presets, and the presets' options, trained with one back end."""
    return train_by(TWO, data, tmp_path_factory.mktemp("options"), OPTIONS, ["pytorch_ddp"])


@pytest.mark.parametrize("model", FAST)
def test_two_processes(
    model: str, data: Path, two: Path, cli: Callable[..., str], tmp_path: Path
) -> None:
    assert_equal_one(TWO, data, two / model, model, ["pytorch_ddp"], cli, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("model", DEFAULTS)
def test_four_processes(
    model: str, data: Path, four: Path, cli: Callable[..., str], tmp_path: Path
) -> None:
    assert_equal_one(FOUR, data, four / model, model, ["pytorch_ddp"], cli, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("model", DEFAULTS)
def test_two_processes_otherwise(
    model: str, data: Path, others: Path, cli: Callable[..., str], tmp_path: Path
) -> None:
    assert_equal_one(TWO, data, others / model, model, OTHERS, cli, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("model", OPTIONS)
def test_two_processes_with_options(
    model: str, data: Path, options: Path, cli: Callable[..., str], tmp_path: Path
) -> None:
    assert_equal_one(TWO, data, options / model, model, ["pytorch_ddp"], cli, tmp_path)


def assert_equal_one(
    shares: Shares, data: Path, several: Path, model: str, backends: list[str],
    cli: Callable[..., str], tmp_path: Path,
) -> None:  # fmt: skip
    """Train in one process, and compare with what several processes trained."""
    middle = UPDATES // 2 - 1  # within an epoch: at its end fairseq saves no such checkpoint
    every = ["--save-interval-updates", str(middle)]
    cli("train", *arguments(data, model, tmp_path, *shares.alone, *every))
    one = weights(tmp_path)
    (halfway,) = tmp_path.glob(f"checkpoint_*_{middle}.pt")
    before = saved_weights(halfway)
    assert {backend.name for backend in several.iterdir()} == {*backends}
    for backend in several.iterdir():
        state = torch.load(backend / "checkpoint_last.pt", weights_only=True)
        world = state["cfg"]["distributed_training"]["distributed_world_size"]
        assert world == shares.processes
        assert state["optimizer_history"][-1]["num_updates"] == UPDATES
        assert_close(weights(backend), one, backend.name)
    assert_moved(one, before, 1e-4)


def assert_close(
    found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], where: str = ""
) -> None:
    """Weights agree within 1e-6, states in a memory within 1e-6 of the largest if that is above 1.

    Some states are added up without a norm, and float32 has seven digits.
    """
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        large = is_memory(name) and value.is_floating_point() and value.numel()
        size = max(1.0, float(value.abs().max())) if large else 1.0
        message = f"{where}: {name}"
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-6 * size, msg=message)


def enlarge(checkpoint: Path) -> Path:
    """Make a checkpoint's matrices ten times larger, and leave out its memory.

    Of matrices from N(0, 0.02) a part deep in a model has gradients that no update shows.
    """
    state = torch.load(checkpoint, weights_only=True)
    state["model"] = {
        name: 10 * weight if weight.dim() > 1 else weight
        for name, weight in state["model"].items()
        if not is_memory(name)
    }
    torch.save(state, checkpoint)
    return checkpoint


def assert_moved(
    weights: dict[str, torch.Tensor], before: dict[str, torch.Tensor], least: float
) -> None:
    """Most weights have moved by more than the tolerance with which trainings are compared."""
    own = [name for name in weights if not is_memory(name)]
    moved = [name for name in own if (weights[name] - before[name]).abs().max() > least]
    assert len(moved) > len(own) / 2, "the updates must be larger than the tolerance"
