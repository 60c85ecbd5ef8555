"""The configuration in a checkpoint opens no file and reads nothing from outside it."""

import os
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.dataclass.constants import DDP_BACKEND_CHOICES
from fairseq.registry import REGISTRIES
from omegaconf import OmegaConf

from fairseq_recur.compat.checkpoint_options import (
    MODEL_FILES,
    confine,
    refuse_references,
    with_objects,
)
from fairseq_recur.errors import CheckpointError
from tests.running import USER_DIR
from tests.unit.test_compat_checkpoints import stock_state


@pytest.mark.parametrize(
    "value", ["${oc.env:SECRET}", "${task.a}${task.a}", "x${task.a}", "${${a}}"]
)
@pytest.mark.parametrize("place", ["criterion", "nested", "Namespace", "args"])
def test_references_to_the_outside_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, place: str
) -> None:
    monkeypatch.setenv("SECRET", "do not tell")
    path = tmp_path / "model.pt"
    cfg: Any = {"model": {"_name": "transformer"}, "task": {"a": "b"}}
    if place == "criterion":
        cfg["criterion"] = {"_name": "nll", "text": value}
    elif place == "nested":
        cfg["task"]["more"] = [{"deep": value}]
    else:
        cfg["model"] = Namespace(arch="transformer", text=value)
    if place == "args":
        torch.save(stock_state(args=cfg["model"], cfg=None), path)
    else:
        torch.save(stock_state(cfg=cfg), path)
    with pytest.raises(CheckpointError, match="its configuration has the value") as caught:
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    assert value in str(caught.value) and "do not tell" not in str(caught.value)


def test_references_to_own_options_load(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    cfg = {"model": {"_name": "transformer", "top": "${task.a}"}, "task": {"a": 5}}
    torch.save(stock_state(cfg=cfg), path)
    assert checkpoint_utils.load_checkpoint_to_cpu(str(path))["cfg"].model.top == 5


def test_numbers_and_choices_of_a_criterion_stay(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Text that is dropped is named, because fairseq-validate computes another loss without it."""

    @dataclass
    class Options:
        weights: dict[str, float] = field(default_factory=dict)
        backend: DDP_BACKEND_CHOICES = "no_c10d"
        post_process: str = "letter"
        report: str = "same"

    registry = REGISTRIES["criterion"]["dataclass_registry"]
    monkeypatch.setitem(registry, "of_a_test", Options)
    options = {"weights": {"a": 0.1}, "backend": "slowmo"}
    dropped = {"post_process": "sentencepiece", "report": "same"}
    state = {"cfg": with_objects({"criterion": {"_name": "of_a_test", **options, **dropped}})}
    confine("model.pt", state, set())
    assert dict(state["cfg"]["criterion"]) == {"_name": "of_a_test", **options}
    assert "in place of post_process='sentencepiece'; " in caplog.text
    state["cfg"]["criterion"].update(backend="a_file", post_process="sentencepiece")
    confine("model.pt", state, {"post_process"})  # which the user has given
    assert dict(state["cfg"]["criterion"]) == {
        "_name": "of_a_test", "weights": {"a": 0.1}, "post_process": "sentencepiece"
    }  # fmt: skip


@pytest.mark.parametrize("kind", [dict, Namespace])
def test_a_criterion_gets_no_text(kind: type, tmp_path: Path) -> None:
    """fairseq-validate builds the checkpoint's criterion; this one would truncate a file."""
    options = {"_name": "sentence_ranking", "save_predictions": str(tmp_path), "eps": 0.1}
    criterion = options if kind is dict else Namespace(**options)
    state = {"cfg": with_objects({"criterion": criterion})}
    confine("model.pt", state, set())
    left = state["cfg"]["criterion"]
    found = vars(left) if kind is Namespace else dict(left)
    assert found.pop("save_predictions", None) is None
    assert found == {"_name": "sentence_ranking", "eps": 0.1}


@pytest.mark.parametrize("kind", [dict, Namespace])
@pytest.mark.parametrize("name", ["encoder_embed_path", *MODEL_FILES])
def test_a_model_opens_no_file(tmp_path: Path, kind: type, name: str) -> None:
    fifo, path = tmp_path / "fifo", tmp_path / "model.pt"
    os.mkfifo(fifo)
    for target in (str(fifo), "/dev/zero"):
        options = {"_name": "transformer", "arch": "transformer", name: target}
        cfg = {"model": kind(**options), "task": {"_name": "translation"}}
        torch.save(stock_state(cfg=cfg), path)
        with pytest.raises(CheckpointError, match=f"refused, because its option {name}="):
            checkpoint_utils.load_model_ensemble_and_task([str(path)], task=object())
        state = {"cfg": with_objects(cfg)}
        confine("model.pt", state, {name})  # the user has named it


def test_embeddings_of_a_training_are_not_read_again(tmp_path: Path) -> None:
    for file in (tmp_path / "missing", tmp_path / "glove"):
        state = {"cfg": OmegaConf.create({"model": {"encoder_embed_path": str(file)}})}
        confine("model.pt", state, set())
        assert state["cfg"].model.encoder_embed_path is None
        (tmp_path / "glove").write_text("1 1\n")


@pytest.mark.parametrize("kind", [dict, Namespace])
@pytest.mark.parametrize("target", ["fifo", "/dev/zero", "https://example.org/", "data:/dev/zero"])
def test_a_task_opens_ordinary_files_only(tmp_path: Path, kind: type, target: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    value = str(tmp_path / "fifo") if target == "fifo" else target
    for name in ("data", "lang_dict"):
        cfg = {"model": None, "task": kind(_name="translation", **{name: value})}
        state = {"cfg": with_objects(cfg)}
        with pytest.raises(CheckpointError, match=f"refused, because its option {name}="):
            confine("model.pt", state, set())
        confine("model.pt", state, {name})
    task = kind(data=f"{tmp_path}:{tmp_path / 'missing'}", other="https://here")
    confine("model.pt", {"cfg": with_objects({"model": None, "task": task})}, set())


def test_a_hub_downloads_only_what_the_user_names(tmp_path: Path) -> None:
    """generate ignores the checkpoint's subwords, so it loads the file."""
    from fairseq import hub_utils
    from fairseq.data.encoders.gpt2_bpe import GPT2BPEConfig

    gpt2 = {f.name: f.default for f in GPT2BPEConfig.__dataclass_fields__.values()}
    evil = {"bpe_vocab": "https://example.org/", "bpe_merges": None}
    for bpe, given, said in (
        ({"_name": "bert"}, {}, "bpe='bert' downloads files"),
        ({**gpt2, "_name": "gpt2"}, {}, "bpe='gpt2' downloads files"),
        ({**gpt2, "_name": "gpt2"}, {"bpe": "gpt2"}, None),
        ({**gpt2, "_name": "gpt2", "gpt2_vocab_bpe": "http://evil"}, {"bpe": "gpt2"}, "http://e"),
        ({"_name": "hf_byte_bpe", **evil}, {}, "its option bpe_vocab="),
        ({"_name": "hf_byte_bpe", **evil}, {"bpe_vocab": "mine.json"}, None),
    ):
        cfg = {"model": {"_name": "no such model"}, "task": {"_name": "no such task"}, "bpe": bpe}
        torch.save(stock_state(cfg=cfg), tmp_path / "model.pt")
        with pytest.raises(Exception) as caught:  # at the latest by the unknown task
            hub_utils.from_pretrained(str(tmp_path), **given)
        refused = isinstance(caught.value, CheckpointError)
        assert refused == (said is not None) and (said or "") in str(caught.value)
        confine("model.pt", {"cfg": OmegaConf.create(cfg)}, set())


def test_validate_writes_no_file_that_a_checkpoint_names(
    corpus: Path, cli: Callable[..., str], stock_checkpoint: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """And it reads no variable that one names."""
    precious, path = tmp_path / "precious", tmp_path / "model.pt"
    precious.write_text("content")
    monkeypatch.setenv("SECRET", "do not tell")
    validate = ["validate", corpus / "bin", "--user-dir", USER_DIR, "--path", path, "--cpu"]
    validate += ["--max-tokens", 400, "--task", "translation"]
    state = torch.load(stock_checkpoint)
    state["cfg"]["criterion"] = {
        "_name": "sentence_ranking", "save_predictions": str(precious), "num_classes": 2,
        "ranking_head_name": "x",
    }  # fmt: skip
    torch.save(state, path)
    with pytest.raises(Exception) as caught:  # the criterion needs another model
        cli(*validate)
    assert precious.read_text() == "content" and not isinstance(caught.value, CheckpointError)
    state["cfg"]["criterion"]["save_predictions"] = "${oc.env:SECRET}"
    torch.save(state, path)
    with pytest.raises(CheckpointError, match=r"\$\{oc.env:SECRET\}"):
        cli(*validate)


def test_a_reference_is_found_in_every_part() -> None:
    """Also where parts are converted one after the other, each at the address of the last."""
    parts: dict[str, Any] = {f"p{i}": OmegaConf.create({"x": {"y": ["fine"]}}) for i in range(50)}
    refuse_references("f", Namespace(**parts))
    parts["last"] = OmegaConf.create({"x": {"y": ["${oc.env:SECRET}"]}})
    with pytest.raises(CheckpointError, match="oc.env:SECRET"):
        refuse_references("f", Namespace(**parts))
