"""A small file does not fill the memory or take minutes."""

import time
import zipfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils

from fairseq_recur.errors import CheckpointError
from fairseq_recur.inspection.matrices import saved_options
from tests.unit.test_compat_checkpoints import stock_state


def doubled(times: int = 60) -> list[Any]:
    """A list of 60 lists, of which a copy has 2**60."""
    value: list[Any] = ["x"]
    for _ in range(times):
        value = [value, value]
    return value


def tuples() -> Any:
    value: Any = ("x",)
    for _ in range(60):
        value = (value, value)
    return value


def cycle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


BIG = torch.zeros(1).expand(10**5, 10**5)
MODEL = {"_name": "transformer", "arch": "transformer"}


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"model": {"w": BIG}}, "ask for tensors of 40,000,0"),
        ({"extra_state": {"ema": [{"w": BIG}]}}, "ask for tensors"),
        ({"cfg": {"model": MODEL, "task": {"more": doubled()}}}, "repeat each other"),
        ({"cfg": {"model": MODEL, "task": {"more": cycle()}}}, "repeat each other"),
        ({"args": Namespace(arch="transformer", more=tuples()), "cfg": None}, "repeat each other"),
        ({"cfg": {"model": {**MODEL, "encoder_layers": 10**6}}}, "encoder_layers=1000000"),
        ({"args": Namespace(arch="transformer", decoder_layers=9), "cfg": None}, "more layers"),
        ({"cfg": {"model": {"decoder": {"layers": 7}}}}, "layers=7 asks for more layers"),
    ],
)
def test_a_state_far_larger_than_its_file(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    path, began = tmp_path / "model.pt", time.monotonic()
    torch.save(stock_state(**changes), path)
    assert path.stat().st_size < 20_000
    with pytest.raises(CheckpointError, match=said):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("kind", ["deflated", "overlapping"])
def test_a_zip_file_larger_inside_than_outside(tmp_path: Path, kind: str) -> None:
    whole, path = tmp_path / "whole.pt", tmp_path / "model.pt"
    torch.save(stock_state(model={"w": torch.zeros(500, 500)}), whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w") as target:
        for entry in source.infolist():
            compressed = zipfile.ZIP_DEFLATED if kind == "deflated" else zipfile.ZIP_STORED
            target.writestr(entry.filename, source.read(entry), compressed)
        if kind == "overlapping":  # the index names the largest entry many times
            largest = max(target.infolist(), key=lambda entry: entry.file_size)
            target.filelist += [largest] * 20
    with pytest.raises(CheckpointError, match="entries hold .* bytes: expected uncompressed"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))


def test_a_model_far_larger_than_its_weights(stock_checkpoint: Path, tmp_path: Path) -> None:
    """And weights that are NaN, and a checkpoint without the state of a training."""
    path, state = tmp_path / "model.pt", torch.load(stock_checkpoint)

    def load(**changes: Any) -> None:
        model = state["cfg"]["model"]
        model = type(model)(**{**saved_options(state), **changes})
        cfg = {**state["cfg"], "model": model}
        torch.save({"cfg": cfg, "model": state["model"]}, path)
        checkpoint_utils.load_model_ensemble_and_task([str(path)])

    load()
    for changes in (
        {"encoder_ffn_embed_dim": 10**9},
        {"max_source_positions": 10**9},
        {"decoder_embed_dim": 10**8, "decoder_output_dim": 10**8},
        {"max_target_positions": 10**9, "decoder_learned_pos": True},
    ):
        with pytest.raises(CheckpointError, match="options ask for a model of more than"):
            load(**changes)
    name = next(n for n, w in state["model"].items() if w.dim() == 2)
    state["model"][name][0, 0] = float("nan")
    with pytest.raises(CheckpointError, match=f"its weight {name} has NaN values"):
        load()
