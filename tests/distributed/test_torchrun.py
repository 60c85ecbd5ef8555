"""Two CPU processes that torchrun starts train one model, and resume."""

import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fairseq.distributed import utils as distributed_utils

from fairseq_recur.compat.fairseq_options import PACKAGE
from tests.conftest import SMALL, TRAIN

# Adam would amplify the last bit of a gradient that should be zero; plain gradient descent does
# not. Two ranks take the batches that --update-freq 2 combines in one process.
SGD = ["--optimizer", "sgd", "--lr", "0.05", "--lr-scheduler", "fixed", "--dropout", "0"]
MODELS = {"legacy_ddp": "transformer", "pytorch_ddp": "transformer_biarn_tiny"}

pytestmark = pytest.mark.slow


def flags(corpus: Path, arch: str, folder: Path, updates: int) -> list[str]:
    return [
        str(corpus / "bin"), "--arch", arch, *SMALL, *TRAIN, *SGD, "--save-dir", str(folder),
        "--max-update", str(updates), "--max-tokens", "60", "--no-epoch-checkpoints",
    ]  # fmt: skip


def torchrun(command: str, *arguments: str, check: bool = True, processes: int = 2) -> str:
    """Start ``fairseq-COMMAND`` in several processes, as a user does, and return their output.

    In the arguments, $RANK is a process's number.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK"):
        environment.pop(name, None)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    program = [sys.executable, "-m", f"fairseq_cli.{command}", "--user-dir", str(PACKAGE)]
    # A shell, because torchrun gives all processes the same arguments.
    words = " ".join(f'"{word}"' for word in (*program, *arguments))
    call = [*launcher, f"--nproc_per_node={processes}", "--no-python", "sh", "-c", f"exec {words}"]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, timeout=300)
    output = done.stdout + done.stderr
    assert not check or done.returncode == 0, output[-3000:]
    return output


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoint_last.pt", weights_only=True)["model"]


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if not key.endswith("_float_tensor"):  # fairseq 0.12.2 never fills this buffer
            torch.testing.assert_close(found[key], value, rtol=0, atol=1e-6, msg=key)


@pytest.mark.parametrize("backend", MODELS)
def test_two_processes_train_one_model_and_resume(
    corpus: Path, cli: Callable[..., str], tmp_path: Path, backend: str
) -> None:
    one, two, arch = tmp_path / "one", tmp_path / "two", MODELS[backend]
    for updates in (3, 6):
        cli("train", *flags(corpus, arch, one, updates), "--update-freq", 2)
        output = torchrun("train", *flags(corpus, arch, two, updates), "--ddp-backend", backend)
        assert "training on 2 devices" in output
        if updates == 6:
            assert "@ 3 updates" in output  # resumed, not restarted
        assert_same(weights(two), weights(one))
    for folder in (one, two):  # one process goes on where two have stopped
        cli("train", *flags(corpus, arch, folder, 8), "--update-freq", 2)
    assert_same(weights(two), weights(one))

    if backend == "legacy_ddp":
        return
    validate = ["--path", str(two / "checkpoint_last.pt"), "--cpu", "--max-tokens", "60"]
    alone = cli("validate", corpus / "bin", *validate)
    together = torchrun("validate", str(corpus / "bin"), *validate)
    found = [re.findall(r"valid \| .*?loss ([\d.]+)", text) for text in (alone, together)]
    assert found[0] and set(found[1]) == set(found[0])


def test_three_processes_continue_where_one_has_stopped(
    corpus: Path, cli: Callable[..., str], tmp_path: Path
) -> None:
    """In the middle of an epoch, and to its end and beyond; or they say what to do."""
    one, three, odd = (tmp_path / name for name in ("one", "three", "odd"))
    arch = "transformer_biarn_tiny"
    cli("train", *flags(corpus, arch, one, 3), "--update-freq", 3)
    shutil.copytree(one, three)
    cli("train", *flags(corpus, arch, one, 14), "--update-freq", 3)
    output = torchrun("train", *flags(corpus, arch, three, 14), processes=3)
    assert "training on 3 devices" in output and "(epoch 1 @ 3 updates)" in output
    assert "begin training epoch 2" in output
    assert_same(weights(three), weights(one))
    cli("train", *flags(corpus, arch, odd, 4))
    output = torchrun("train", *flags(corpus, arch, odd, 8), processes=3, check=False)
    assert "of 1 process, which 3 cannot continue after 4 batches: give 1 process," in output
    assert "num_updates=5" not in output


def test_two_processes_with_other_sentences_are_refused(
    corpus: Path, cli: Callable[..., str], tmp_path: Path
) -> None:
    """With the same lengths and dictionaries, so that their batches are the same."""
    sides = ("src", "tgt")
    for side in sides:
        text = (corpus / f"train.{side}").read_text()
        (tmp_path / f"train.{side}").write_text(text.replace("w1 ", "w2 "))
    for rank, train in enumerate((corpus, tmp_path)):
        cli(
            "preprocess", "--source-lang", "src", "--target-lang", "tgt",
            "--srcdict", corpus / "bin" / "dict.src.txt", "--joined-dictionary",
            "--trainpref", train / "train", "--validpref", corpus / "valid",
            "--destdir", tmp_path / str(rank) / "bin",
        )  # fmt: skip
    words = flags(tmp_path / "$RANK", "transformer", tmp_path, 2)
    output = torchrun("train", *words, check=False)
    assert "the processes of this training differ: hash of some sentences of train is" in output
    assert "num_updates=1" not in output


def test_an_error_of_the_first_rank_ends_both(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoint_last.pt").write_bytes(b"damaged")
    output = torchrun("train", *flags(corpus, "transformer", tmp_path, 2), check=False)
    assert "checkpoint_last.pt: 7 bytes that are not a PyTorch checkpoint" in output


@pytest.mark.skipif(
    "distributed_world_size == 1" not in inspect.getsource(distributed_utils.infer_init_method),
    reason="fairseq 0.12.2 joins the processes here, and fails without a GPU",
)
def test_hydra_through_the_stock_command_refuses_to_train_two_models(
    corpus: Path, tmp_path: Path
) -> None:
    settings = f"""
common: {{cpu: true, user_dir: {PACKAGE}}}
checkpoint: {{save_dir: {tmp_path}}}
task: {{_name: translation, data: {corpus / "bin"}, source_lang: src, target_lang: tgt}}
dataset: {{max_tokens: 400}}
optimization: {{max_update: 2, lr: [0.01]}}
optimizer: {{_name: adam}}
lr_scheduler: {{_name: fixed}}
criterion: {{_name: cross_entropy}}
model: {{_name: transformer_biarn_tiny}}
"""
    (tmp_path / "run.yaml").write_text(settings)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]
    program = ["2", "-m", "fairseq_cli.hydra_train", "--config-dir", str(tmp_path)]
    call = [*launcher, *program, "--config-name", "run"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HYDRA_FULL_ERROR": "1"}
    done = subprocess.run(
        call, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    output = done.stdout + done.stderr
    assert done.returncode != 0
    assert "torchrun started 2 processes, and each would train a separate model" in output
    assert not list(tmp_path.glob("checkpoint*.pt"))
