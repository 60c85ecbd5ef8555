"""In training, too, a model without parts is fairseq's: places of dropout, their rates, noise."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fairseq.modules import FairseqDropout
from torch import nn

from tests.conftest import SMALL
from tests.systems import PLAIN
from tests.unit.test_guest_features import WORDS
from tests.unit.test_model_properties import PAD, decode, sentences, targets, true_lengths

Build = Callable[..., Any]

FLAGS = {
    "dropout": "--dropout 0.3 --attention-dropout 0.2 --activation-dropout 0.1",
    "noise": "--quant-noise-pq 0.5 --quant-noise-pq-block-size 4",
    "cross-self": "--cross-self-attention",
    "cross-self-alone": "--cross-self-attention --no-cross-attention",
}


def pair(make_model: Build, flags: str) -> tuple[nn.Module, nn.Module]:
    """A model without parts and fairseq's, with the same random parameters."""
    model = make_model("transformer_biarn", *SMALL, *PLAIN, *flags.split())
    stock = make_model("transformer", *SMALL, *flags.split())
    for parameter in stock.parameters():
        nn.init.normal_(parameter, std=0.3)
    model.load_state_dict(stock.state_dict())
    return model, stock


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_training_is_that_of_the_stock_transformer(make_model: Build, flags: str) -> None:
    source, target, found = sentences([6, 3, 5], "left"), targets(3, 5), []
    target[1, -2:] = PAD
    for model in pair(make_model, flags):
        torch.manual_seed(1)
        found.append(model.train()(source, true_lengths(source), target)[0])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("flags", [FLAGS["cross-self"], FLAGS["cross-self-alone"]])
def test_decoding_is_that_of_the_stock_transformer(make_model: Build, flags: str) -> None:
    source, target = sentences([6, 3, 5], "left"), targets(3, 5)
    with torch.no_grad():
        found = [decode(model.eval(), source, target) for model in pair(make_model, flags)]
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    "arch, part",
    [
        ("transformer_biarn", "fusion.attention.q_proj"),
        ("transformer_biarn", "recurrence_encoder.layers.0.fc1"),
        ("rsa_transformer", "self_attn.q_proj"),
        ("t5_small", "fc1"),
    ],
)
def test_parts_have_the_noise(make_model: Build, arch: str, part: str) -> None:
    model = make_model(arch, *SMALL, *FLAGS["noise"].split())
    found = [module for name, module in model.named_modules() if name.endswith(part)]
    assert found and all(module._forward_pre_hooks for module in found)


ATTENTIONS = ("attn.", "attention.", "input_self.", "state_self.", "input_to_state.", "state_to_")


def rate(name: str) -> float:
    """The rate that a dropout has by its place."""
    if "activation" in name:
        return 0.3
    return 0.2 if any(part in name for part in ATTENTIONS) else 0.1


@pytest.mark.parametrize(
    "arch, sizes",
    [
        ("transformer_biarn", SMALL), ("transformer_biarn", [*SMALL, "--recurrence-attention",
        "multihead"]), ("srformer", SMALL), ("t5_small", SMALL), ("rsa_transformer", SMALL),
        ("brt_lm_tiny", []), ("tlb_lm_tiny", []), ("xl_lm_tiny", []),
    ],
)  # fmt: skip
def test_each_dropout_has_its_own_rate(make_model: Build, arch: str, sizes: list[str]) -> None:
    rates = "--dropout 0.1 --attention-dropout 0.2 --activation-dropout 0.3".split()
    model = make_model(arch, *sizes, *rates)
    found = {n: m.p for n, m in model.named_modules() if isinstance(m, FairseqDropout)}
    assert {n: p for n, p in found.items() if p != rate(n)} == {} and len({*found.values()}) > 1


def test_the_recurrence_encoder_drops_its_input_and_its_output(make_model: Build) -> None:
    """Each use of a dropout that others share."""
    model = make_model("transformer_biarn", *SMALL).train()
    read: list[torch.Tensor] = []
    encoder = model.encoder.recurrence_encoder
    encoder.register_forward_pre_hook(lambda module, args: read.append(args[0]))
    model.encoder.dropout_module.p = 1.0
    model.encoder(WORDS["src_tokens"], WORDS["src_lengths"])
    assert not read[0].any()
    layer = encoder.layers[0]
    layer.dropout_module.p = 1.0
    assert torch.equal(*(layer(torch.randn(2, 3, 16), None) for _ in range(2)))


def test_the_fusion_is_a_layer_of_the_decoder(make_model: Build) -> None:
    sizes = [*SMALL, "--decoder-attention-heads", "4", "--decoder-normalize-before"]
    fusion = make_model("transformer_biarn", *sizes).decoder.layers[-1].fusion
    assert fusion.attention.num_heads == 4 and fusion.normalize_before
