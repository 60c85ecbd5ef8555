"""What ``fairseq-recur convert`` refuses: one message, and nothing written."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_recur.cli.average import load
from tests.conftest import TRAIN
from tests.huggingface import change_config, convert, converted, refused, save_t5
from tests.running import USER_DIR

Cli = Callable[..., str]


def test_parts_that_the_format_lacks_are_named(
    cli: Cli, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = "--encoder-embed-dim 16 --encoder-ffn-embed-dim 24 --encoder-layers 1".split()
    cli(
        "train", corpus / "bin", "--user-dir", USER_DIR, "--arch", "t5_small", *sizes,
        "--decoder-layers", 1, "--encoder-attention-heads", 2, "--decoder-attention-heads", 2,
        "--decoder-self-attention", "rsa", "--recurrence", "biarn", *TRAIN, "--max-update", 1,
        "--save-dir", tmp_path,
    )  # fmt: skip
    message = refused(capsys, tmp_path / "checkpoint_last.pt", tmp_path / "back")
    assert "--decoder-self-attention rsa, --recurrence biarn" in message
    state = load(tmp_path / "checkpoint_last.pt")
    state["cfg"]["model"]["recurrence"] = "none"
    state["cfg"]["model"]["decoder_self_attention"] = "dot"
    torch.save(state, tmp_path / "claims.pt")
    message = refused(capsys, tmp_path / "claims.pt", tmp_path / "back")
    assert "no place for decoder.layers.0" in message


def test_a_stock_transformer_is_no_bart(
    cli: Cli, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = "--encoder-embed-dim 16 --encoder-ffn-embed-dim 24 --encoder-layers 1".split()
    cli(
        "train", corpus / "bin", "--user-dir", USER_DIR, "--arch", "transformer", *sizes, *TRAIN,
        "--max-update", 1, "--save-dir", tmp_path,
    )  # fmt: skip
    message = refused(capsys, tmp_path / "checkpoint_last.pt", tmp_path / "back")
    assert "encoder_learned_pos" in message and "layernorm_embedding" in message


UNSUPPORTED: dict[str, Any] = {
    "kind": ("v1.0", {"model_type": "longt5"}, ["model_type longt5", "t5, mt5, bart"]),
    "activation": ("v1.0", {"feed_forward_proj": "gated-silu"}, ["'gated-silu'", "relu"]),
    "epsilon": ("v1.0", {"layer_norm_epsilon": 1e-5}, ["layer_norm_epsilon is 1e-05"]),
    "start": ("v1.0", {"decoder_start_token_id": 5}, ["decoder_start_token_id is 5"]),
    "width": ("v1.0", {"d_model": 32}, ["the weights do not fit", "asks for"]),
    "layers": ("v1.0", {"num_layers": 3, "num_decoder_layers": 2}, ["lacks the weight"]),
    "fewer layers": ("v1.0", {"num_layers": 1, "num_decoder_layers": 2}, ["has no place for"]),
    "rows": ("v1.0", {"vocab_size": 69}, ["shared.weight has 68 rows"]),
    "tokenizer": ("v1.0", {"vocab_size": 20}, ["tokenizer", "beyond the 20 rows"]),
    "size": ("v1.0", {"num_heads": "two"}, ["num_heads is two"]),
    "scaled": ("v1.1", {"scale_decoder_outputs": True}, ["lm_head.weight differs"]),
    "bart norm": (
        "bart", {"normalize_before": True, "add_final_layer_norm": True},
        ["normalize_before is True", "add_final_layer_norm is True"],
    ),
    "bart scale": ("bart", {"scale_embedding": True}, ["scale_embedding"]),
    "bart activation": ("bart", {"activation_function": "swish"}, ["'swish'", "gelu"]),
    "bart start": ("bart", {"decoder_start_token_id": 0}, ["decoder_start_token_id is 0"]),
}  # fmt: skip


@pytest.mark.parametrize("kind, changes, said", UNSUPPORTED.values(), ids=UNSUPPORTED.keys())
def test_unsupported_settings_are_named(
    folders: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    kind: str, changes: dict[str, Any], said: list[str],
) -> None:  # fmt: skip
    folder = tmp_path / "model"
    shutil.copytree(folders(kind), folder)
    change_config(folder, **changes)
    message = refused(capsys, folder, tmp_path / "out")
    for words in said:
        assert words in message


def damage(folder: Path, file: str) -> None:
    """Cut a file in half."""
    path = folder / file
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


BROKEN: dict[str, Any] = {
    "no config": (lambda f: (f / "config.json").unlink(), "no config.json in"),
    "half a config": (lambda f: damage(f, "config.json"), "config.json is damaged"),
    "list": (lambda f: (f / "config.json").write_text("[]"), "expected an object"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no weights in"),
    "half the weights": (lambda f: damage(f, "model.safetensors"), "cannot be read"),
    "no tokenizer": (lambda f: (f / "spiece.model").unlink(), "no tokenizer in"),
    "half a tokenizer": (lambda f: damage(f, "spiece.model"), "spiece.model is damaged"),
    "other tokenizer": (
        lambda f: (f / "tokenizer.json").write_text('{"model": {"type": "WordPiece"}}'),
        "expected a Unigram model",
    ),
}


@pytest.mark.parametrize("change, said", BROKEN.values(), ids=BROKEN.keys())
def test_broken_folders_are_refused(
    folders: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    change: Callable[[Path], Any], said: str,
) -> None:  # fmt: skip
    folder = tmp_path / "model"
    shutil.copytree(folders("v1.0"), folder)
    change(folder)
    assert said in refused(capsys, folder, tmp_path / "out")


def test_no_code_is_run(tmp_path: Path, folders: Callable[[str], Path],
                        capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    """A pickle that would write a file when it is loaded."""

    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "exploded"),)

    folder = tmp_path / "model"
    shutil.copytree(folders("v1.0"), folder)
    (folder / "model.safetensors").unlink()
    torch.save({"shared.weight": Bomb()}, folder / "pytorch_model.bin")
    assert "cannot be read" in refused(capsys, folder, tmp_path / "out")
    assert not (tmp_path / "exploded").exists()


def test_wrong_paths_are_refused(
    folders: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, full = folders("v1.0"), tmp_path / "full"
    full.mkdir()
    (full / "mine").touch()
    assert "is there already" in refused(capsys, folder, full)
    assert "no such file or folder" in refused(capsys, tmp_path / "none", tmp_path / "out")
    assert "--like goes with" in refused(capsys, folder, tmp_path / "out", "--like", folder)
    model = converted(folder) / "model.pt"
    other = folders("bart")
    assert "is a bart" in refused(capsys, model, tmp_path / "out", "--like", other)
    larger = tmp_path / "larger"
    save_t5(larger, "v1.0", spare=20)
    message = refused(capsys, model, tmp_path / "out", "--like", larger)
    assert "the checkpoint has 68 words" in message


def test_a_failure_leaves_nothing(
    folders: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", "model.pt")

    monkeypatch.setattr("fairseq_recur.cli.convert.torch.save", full)
    with pytest.raises(OSError):
        convert(folders("v1.0"), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_without_safetensors_there_is_one_message(
    folders: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = folders("v1.0")
    monkeypatch.setitem(__import__("sys").modules, "safetensors.torch", None)
    monkeypatch.setitem(__import__("sys").modules, "safetensors", None)
    message = refused(capsys, folder, tmp_path / "out")
    assert "pip install 'fairseq-recur[convert]'" in message
    message = refused(capsys, converted(folder) / "model.pt", tmp_path / "out")
    assert "pip install 'fairseq-recur[convert]'" in message
