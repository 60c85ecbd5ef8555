"""Checkpoints of earlier versions load and compute the same logits as before."""

from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils

from tests.freeze import FOLDER, NAMES, compute, files


@pytest.mark.parametrize("name", NAMES)
def test_a_frozen_checkpoint_computes_what_it_did(name: str) -> None:
    for file in files(name).values():
        assert file.is_file(), f"no {file.name}: python -m tests.freeze makes those of new presets"
    expected = torch.load(files(name)["expected"], weights_only=True)
    found = compute(name)
    assert found.keys() == expected.keys()
    # Processors differ in the order of summation.
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-5)
    assert expected["logits"].std() > 0.01


def test_other_defaults_of_options_without_effect(tmp_path: Path) -> None:
    """A checkpoint stores the defaults of its version, also for parts that its model lacks."""
    state = torch.load(files("transformer_biarn")["checkpoint"], weights_only=True)
    state["cfg"]["model"]["srformer_threshold_init"] = 0.7
    torch.save(state, tmp_path / "old.pt")
    (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(tmp_path / "old.pt")], arg_overrides={"data": str(FOLDER)}
    )
    weights = model.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in state["model"].items())
