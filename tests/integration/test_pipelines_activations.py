"""Activation checkpointing trains the same model, with every preset and every set of options."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from tests.conftest import SMALL, TRAIN, preset_flags
from tests.running import USER_DIR, generate, hypotheses, saved_weights, update_losses

Cli = Callable[..., str]

# Checkpointing changes the order in which the gradients of a tensor that several layers read are
# added, and Adam turns the last bit of a zero gradient into a full step. With a learning rate of
# 0.1, six recurrent layers amplified the last bit to 2e-5 in five updates.
SGD = ["--optimizer", "sgd", "--lr", 0.02, "--lr-scheduler", "fixed"]

CHECKPOINTED: dict[str, list[str]] = {
    "kept": ["--checkpoint-activations"],
    "offloaded": ["--checkpoint-activations", "--offload-activations"],
}


def train(cli: Cli, corpus: Path, folder: Path, *flags: Any) -> tuple[dict[int, float], Any]:
    """The losses of five updates, and the weights after them."""
    log = cli(
        "train", corpus / "bin", "--user-dir", USER_DIR, *SMALL, *TRAIN, "--max-update", 5,
        "--disable-validation", "--no-epoch-checkpoints", "--save-dir", folder, *SGD,
        *flags,
    )  # fmt: skip
    return update_losses(log), saved_weights(folder / "checkpoint_last.pt")


def assert_trains_the_same(
    cli: Cli, corpus: Path, folder: Path, arch: list[str], ways: list[str]
) -> None:
    """With dropout, which must drop the same units in the second forward pass."""
    dropout = ["--dropout", 0.1, "--attention-dropout", 0.1]
    losses, expected = train(cli, corpus, folder / "all", *arch, *dropout)
    assert len(losses) == 5
    for way in ways:
        flags = [*arch, *dropout, *CHECKPOINTED[way]]
        checkpointed, found = train(cli, corpus, folder / way, *flags)
        assert checkpointed == losses
        assert found.keys() == expected.keys()
        for name in expected:
            torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-6, msg=name)


@pytest.mark.slow_presets
def test_every_preset_trains_the_same(preset: str, cli: Cli, corpus: Path, tmp_path: Path) -> None:
    arch = ["--arch", preset, *preset_flags(preset)]
    assert_trains_the_same(cli, corpus, tmp_path, arch, ["kept", "offloaded"])
    assert hypotheses(generate(corpus / "bin", tmp_path / "kept" / "checkpoint_last.pt"))


@pytest.mark.slow
def test_every_system_trains_the_same(
    system: list[str], cli: Cli, corpus: Path, tmp_path: Path
) -> None:
    assert_trains_the_same(cli, corpus, tmp_path, system, ["kept"])


@pytest.mark.slow_options
def test_every_layer_is_checkpointed(system: list[str], make_model: Callable[..., Any]) -> None:
    """Including those of the recurrence encoder, whose activations grow with the steps."""
    called: list[torch.nn.Module] = []

    def recorded(layer: torch.nn.Module, *args: Any, use_reentrant: bool) -> Any:
        called.append(layer)
        return layer(*args)

    model = make_model(system[1], *SMALL, *system[2:], "--checkpoint-activations")
    tokens = torch.tensor([[5, 6, 7, 2], [8, 9, 4, 2]])
    with patch("fairseq_recur.modules.layers.checkpoint", recorded):
        model(tokens, torch.tensor([4, 4]), tokens)
    layers = [*model.encoder.layers, *model.decoder.layers]
    if model.encoder.recurrence_encoder is not None:
        layers += model.encoder.recurrence_encoder.layers
    assert set(called) == set(layers) and len(called) == len(layers)
