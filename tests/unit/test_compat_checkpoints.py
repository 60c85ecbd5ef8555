"""Files that are not checkpoints, and files that would run code, are refused by name."""

import importlib
import os
import pickle
import posix
import subprocess
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils

from fairseq_recur import compat
from fairseq_recur.compat import safe_loading
from fairseq_recur.compat.stand_ins import StandIn
from fairseq_recur.errors import CheckpointError

OPTIONS = Namespace(arch="transformer", task="translation", data="data", criterion="nll")


def stock_state(**changes: Any) -> dict:
    """The least that fairseq itself loads without an error."""
    state = {
        "args": None,
        "cfg": {"model": {"_name": "transformer"}},
        "model": {"encoder.embed_tokens.weight": torch.zeros(2, 2)},
        "optimizer_history": [
            {
                "num_updates": 1,
                "optimizer_name": "FairseqAdam",
                "criterion_name": "CrossEntropyCriterion",
                "lr_scheduler_state": {},
            }
        ],
        "extra_state": {"train_iterator": {"epoch": 1}, "metrics": {}},
    }
    return {**state, **changes}


class Calls:
    """An object whose unpickling calls a function."""

    def __init__(self, function: Callable, *arguments: Any) -> None:
        self.reduced = (function, arguments)

    def __reduce__(self) -> tuple:
        return self.reduced

    def __call__(self) -> None:
        """pickle wants a function; in the file, this object's own result is called."""


def attacks(trace: Path) -> dict[str, Calls]:
    return {
        "os.system": Calls(os.system, f"touch {trace}"),
        "posix.system": Calls(posix.system, f"touch {trace}"),
        "builtins.eval": Calls(eval, f"open({str(trace)!r}, 'w').close()"),
        "builtins.exec": Calls(exec, f"open({str(trace)!r}, 'w').close()"),
        "builtins.open": Calls(open, str(trace), "w"),
        "subprocess.Popen": Calls(subprocess.Popen, ["touch", str(trace)]),
        "pathlib": Calls(Path.touch, trace),
        "getattr": Calls(
            Calls(getattr, Calls(importlib.import_module, "os"), "system"), f"touch {trace}"
        ),
    }


NAMES = list(attacks(Path("trace")))


def save(path: Path, state: Any, form: str) -> None:
    if form == "pickle":
        path.write_bytes(pickle.dumps(state, protocol=2))
    elif form == "pickle4":
        path.write_bytes(pickle.dumps(state, protocol=4))
    else:
        torch.save(state, path, _use_new_zipfile_serialization=form == "zip")


@pytest.mark.parametrize("form", ["zip", "legacy", "pickle", "pickle4"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", ["extra", "whole"])
def test_no_code_of_a_file_runs(tmp_path: Path, name: str, form: str, place: str) -> None:
    trace, path = tmp_path / "trace", tmp_path / "model.pt"
    attack = attacks(trace)[name]
    save(path, stock_state(extra_state=attack) if place == "extra" else attack, form)
    for load in (
        checkpoint_utils.load_checkpoint_to_cpu,
        checkpoint_utils.load_ema_from_checkpoint,
        lambda p: checkpoint_utils.load_model_ensemble_and_task([p]),
    ):
        with pytest.raises(CheckpointError) as caught:
            load(str(path))
        message = str(caught.value)
        assert str(path) in message and "Nothing in it was executed" in message
        assert "weights_only" not in message and caught.value.__cause__ is None
    assert not trace.exists()
    if form in ("zip", "legacy") and place == "extra":
        assert "it would run code" in message and "refused" in message


def test_the_attacks_work_where_nothing_stops_them(tmp_path: Path) -> None:
    for name in set(NAMES) - {"subprocess.Popen"}:
        trace = tmp_path / name
        pickle.loads(pickle.dumps(attacks(trace)[name]))
        assert trace.exists(), name


def test_the_refused_name_is_in_the_message(tmp_path: Path) -> None:
    # Protocol 2 writes the names of Python 2: subprocess is "commands" in the file.
    for name, expected in (("subprocess.Popen", "commands.Popen"), ("os.system", "posix.system")):
        path = tmp_path / f"{name}.pt"
        save(path, stock_state(extra_state=attacks(tmp_path / "t")[name]), "zip")
        message = f"{path}: refused, because it asks for {expected}"
        with pytest.raises(CheckpointError, match=message):
            checkpoint_utils.load_checkpoint_to_cpu(str(path))


def test_the_variable_that_allows_code_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trace, path = tmp_path / "trace", tmp_path / "model.pt"
    save(path, stock_state(extra_state=attacks(trace)["os.system"]), "zip")
    monkeypatch.setenv(compat.UNSAFE_VARIABLE, "1")
    monkeypatch.setattr(safe_loading, "removed_variables", set())
    with pytest.raises(CheckpointError):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    assert not trace.exists() and compat.UNSAFE_VARIABLE not in os.environ
    assert "lets every checkpoint run code" in caplog.text
    assert any(compat.UNSAFE_VARIABLE in p.title for p in compat.known_problems())


def test_old_torch_loads_weights_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", raising=False)
    safe_loading.load_weights_only()
    assert ("TORCH_FORCE_WEIGHTS_ONLY_LOAD" in os.environ) == (
        safe_loading.torch_version() < (2, 6)
    )
    monkeypatch.setattr(torch, "__version__", "2.5.1+cu121")
    safe_loading.load_weights_only()
    assert os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] == "1"


def test_torch_whose_allow_list_has_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.5.1")
    assert not any(isinstance(item, tuple) for item in compat.safe_globals())


def test_the_allow_list_holds_stand_ins_only() -> None:
    assert all(issubclass(item, StandIn) for item in compat.safe_globals())


@pytest.mark.parametrize(
    "content", [b"", b"hello world\n", b"\x80\x02", b"PK\x03\x04 cut", b"<html>" * 99, bytes(999)]
)
def test_bytes_that_are_no_checkpoint(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    with pytest.raises(
        CheckpointError, match=f"{path}: {len(content)} bytes that are not a PyTorch"
    ):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))


def test_a_file_cut_short(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.pt", tmp_path / "model.pt"
    torch.save(stock_state(model={"w": torch.randn(100, 100)}), whole)
    content = whole.read_bytes()
    for length in (*(len(content) * tenth // 10 for tenth in range(1, 10)), len(content) - 20):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=f"{path}: {length} bytes .*truncated"):
            checkpoint_utils.load_checkpoint_to_cpu(str(path))


def test_one_flipped_bit(tmp_path: Path) -> None:
    """In a weight, it is always found; elsewhere, it is found or changes nothing that is loaded."""
    path = tmp_path / "model.pt"
    weight = torch.randn(40, 40)
    torch.save(stock_state(model={"w": weight}), path)
    content = path.read_bytes()
    begin = content.index(weight.numpy().tobytes())
    end, step = begin + weight.nbytes, 41
    refused = {"before": 0, "weight": 0, "after": 0}
    for position in range(0, len(content), step):
        where = "before" if position < begin else "weight" if position < end else "after"
        changed = bytearray(content)
        changed[position] ^= 1 << (position % 8)
        path.write_bytes(changed)
        try:
            state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
        except CheckpointError as error:
            assert str(path) in str(error) and "nothing was loaded" in str(error)
            refused[where] += 1
        else:
            assert where != "weight"
            assert torch.equal(state["model"]["w"], weight)
            assert {k: v for k, v in state.items() if k != "model"}.keys() >= {"cfg", "args"}
    assert refused["weight"] == len(range(-(-begin // step) * step, end, step))
    assert refused["before"] and refused["after"], refused  # the pickled part, and the index


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    path = str(tmp_path / "none.pt")
    for load in (
        checkpoint_utils.load_checkpoint_to_cpu,
        checkpoint_utils.load_ema_from_checkpoint,
        lambda p: checkpoint_utils.load_model_ensemble_and_task([p]),
    ):
        with pytest.raises(CheckpointError, match=f"{path}: no such file"):
            load(path)
    with pytest.raises(CheckpointError, match="this is a folder"):
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path))


@pytest.mark.parametrize(
    "state, found",
    [
        ([1, 2], "it holds a list"),
        (torch.zeros(3), "it holds a Tensor"),
        ({"weight": torch.zeros(3)}, r"it holds \[weight\]"),
        ({"model": {}}, r"it holds \[model\]"),
        (stock_state(cfg=None), "not a fairseq checkpoint"),
    ],
)
def test_a_file_of_something_else(tmp_path: Path, state: Any, found: str) -> None:
    path = tmp_path / "model.pt"
    torch.save(state, path)
    message = f'{path}: .*{found}.*expected a dictionary with "model"'
    with pytest.raises(CheckpointError, match=message):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))


@pytest.mark.parametrize(
    "changes, found",
    [
        ({"cfg": 5}, "its cfg is of type int, expected options"),
        ({"args": [1]}, "its args is of type list"),
        ({"cfg": {"model": 5}}, "its cfg.model is of type int"),
        ({"cfg": {"model": None}}, "its cfg.model is of type NoneType"),
        ({"cfg": Namespace(model={}, task=None)}, "its cfg.task is of type NoneType"),
        ({"model": [1, 2]}, "its model is of type list, expected weights"),
        ({"model": {"x": 1}}, "its weight 'x' is of type int, expected a tensor"),
        ({"model": {1: torch.zeros(2)}}, "its weight 1 is of type Tensor, expected .* a name"),
        ({"model": {"x": torch.eye(2).to_sparse()}}, "its weight x is sparse, expected a dense"),
    ],
)
def test_values_that_fairseq_does_not_save(
    tmp_path: Path, changes: dict[str, Any], found: str
) -> None:
    path = tmp_path / "model.pt"
    torch.save(stock_state(**changes), path)
    with pytest.raises(CheckpointError, match=f"{path}: not a fairseq checkpoint: {found}"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    assert f"not a fairseq checkpoint: {found[:12]}" in str(compat.checkpoint_problem(str(path)))


def test_a_good_file_loads_in_both_formats(tmp_path: Path) -> None:
    for form in ("zip", "legacy"):
        path = tmp_path / form
        save(path, stock_state(), form)
        assert "model" in checkpoint_utils.load_checkpoint_to_cpu(str(path))
        assert compat.checkpoint_problem(str(path)) is None


def test_weights_that_lack_what_the_configuration_names(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    part = "decoder.recurrence_encoder.layers.0.weight"
    for settings in ({"recurrence": "biarn"}, Namespace(recurrence="biarn")):
        torch.save(stock_state(cfg={"model": settings}), path)
        with pytest.raises(CheckpointError, match="recurrence=biarn, but its weights have no"):
            checkpoint_utils.load_checkpoint_to_cpu(str(path))
    for settings, weights in (
        ({"recurrence": "biarn"}, {part: torch.zeros(1)}),
        ({"recurrence": "none"}, {}),
        ({}, {}),
    ):
        torch.save(stock_state(cfg={"model": settings}, model=weights), path)
        checkpoint_utils.load_checkpoint_to_cpu(str(path))


def test_ema_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(stock_state(), path)
    with pytest.raises(
        CheckpointError, match=f"{path}: it holds no EMA weights; train with --store-ema"
    ):
        checkpoint_utils.load_ema_from_checkpoint(str(path))
    torch.save(stock_state(extra_state={"ema": {"w": torch.ones(2)}}), path)
    loaded = checkpoint_utils.load_ema_from_checkpoint(str(path))
    assert torch.equal(loaded["model"]["w"], torch.ones(2))


def test_a_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the system says to everybody but root."""
    path = tmp_path / "model.pt"
    torch.save(stock_state(), path)

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(torch, "load", refused)
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))


def test_an_error_that_is_not_the_files_stays(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(stock_state(args=OPTIONS, cfg=None), path)
    with pytest.raises(AttributeError, match="'int' object has no attribute 'items'"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path), arg_overrides=5)


def test_text_is_not_taken_for_an_attack(tmp_path: Path) -> None:
    """The letter c is pickle's code for a global, so "cos ..." looks like one to torch."""
    path = tmp_path / "notes.pt"
    path.write_text("cos is a function\nof an angle\n")
    problem = compat.checkpoint_problem(str(path))
    assert problem is not None
    assert "not a PyTorch checkpoint" in problem and "run code" not in problem
