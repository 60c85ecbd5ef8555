"""Checkpoints and dictionaries that are found, and what is loaded from them."""

import os
import pickle
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_recur import from_pretrained
from fairseq_recur.errors import CheckpointError, ConfigError
from fairseq_recur.loading.folder import choose_checkpoint, find_checkpoints, find_dictionaries
from fairseq_recur.loading.models import load
from fairseq_recur.loading.states import read_state, saved_options
from fairseq_recur.tasks.time_series import TimeSeriesTask

FROZEN = Path(__file__).resolve().parents[1] / "frozen"


def make(folder: Path, *names: str) -> Path:
    """A folder with empty files."""
    folder.mkdir(exist_ok=True)
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return folder


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (["model.pt"], "model.pt"),
        (["checkpoint1.pt", "checkpoint_last.pt"], "checkpoint_last.pt"),
        (["checkpoint_best.pt", "checkpoint_last.pt"], "checkpoint_best.pt"),
        (["checkpoint_best.pt", "average.pt"], "average.pt"),
    ],
)
def test_checkpoint_that_is_meant(tmp_path: Path, files: list[str], chosen: str) -> None:
    assert choose_checkpoint(make(tmp_path, *files)).name == chosen


def test_checkpoints_that_are_named(tmp_path: Path) -> None:
    home = make(tmp_path / "home", "a.pt", "b.pt")
    other = make(tmp_path / "other", "c.pt") / "c.pt"
    assert find_checkpoints(home / "a.pt", None) == (home, [home / "a.pt"])
    with pytest.raises(ConfigError, match="is a checkpoint, and checkpoint='b.pt' names another"):
        find_checkpoints(home / "a.pt", "b.pt")
    assert find_checkpoints(str(home), ["b.pt", other]) == (home, [home / "b.pt", other])


@pytest.mark.parametrize(
    ("files", "arguments", "message"),
    [
        ([], ["absent"], "no file or folder absent"),
        (["dict.en.txt"], ["."], r"no checkpoint \(\*.pt\) in .*holds dict.en.txt"),
        ([], ["."], r"holds no files. Give the --save-dir .* \(in Python: checkpoint=FILE\)"),
        (["a.pt", "b.pt"], ["."], "several checkpoints, a.pt, b.pt.*give one of them instead of"),
        (["a.pt"], [".", "c.pt"], "no checkpoint c.pt in .*holds a.pt"),
        (["a.pt"], [".", []], "an empty list"),
    ],
)
def test_checkpoints_that_are_not_clear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], arguments: list[Any],
    message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(make(tmp_path, *files))
    with pytest.raises(ConfigError, match=message):
        from_pretrained(*arguments)
    with pytest.raises(ConfigError, match="precision='int8'"):
        from_pretrained(".", precision="int8")


def test_dictionaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folder, otherwise in the training's data; a given folder is the only place.

    The current folder is none of them.
    """
    monkeypatch.chdir(make(tmp_path / "here", "train.en-fr.en.bin", "dict.en.txt", "dict.fr.txt"))
    home = make(tmp_path / "home", "model.pt")
    data = make(tmp_path / "data", "dict.en.txt", "dict.de.txt", "train.en-de.en.bin")
    assert find_dictionaries(home, None, f"{data}:x", ["en", "de"]) == (data, ["en", "de"])
    assert find_dictionaries(home, None, str(data), [None, None]) == (data, ["en", "de"])
    assert find_dictionaries(home, data, None, ["de", "en"]) == (data, ["de", "en"])
    make(home, "dict.en.txt", "dict.de.txt", "dict.txt")
    assert find_dictionaries(home, None, str(data), ["en", "de"])[0] == home
    assert find_dictionaries(home, None, None, []) == (home, [])
    for given, languages, message in (
        (data, ["en", "fr"], r"no dict.en.txt and dict.fr.txt in .*data \(dict.de.txt, dict.en"),
        (data, [], "no dict.txt in"),
        (tmp_path / "none", ["en", "de"], r"none \(no such folder\); give data="),
        (home, [None, None], "dict.LANGUAGE.txt .*source_lang="),
    ):
        with pytest.raises(ConfigError, match=message):
            find_dictionaries(home, given, None, languages)
    with pytest.raises(ConfigError, match="no dict.en.txt and dict.de.txt in .*checkpoint$"):
        find_dictionaries(home, tmp_path, str(data), [None, None])


class Hostile:
    """Runs a command when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.trace),)


def test_a_checkpoint_that_runs_code_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    for name in ("zip.pt", "pickle.pt"):
        file = tmp_path / name
        if name == "zip.pt":
            torch.save({"model": {}, "args": Hostile(trace)}, file)
        else:
            file.write_bytes(pickle.dumps(Hostile(trace)))
        with pytest.raises(CheckpointError, match=str(file)):
            read_state(file)
        assert not trace.exists()


@pytest.mark.parametrize("content", [{"weights": {}}, [1], {"model": 3, "cfg": {"model": {}}}])
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, content: Any) -> None:
    file = tmp_path / "a.pt"
    torch.save(content, file)
    with pytest.raises(CheckpointError, match=str(file)):
        read_state(file)


@pytest.mark.parametrize("state", [
    {"cfg": {"model": {"rsa_share": "none", "a": 1}}, "args": Namespace(a=2)},
    {"cfg": {"model": {"rsa_untie_conjugates": True, "a": "${task.b}"}, "task": {"b": 1}}},
    {"cfg": {"model": Namespace(rsa_share="none", a=1)}, "args": None},
    {"cfg": None, "args": Namespace(rsa_share="none", a=1)},
])  # fmt: skip
def test_options_in_every_form(state: dict[str, Any]) -> None:
    """Flat, by their present names; those of the configuration before those of old checkpoints."""
    assert saved_options(state) == {"rsa_untie_conjugates": True, "a": 1}


def test_options_that_are_missing() -> None:
    assert saved_options({"cfg": {}, "args": None}) == saved_options({"args": [1]}) == {}
    with pytest.raises(CheckpointError, match="configuration in the checkpoint cannot be read"):
        saved_options({"cfg": {"model": {"a": "${task.b}"}}})


def trained(tmp_path: Path, **options: Any) -> Path:
    """A frozen checkpoint as a training with other options of the task would have saved it."""
    state = torch.load(FROZEN / "rsa_transformer.pt", weights_only=True)
    state["cfg"]["task"].update(options)
    torch.save(state, tmp_path / "model.pt")
    return tmp_path / "model.pt"


def test_what_only_a_training_needs_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that was trained with --eval-bleu loads where Moses' detokenizer is missing."""
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    path = trained(tmp_path, eval_bleu=True, eval_bleu_detok="moses", eval_bleu_detok_args="{}")
    found = load(path, data=FROZEN)
    assert len(found.models) == 1 and not found.task.cfg.eval_bleu
    assert (found.home, found.data, found.languages) == (tmp_path, FROZEN, ["src", "tgt"])


def test_each_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = trained(tmp_path), []
    original = torch.load
    monkeypatch.setattr(torch, "load", lambda *a, **k: read.append(a) or original(*a, **k))
    load(path, data=FROZEN)
    assert len(read) == 1


def test_a_value_that_is_unknown_here(tmp_path: Path) -> None:
    state = torch.load(FROZEN / "rsa_transformer.pt", weights_only=True)
    state["cfg"]["model"]["encoder_self_attention"] = "mine"
    torch.save(state, tmp_path / "model.pt")
    said = "unknown here; import the plug-in .*--user-dir.*encoder_self_att"
    with pytest.raises(ConfigError, match=said):
        load(tmp_path / "model.pt", data=FROZEN)


def test_only_a_misfit_is_blamed_on_the_dictionaries(tmp_path: Path) -> None:
    path = trained(tmp_path)
    for side in ("src", "tgt"):
        (tmp_path / f"dict.{side}.txt").write_text("one 1\n")
    with pytest.raises(CheckpointError, match="does not fit, perhaps because the dictionaries in"):
        load(path, data=tmp_path)
    state = torch.load(path, weights_only=True)
    name = next(name for name, weight in state["model"].items() if weight.dim() == 2)
    state["model"][name][0, 0] = float("nan")
    torch.save(state, path)
    with pytest.raises(CheckpointError) as raised:
        load(path, data=FROZEN)
    assert str(raised.value).startswith(f"{path}: its weight {name} has NaN values")


def test_a_configuration_without_a_model(tmp_path: Path) -> None:
    state = torch.load(FROZEN / "rsa_transformer.pt", weights_only=True)
    torch.save({**state, "cfg": {"lr": 1}}, tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match="not a fairseq checkpoint: it has no options"):
        load(tmp_path / "model.pt", data=FROZEN)


def test_models_of_other_tasks() -> None:
    said = "found a model of --task translation, expected one of time_series_forecasting or of"
    with pytest.raises(ConfigError, match=said):
        load(FROZEN / "rsa_transformer.pt", kinds=(TimeSeriesTask,))
