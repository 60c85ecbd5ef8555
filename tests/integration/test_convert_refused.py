"""What ``fairseq-recur convert`` refuses: one message, nothing written, no code run."""

import json
import os
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_recur.conversion.vocabulary import t5_pieces, t5_vocabulary
from fairseq_recur.errors import ConfigError
from fairseq_recur.loading.states import read_state
from tests.conftest import TRAIN
from tests.huggingface import change_config, converted, refused, save_t5, state_of
from tests.running import USER_DIR

Cli = Callable[..., str]
Folders = Callable[[str], Path]
Capture = pytest.CaptureFixture[str]
LARGE = 10**9


@pytest.fixture
def copied(folders: Folders, tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a model's folder that a test may change."""
    return lambda kind: shutil.copytree(folders(kind), tmp_path / "model")


def test_other_models_of_fairseq_are_refused(
    cli: Cli, corpus: Path, tmp_path: Path, capsys: Capture
) -> None:
    """Parts that the format lacks are named; a stock transformer is not a BART."""
    sizes = "--encoder-embed-dim 16 --encoder-ffn-embed-dim 24 --encoder-layers 1".split()
    common = [corpus / "bin", "--user-dir", USER_DIR, *sizes, *TRAIN, "--max-update", 1]
    common += "--disable-validation --no-epoch-checkpoints --save-dir".split()
    cli(
        "train", *common, tmp_path, "--arch", "t5_small", "--decoder-layers", 1,
        "--encoder-attention-heads", 2, "--decoder-attention-heads", 2,
        "--decoder-self-attention", "rsa", "--cross-attention-mixture", "rsa",
        "--recurrence", "biarn",
    )  # fmt: skip
    message = refused(capsys, tmp_path / "checkpoint_last.pt", tmp_path / "back")
    parts = "--decoder-self-attention rsa, --cross-attention-mixture rsa, --recurrence biarn"
    assert parts in message
    state = read_state(tmp_path / "checkpoint_last.pt")
    plain = {
        "recurrence": "none",
        "decoder_self_attention": "dot",
        "cross_attention_mixture": "none",
    }
    for changes, said in (
        (plain, "no place for decoder.layers.0"),
        ({**plain, "encoder_layers": LARGE}, "asks for more layers than its"),
        (
            {"encoder_layers": 1, "encoder_embed_dim": "16"},
            "encoder_embed_dim is '16', expected a whole",
        ),
    ):
        state["cfg"]["model"].update(changes)
        torch.save(state, tmp_path / "claims.pt")
        assert said in refused(capsys, tmp_path / "claims.pt", tmp_path / "back")
    cli("train", *common, tmp_path / "stock", "--arch", "transformer")
    message = refused(capsys, tmp_path / "stock" / "checkpoint_last.pt", tmp_path / "back")
    assert "encoder_learned_pos" in message and "layernorm_embedding" in message


UNSUPPORTED: dict[str, Any] = {
    "kind": ("v1.0", {"model_type": "longt5"}, ["model_type is 'longt5'", "t5, mt5, bart"]),
    "no kind": ("v1.0", {"model_type": ["t5"]}, ["model_type is ['t5']"]),
    "activation": ("v1.0", {"feed_forward_proj": "gated-silu"}, ["'gated-silu'", "relu"]),
    "epsilon": ("v1.0", {"layer_norm_epsilon": 1e-5}, ["layer_norm_epsilon is 1e-05"]),
    "start": ("v1.0", {"decoder_start_token_id": 5}, ["decoder_start_token_id is 5"]),
    "width": ("v1.0", {"d_model": 32}, ["the weights do not fit", "asks for"]),
    "layers": ("v1.0", {"num_layers": 3, "num_decoder_layers": 2}, ["lacks the weight"]),
    "fewer layers": ("v1.0", {"num_layers": 1, "num_decoder_layers": 2}, ["has no place for"]),
    "more layers": ("v1.0", {"num_layers": 2**20}, ["1048578 layers", "tensors"]),
    "rows": ("v1.0", {"vocab_size": 69}, ["shared.weight has 68 rows"]),
    "all rows": ("v1.0", {"vocab_size": 2**24}, ["shared.weight has 68 rows"]),
    "bart rows": ("bart", {"vocab_size": 2**24}, ["shared.weight has"]),
    "bart layers": ("bart", {"decoder_layers": 2**20}, ["1048578 layers", "tensors"]),
    "padding": ("v1.0", {"pad_token_id": 68}, ["pad_token_id is 68, expected a whole number"]),
    "same row": (
        "v1.0", {"pad_token_id": 1, "decoder_start_token_id": 1}, ["rows 1, 1 and 2", "different"]
    ),
    "scaled": ("v1.1", {"scale_decoder_outputs": True}, ["lm_head.weight differs"]),
    "bart norm": (
        "bart", {"normalize_before": True, "add_final_layer_norm": True},
        ["normalize_before is True", "add_final_layer_norm is True"],
    ),
    "bart scale": ("bart", {"scale_embedding": True}, ["scale_embedding"]),
    "bart heads": ("bart", {"encoder_attention_heads": 3}, ["multiple of the 3 encoder_att"]),
    "bart activation": ("bart", {"activation_function": "swish"}, ["'swish'", "gelu"]),
    "bart start": ("bart", {"decoder_start_token_id": 0}, ["decoder_start_token_id is 0"]),
}  # fmt: skip


@pytest.mark.parametrize("kind, changes, said", UNSUPPORTED.values(), ids=UNSUPPORTED.keys())
def test_unsupported_settings_are_named(
    copied: Callable[[str], Path], tmp_path: Path, capsys: Capture,
    kind: str, changes: dict[str, Any], said: list[str],
) -> None:  # fmt: skip
    folder = copied(kind)
    change_config(folder, **changes)
    message = refused(capsys, folder, tmp_path / "out")
    for words in said:
        assert words in message


SETTINGS = {
    "v1.0": "vocab_size d_model d_kv d_ff num_heads num_layers num_decoder_layers pad_token_id "
    "eos_token_id relative_attention_num_buckets relative_attention_max_distance dropout_rate "
    "feed_forward_proj tie_word_embeddings scale_decoder_outputs",
    "bart": "vocab_size d_model encoder_ffn_dim decoder_ffn_dim encoder_layers decoder_layers "
    "encoder_attention_heads decoder_attention_heads max_position_embeddings dropout "
    "attention_dropout activation_dropout activation_function",
}


@pytest.mark.parametrize("kind", [
    pytest.param(kind, marks=() if kind == "v1.0" else pytest.mark.slow) for kind in SETTINGS
])  # fmt: skip
def test_no_setting_becomes_an_option(
    copied: Callable[[str], Path], tmp_path: Path, capsys: Capture, kind: str
) -> None:
    """Settings of a wrong type, out of range, or unfit for a command line; no code is run."""
    folder, ran = copied(kind), tmp_path / "model" / "ran"
    (folder / "plugin").mkdir()
    (folder / "plugin" / "__init__.py").write_text(f"open({str(ran)!r}, 'w')")
    original = (folder / "config.json").read_text()
    user_dir = f"--user-dir={folder / 'plugin'}"
    for name in SETTINGS[kind].split():
        for value in (user_dir, "--help", "", "${oc.env:HOME}", [user_dir], {}, LARGE, -1, -0.5):
            (folder / "config.json").write_text(json.dumps({**json.loads(original), name: value}))
            assert f"{name} is {value!r:.60}, expected" in refused(capsys, folder, tmp_path / "out")
    assert not ran.exists()


def damage(folder: Path, file: str) -> None:
    """Cut a file in half."""
    path = folder / file
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def write(file: str, text: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / file).write_text(text)


def deflate(folder: Path) -> None:
    """Weights that are much larger than their file."""
    (folder / "model.safetensors").unlink()
    torch.save({"shared.weight": torch.zeros(2**16, 16)}, folder / "large.bin")
    with (
        zipfile.ZipFile(folder / "large.bin") as stored,
        zipfile.ZipFile(folder / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as small,
    ):
        for entry in stored.infolist():
            small.writestr(entry.filename, stored.read(entry))


def flip(folder: Path) -> None:
    """Weights of which one bit is not what was saved."""
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    torch.save({"shared.weight": torch.ones(64, 16)}, path)
    content = bytearray(path.read_bytes())
    content[content.index(torch.ones(64).numpy().tobytes())] ^= 1
    path.write_bytes(content)


def repeat(folder: Path) -> None:
    """Weights with a stride of 0."""
    (folder / "model.safetensors").unlink()
    torch.save({"shared.weight": torch.zeros(1).expand(LARGE, 16)}, folder / "pytorch_model.bin")


def lose(folder: Path) -> None:
    """An index with a weight that its shard lacks."""
    (folder / "model.safetensors").rename(folder / "shard.safetensors")
    places = {"weight_map": {"shared.weight": "shard.safetensors", "lost": "shard.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(places))


DEEP = "[" * 100_000
BROKEN: dict[str, Any] = {
    "no config": (lambda f: (f / "config.json").unlink(), "no config.json in"),
    "half a config": (lambda f: damage(f, "config.json"), "config.json is damaged"),
    "list": (write("config.json", "[]"), "expected an object"),
    "nested": (write("config.json", DEEP), "config.json is damaged: RecursionError"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no weights in"),
    "half the weights": (lambda f: damage(f, "model.safetensors"), "cannot be read"),
    "deflated": (deflate, "bytes: expected uncompressed ones"),
    "flipped": (flip, "damaged: "),
    "repeated": (repeat, "something other than named, dense tensors"),
    "lost weight": (lose, "names lost, but no shard has these weights; get the shards again"),
    "no tokenizer": (lambda f: (f / "spiece.model").unlink(), "no tokenizer in"),
    "half a tokenizer": (lambda f: damage(f, "spiece.model"), "spiece.model is damaged"),
    "sentinels": (write("tokenizer_config.json", '{"extra_ids": "x"}'), "config.json is damaged"),
    "other tokenizer": (
        write("tokenizer.json", '{"model": {"type": "WordPiece"}}'), "expected a Unigram model"
    ),
    "no pieces": (write("tokenizer.json", '{"model": 3}'), "tokenizer.json is damaged"),
    "other pieces": (
        write("tokenizer.json", '{"model": {"type": "Unigram", "unk_id": 0, "vocab": [1]}}'),
        "tokenizer.json is damaged",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change, said", BROKEN.values(), ids=BROKEN.keys())
def test_broken_folders_are_refused(
    copied: Callable[[str], Path], tmp_path: Path, capsys: Capture,
    change: Callable[[Path], Any], said: str,
) -> None:  # fmt: skip
    folder = copied("v1.0")
    change(folder)
    assert said in refused(capsys, folder, tmp_path / "out")


def test_a_tokenizer_of_another_model(folders: Folders) -> None:
    with pytest.raises(ConfigError, match="tokenizer .* beyond the 20 rows"):
        t5_vocabulary(*t5_pieces(folders("v1.0"), 20), 20, 0, 1, Path("folder"))


def test_a_byte_level_tokenizer_needs_an_unknown_word(
    copied: Callable[[str], Path], tmp_path: Path, capsys: Capture
) -> None:
    folder = copied("codet5")
    tokens = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    tokens["unknown"] = tokens.pop("<unk>")
    (folder / "vocab.json").write_text(json.dumps(tokens), encoding="utf-8")
    message = refused(capsys, folder, tmp_path / "out")
    assert "has no token <unk>; give the tokenizer of a CodeT5" in message


def test_models_that_the_format_lacks_are_refused(
    folders: Folders, tmp_path: Path, capsys: Capture
) -> None:
    """A model that scales its logits as an mT5, and a BART with two numbers of positions."""
    source = next(converted(folders("v1.0")).glob("*.pt"))
    message = refused(capsys, source, tmp_path / "back", "--like", folders("mt5"))
    assert "scales its logits, but mt5 does not; leave out --like" in message
    file = next(converted(folders("bart")).glob("*.pt"))
    state = read_state(file)
    state["model"]["decoder.embed_positions.weight"] = torch.zeros(9, 16)
    (tmp_path / "bart").mkdir()
    for other in converted(folders("bart")).iterdir():
        shutil.copy(other, tmp_path / "bart")
    torch.save(state, tmp_path / "bart" / file.name)
    message = refused(capsys, tmp_path / "bart" / file.name, tmp_path / "back")
    assert "positions in the encoder and 7 in the decoder; expected equally many" in message


def test_no_code_in_weights_is_run(
    copied: Callable[[str], Path], tmp_path: Path, capsys: Capture
) -> None:
    """A pickle that would make a folder when it is loaded."""

    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "exploded"),)

    folder = copied("v1.0")
    (folder / "model.safetensors").unlink()
    torch.save({"shared.weight": Bomb()}, folder / "pytorch_model.bin")
    assert "cannot be read" in refused(capsys, folder, tmp_path / "out")
    assert not (tmp_path / "exploded").exists()


def test_wrong_paths_are_refused(folders: Folders, tmp_path: Path, capsys: Capture) -> None:
    folder, full, larger = folders("v1.0"), tmp_path / "full", tmp_path / "larger"
    full.mkdir()
    (full / "mine").touch()
    save_t5(larger, "v1.0", spare=20)
    huge = shutil.copytree(folder, tmp_path / "huge")
    change_config(huge, vocab_size=2**24)
    model, out = converted(folder) / "model.pt", tmp_path / "out"
    for arguments, said in (
        ((folder, full), "exists already"),
        ((tmp_path / "none", out), "no such file or folder"),
        ((folder, out, "--like", folder), "--like works with"),
        ((model, out, "--like", folders("bart")), "is a bart"),
        ((model, out, "--like", larger), "the checkpoint has 68 words"),
        ((model, out, "--like", huge), "the checkpoint has 68 words"),
    ):
        assert said in refused(capsys, *arguments)


def test_a_failure_leaves_nothing(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", "model.pt")

    monkeypatch.setattr("fairseq_recur.cli.convert_to_fairseq.torch.save", full)
    message = refused(capsys, folders("v1.0"), tmp_path / "out")
    assert "No space left on device" in message and "Traceback" not in message
    assert list(tmp_path.iterdir()) == []


def test_without_safetensors_there_is_one_message(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    folder = folders("v1.0")
    assert state_of(folder)
    for name in ("safetensors.torch", "safetensors"):
        monkeypatch.setitem(sys.modules, name, None)
    for source in (folder, converted(folder) / "model.pt"):
        assert "pip install safetensors" in refused(capsys, source, tmp_path / "out")
