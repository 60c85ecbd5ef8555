"""A NaN is reported with the module in which it first appears, and the update is skipped."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.nan_detector import NanDetector
from fairseq.tasks.translation import TranslationTask
from torch import nn

from fairseq_recur.models.checkpoints import part_weights
from tests.conftest import SMALL
from tests.integration.test_resume import train_flags

Cli = Callable[..., str]


def poison(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Any], None]) -> None:
    """Change every model when it is built."""
    build = TranslationTask.build_model

    def build_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        model = build(self, *args, **kwargs)
        spoil(model)
        return model

    monkeypatch.setattr(TranslationTask, "build_model", build_model)


# torch's attention uses the weights of its projections without calling the modules.
@pytest.mark.parametrize(
    "module, named",
    [
        ("encoder.layers.1.fc1", r"encoder\.layers\.1\.fc1"),
        ("decoder.layers.0.self_attn.v_proj", r"decoder\.layers\.0\.self_attn(\.v_proj)?"),
    ],
)
@pytest.mark.slow_presets
def test_the_module_of_the_first_nan_is_named(
    module: str, named: str, preset: str, cli: Cli, corpus: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    poison(monkeypatch, lambda model: model.get_submodule(module).weight.data.fill_(torch.nan))
    with pytest.raises(FloatingPointError) as error:
        cli("train", *train_flags(corpus, preset, tmp_path, "--max-update", 2))
    said = str(error.value)
    assert re.search(rf"NaN detected in output of {named}, ", said), said
    assert "The update was not made" in said and len(said) < 1000
    assert not (tmp_path / "checkpoint_last.pt").exists()


def test_each_part_is_named(system: list[str], make_model: Callable[..., nn.Module]) -> None:
    """A NaN in the first parameter of a part: the detector names the part, or one inside it.

    The weights of some parts, such as matrices and neurons, are only read by the attention that
    has them: that attention is named, or a module of it. What fairseq does with the detector is
    tested above.
    """
    model = make_model(system[1], *SMALL, *system[2:])
    source = torch.randint(4, 60, (3, 9))
    inputs = source, torch.full((3,), 9), torch.randint(4, 60, (3, 7))
    parts = [part for of_slot in part_weights(model).values() for part in of_slot]
    for part in parts:
        weight = next(model.get_submodule(part).parameters(), None)
        if weight is None:
            continue
        before = weight.detach().clone()
        weight.data.fill_(torch.nan)
        with pytest.raises(FloatingPointError) as error, NanDetector(model):
            model(*inputs)
        weight.data.copy_(before)
        (named,) = re.findall(r"(?:NaN|Inf) detected in output of ([\w.]*), ", str(error.value))
        parent = part.rpartition(".")[0]
        place = parent if ".layers." in parent else part  # a stack is no place
        assert named in (part, parent) or named.startswith(f"{place}."), f"{part}: {named}"
    with NanDetector(model):
        model(*inputs)


def test_a_gradient_that_is_infinite(
    cli: Cli, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forward pass is finite, but the gradient of one layer is not."""

    def spoil(model: Any) -> None:
        layer = model.encoder.layers[0].fc2
        layer.weight.register_hook(lambda gradient: gradient * torch.inf)

    poison(monkeypatch, spoil)
    with pytest.raises(FloatingPointError) as error:
        flags = train_flags(corpus, "transformer_biarn_tiny", tmp_path, "--max-update", 2)
        cli("train", *flags)
    said = str(error.value)
    assert "The forward pass is finite" in said
    assert "Gradients that are not finite: encoder.layers.0.fc2.weight. " in said
