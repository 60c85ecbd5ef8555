"""The stock `transformer` of fairseq, with its checkpoints, in each command."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fairseq.distributed import utils as distributed_utils

from fairseq_recur import compat
from fairseq_recur.errors import CheckpointError
from tests.conftest import SMALL, TRAIN

BLEU = ["--eval-bleu", "--eval-bleu-args", '{"beam": 1}', "--eval-bleu-detok", "space"]
MADE_WITH = {
    "adam, inverse_sqrt": [],
    "eval-bleu": [*BLEU, "--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric"],
    "store-ema": ["--store-ema", "--report-accuracy"],
    "others": ["--optimizer", "nag", "--lr-scheduler", "reduce_lr_on_plateau"],
    "layerdrop": ["--encoder-layerdrop", "0.1", "--layernorm-embedding", "--update-freq", "2"],
}


@pytest.fixture(scope="module")
def train(corpus: Path, cli: Callable[..., str]) -> Callable[..., str]:
    def run(folder: Path, updates: int, *flags: str, arch: str = "transformer") -> str:
        return cli(
            "train", corpus / "bin", "--arch", arch, *SMALL, *TRAIN, "--save-dir", folder,
            "--max-update", updates, *flags,
        )  # fmt: skip

    return run


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory, train: Callable) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("stock")
    for i, flags in enumerate(MADE_WITH.values()):
        train(folder / str(i), 2, *flags)
    return {name: folder / str(i) / "checkpoint_last.pt" for i, name in enumerate(MADE_WITH)}


def allowed_names() -> set[str]:
    items = compat.safe_globals()
    named = {i[1] for i in items if isinstance(i, tuple)}
    return named | {f"{i.__module__}.{i.__qualname__}" for i in items if hasattr(i, "__qualname__")}


@pytest.mark.parametrize("name", MADE_WITH)
def test_the_allow_list_covers_what_fairseq_stores(checkpoints: dict, name: str) -> None:
    found = torch.serialization.get_unsafe_globals_in_checkpoint(checkpoints[name])
    assert found == []  # nothing that torch, with our list, would refuse
    safe = torch.serialization.get_safe_globals()
    try:
        torch.serialization.clear_safe_globals()
        needed = set(torch.serialization.get_unsafe_globals_in_checkpoint(checkpoints[name]))
    finally:
        torch.serialization.add_safe_globals(safe)
    assert "argparse.Namespace" in needed and needed <= allowed_names()
    if name == "eval-bleu":
        assert "numpy.ndarray" in needed


@pytest.mark.parametrize("name", MADE_WITH)
def test_it_continues(checkpoints: dict, train: Callable, name: str) -> None:
    output = train(checkpoints[name].parent, 4, *MADE_WITH[name])
    assert "Loaded checkpoint" in output and "@ 2 updates" in output
    assert re.search(r"num_updates[\" :=]+4", output)


@pytest.mark.parametrize("name", ["adam, inverse_sqrt", "eval-bleu"])
def test_it_translates(checkpoints: dict, corpus: Path, cli: Callable[..., str], name: str) -> None:
    flags = [corpus / "bin", "--path", checkpoints[name], "--cpu", "--max-tokens", "400"]
    output = cli("generate", *flags, "--beam", "2", "--num-workers", "0")
    assert len(re.findall(r"^H-", output, re.M)) == 20
    output = cli("interactive", *flags[:-2], stdin="w1 w2\nw3 w4 w5\n")
    assert len(re.findall(r"^H-", output, re.M)) == 2


def test_it_validates_without_a_task(checkpoints: dict, corpus: Path, cli: Callable) -> None:
    path = checkpoints["adam, inverse_sqrt"]
    flags = ["--path", path, "--cpu", "--max-tokens", "400", "--num-workers", "0"]
    output = cli("validate", corpus / "bin", *flags)
    assert re.search(r"valid .*loss \d", output)


def test_ema_weights_load(checkpoints: dict) -> None:
    from fairseq import checkpoint_utils

    ema = checkpoint_utils.load_ema_from_checkpoint(str(checkpoints["store-ema"]))
    assert ema["model"]["encoder.layers.0.fc1.weight"].abs().sum() > 0
    with pytest.raises(CheckpointError, match="--store-ema"):
        checkpoint_utils.load_ema_from_checkpoint(str(checkpoints["eval-bleu"]))


@pytest.mark.parametrize("name", MADE_WITH)
def test_it_survives_the_broadcast_of_a_resume(
    checkpoints: dict, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What rank 0 sends, read as the other ranks read it."""
    from fairseq import checkpoint_utils

    sent: list[torch.Tensor] = []
    monkeypatch.setattr(distributed_utils, "broadcast", lambda t, **_: sent.append(t))
    monkeypatch.setattr(distributed_utils, "get_rank", lambda group: 0)
    state = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoints[name]))
    light = distributed_utils._split_tensors_from_obj(state, [])
    cpu = torch.device("cpu")
    distributed_utils._broadcast_object_slow(light, 0, None, cpu)

    received = iter(sent)
    monkeypatch.setattr(distributed_utils, "broadcast", lambda t, **_: t.copy_(next(received)))
    monkeypatch.setattr(distributed_utils, "get_rank", lambda group: 1)
    arrived = distributed_utils._broadcast_object_slow(None, 0, None, cpu)
    # As text: omegaconf 2.0 cannot compare configurations that hold a Namespace.
    assert str(arrived["cfg"]) == str(light["cfg"]) and arrived["model"] == light["model"]
    assert type(arrived["cfg"]) is type(light["cfg"])


def test_a_missing_or_foreign_checkpoint(tmp_path: Path, corpus: Path, cli: Callable) -> None:
    missing, foreign = tmp_path / "none.pt", tmp_path / "foreign.pt"
    torch.save({"weight": torch.zeros(3)}, foreign)
    for command in ("generate", "interactive", "validate"):
        for path, found in ((missing, "no such file"), (foreign, "not a fairseq checkpoint")):
            with pytest.raises(CheckpointError, match=f"{path}: {found}"):
                cli(command, corpus / "bin", "--path", path, "--cpu", "--max-tokens", "400")


def test_training_from_a_damaged_checkpoint(tmp_path: Path, train: Callable) -> None:
    path = tmp_path / "checkpoint_last.pt"
    path.write_bytes(b"PK\x03\x04 damaged")
    with pytest.raises(
        CheckpointError, match=f"{path}: 12 bytes that are not a PyTorch checkpoint"
    ):
        train(tmp_path, 2)
