"""Checkpoints of earlier versions load and compute the same logits as before."""

from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils

from tests.conftest import FORECASTERS, MEMORY_MODELS
from tests.freeze import FOLDER, NAMES, SYSTEMS, compute, files, load
from tests.systems import memory_parts


@pytest.mark.parametrize("name", NAMES)
def test_a_frozen_checkpoint_computes_what_it_did(name: str) -> None:
    for file in files(name).values():
        assert file.is_file(), f"no {file.name}: python -m tests.freeze makes those of new presets"
    expected = torch.load(files(name)["expected"], weights_only=True)
    found = compute(load(name))
    assert found.keys() == expected.keys()
    # Processors differ in the order of summation.
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-5)
    assert expected["logits"].std() > 0.01


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_parts_of_a_frozen_checkpoint_act(name: str) -> None:
    """Without them it would compute something else."""
    system = SYSTEMS[name]
    expected = torch.load(files(name)["expected"], weights_only=True)["logits"]
    others = [load(name, **system.without)] if system.without else []
    if system.weights is not None:
        model = load(name)
        of_part = [p for n, p in model.named_parameters() if system.weights in n]
        assert of_part and all(p.any() for p in of_part)
        for parameter in of_part:
            torch.nn.init.zeros_(parameter)
        others.append(model)
    assert others
    for other in others:
        assert (compute(other)["logits"] - expected).abs().max() > 1e-3


def test_every_kind_of_model_is_frozen() -> None:
    """A structure of each memory, with and without matrices, and of the forecasters."""
    frozen = {system.arch for system in SYSTEMS.values()}
    with_memory = {memory_parts(name) for name in frozen & {*MEMORY_MODELS}}
    assert {memory_parts(name) for name in MEMORY_MODELS} <= with_memory
    assert {name.removeprefix("rsa_") for name in FORECASTERS} <= {
        name.removeprefix("rsa_") for name in frozen
    }


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
