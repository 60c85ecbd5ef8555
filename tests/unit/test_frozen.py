"""Checkpoints of earlier versions load, and compute what they computed then."""

import pytest
import torch

from tests.freeze import NAMES, compute, files


@pytest.mark.parametrize("name", NAMES)
def test_a_frozen_checkpoint_computes_what_it_did(name: str) -> None:
    for file in files(name).values():
        assert file.is_file(), f"no {file.name}: python -m tests.freeze makes those of new presets"
    expected = torch.load(files(name)["expected"], weights_only=True)
    found = compute(name)
    assert found.keys() == expected.keys()
    # Other processors sum in another order.
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-5)
    assert expected["logits"].std() > 0.01
