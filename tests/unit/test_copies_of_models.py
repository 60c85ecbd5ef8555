"""Copies of models, by `copy.deepcopy` and by pickle."""

import pickle
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import optim
from fairseq.models import MODEL_REGISTRY
from omegaconf import OmegaConf
from torch import nn

from tests.configuring import model_config
from tests.conftest import SMALL
from tests.series import SIZES, write_series
from tests.systems import FORECASTERS, LANGUAGE_MODELS, PRESETS
from tests.unit.test_language_model import SMALL_LM
from tests.unit.test_time_series import task

Build = Callable[..., nn.Module]


@pytest.fixture(params=["encoder-decoder", "language model", "forecaster"])
def model(request: pytest.FixtureRequest, make_model: Build, tmp_path: Path) -> nn.Module:
    """Models with parameters that ask for no weight decay, or for another learning rate."""
    if request.param == "encoder-decoder":
        flags = ["--encoder-self-attention", "rsa", "--recurrence-lr-scale", "5"]
        return make_model("transformer_biarn", *SMALL, *flags)
    if request.param == "language model":
        return make_model("rsa_transformer_lm", *SMALL_LM)
    cfg = model_config("time_series_forecasting", "rsa_informer", SIZES, data=[])
    return task(write_series(tmp_path / "x.csv")).build_model(cfg)


def groups(model: nn.Module) -> list[tuple[float, float, list[torch.Size]]]:
    """Learning rate, weight decay and sizes of each group that an optimizer makes of a model."""
    given = {
        "_name": "adamw_fused", "adam_betas": "(0.9,0.98)", "adam_eps": 1e-8,
        "weight_decay": 0.1, "lr": [0.1],
    }  # fmt: skip
    made: Any = optim.build_optimizer(OmegaConf.create(given), list(model.parameters()))
    made.set_lr(0.1)
    return [
        (g["lr"], g["weight_decay"], [p.size() for p in g["params"]]) for g in made.param_groups
    ]


@pytest.mark.parametrize("copy", [deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_is_trained_as_the_model(model: nn.Module, copy: Build) -> None:
    copied = copy(model)
    assert type(copied) is type(model) and len(groups(model)) > 1
    assert groups(copied) == groups(model)
    pairs = zip(copied.named_parameters(), model.named_parameters(), strict=True)
    for (name, own), (original_name, original) in pairs:
        assert name == original_name and own is not original and torch.equal(own, original)


def test_what_is_copied_with_a_model_is_of_the_copy(model: nn.Module) -> None:
    copied, part = deepcopy((model, model.encoder if hasattr(model, "encoder") else model.decoder))
    assert part in list(copied.children()) and part not in list(model.children())


@pytest.mark.parametrize("arch", [*PRESETS, *LANGUAGE_MODELS, *FORECASTERS])
def test_pickle_finds_every_preset(arch: str) -> None:
    assert pickle.loads(pickle.dumps(MODEL_REGISTRY[arch])) is MODEL_REGISTRY[arch]
