"""Encoder layers of fairseq 0.12.2, and the copies of weights in its checkpoints."""

import copy
from collections.abc import Callable

import pytest
import torch
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase

from fairseq_recur import compat
from fairseq_recur.compat.encoder_layer import STALE_ENCODER_KEYS
from tests.conftest import SMALL

STALE = (
    "in_proj_weight in_proj_bias out_proj_weight out_proj_bias fc1_weight fc1_bias "
    "fc2_weight fc2_bias"
).split()
only_0_12_2 = pytest.mark.skipif(
    "_load_from_state_dict" not in vars(TransformerEncoderLayerBase), reason="fairseq 0.12.2 only"
)


def old_checkpoint(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The model's state with the copies that 0.12.2 adds."""
    state = dict(model.state_dict())
    for i in range(2):
        for name in STALE:
            state.setdefault(f"encoder.layers.{i}.{name}", torch.zeros(1))
    return state


def test_exactly_the_copies_are_dropped(make_model: Callable) -> None:
    model = make_model("transformer_biarn_tiny", *SMALL)
    state = old_checkpoint(model)
    assert len(state) == len(model.state_dict()) + 16
    compat.drop_stale_encoder_keys(state, "encoder.layers.1")
    assert len(state) == len(model.state_dict()) + 8
    compat.drop_stale_encoder_keys(state, "encoder.")
    assert state.keys() == model.state_dict().keys()


def test_a_key_without_its_real_one_stays() -> None:
    for stale, real in STALE_ENCODER_KEYS.items():
        state = {f"encoder.layers.0.{key}": 0 for key in (stale, *real)}
        compat.drop_stale_encoder_keys(state, "encoder.layers.0")
        assert state.keys() == {f"encoder.layers.0.{key}" for key in real}
        state = {f"encoder.layers.0.{key}": 0 for key in (stale, *real[1:])}
        compat.drop_stale_encoder_keys(state, "encoder.layers.0")
        assert f"encoder.layers.0.{stale}" in state
    state = {"decoder.layers.0.fc1_bias": 0, "decoder.layers.0.fc1.bias": 0}
    compat.drop_stale_encoder_keys(state, "encoder")
    assert len(state) == 2


@pytest.mark.parametrize("arch", ["transformer", "transformer_biarn_tiny"])
def test_an_old_checkpoint_loads(make_model: Callable, arch: str) -> None:
    model = make_model(arch, *SMALL)
    weights = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    model.load_state_dict(old_checkpoint(model) | weights, strict=True)
    for name, value in model.named_parameters():
        if name.rpartition(".")[2] not in STALE:
            assert torch.equal(value, weights[name]), name


def encode(model: torch.nn.Module) -> torch.Tensor:
    tokens = torch.tensor([[5, 6, 7, 2], [1, 8, 9, 2]])
    with torch.no_grad():
        return model.encoder(tokens, src_lengths=torch.tensor([4, 3]))["encoder_out"][0]


@pytest.mark.parametrize("arch", ["transformer", "transformer_biarn_tiny"])
def test_a_loaded_encoder_runs_in_evaluation(make_model: Callable, arch: str) -> None:
    model = make_model(arch, *SMALL, "--dropout", "0")
    expected = encode(model.train())
    fresh = make_model(arch, *SMALL, "--dropout", "0")
    fresh.load_state_dict(model.state_dict(), strict=True)
    # 0.12.2 takes its fused path for loaded weights in evaluation alone.
    torch.testing.assert_close(encode(fresh.eval()), expected)


def test_the_plug_in_has_no_copies_of_weights(make_model: Callable) -> None:
    model = make_model("transformer_biarn_tiny", *SMALL)
    assert not [n for n, _ in model.named_parameters() if n.rpartition(".")[2] in STALE]
    clone = copy.deepcopy(model)
    with torch.no_grad():
        clone.encoder.layers[0].fc1.weight.zero_()
    clone.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(clone.encoder.layers[0].fc1.weight, model.encoder.layers[0].fc1.weight)


@only_0_12_2
def test_the_stock_layer_keeps_its_parameters(make_model: Callable) -> None:
    names = make_model("transformer", *SMALL).state_dict().keys()
    assert {f"encoder.layers.0.{n}" for n in STALE} <= names  # its checkpoints stay readable


def test_nothing_happens_where_there_is_no_fast_path() -> None:
    layer = torch.nn.Linear(2, 2)
    compat.disable_encoder_fastpath(layer)
    assert not hasattr(layer, "can_use_fastpath") and len(list(layer.parameters())) == 2
