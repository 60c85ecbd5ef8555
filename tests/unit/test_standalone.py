"""The modules with plain arguments, outside any fairseq model."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fairseq_recur.errors import ConfigError
from fairseq_recur.modules.standalone import BiARNEncoder, RSASelfAttention, SRformerCrossAttention

C, H = 16, 4


def reads(module: nn.Module, memory: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
    torch.manual_seed(1)
    if isinstance(module, SRformerCrossAttention):
        return module(torch.randn(memory.size(0), 6, C).double(), memory, padding)
    return module(memory, padding)


@pytest.mark.parametrize("module", [
    lambda: RSASelfAttention(C, H, rsa_heads="2,1,1,0,0,0"),
    lambda: RSASelfAttention(C, H, causal=True),
    lambda: SRformerCrossAttention(C, H, segment_size=3, target_length=6),
    lambda: BiARNEncoder(C, recurrence_steps=3),
])  # fmt: skip
def test_padding_changes_nothing_and_gradients_reach_everything(module) -> None:
    torch.manual_seed(0)
    module = module().double()
    text = torch.randn(1, 7, C).double()
    alone = reads(module, text, None)
    assert alone.size(0) == 1 and alone.size(-1) == (2 * C if type(module) is BiARNEncoder else C)
    padded = torch.cat([text, torch.full((1, 4, C), 9.0).double()], dim=1)
    mask = torch.arange(11)[None] >= 7
    found = reads(module, padded, mask)
    torch.testing.assert_close(found[:, : alone.size(1)], alone)
    found[:, : alone.size(1)].square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


def test_a_closed_gate_is_torchs_attention() -> None:
    """The causal one reads no later position."""
    torch.manual_seed(0)
    ours = RSASelfAttention(C, H, causal=True, rsa_gate_init=-1e4).double()
    torchs = nn.MultiheadAttention(C, H, batch_first=True).double()
    parts = [ours.attention.q_proj, ours.attention.k_proj, ours.attention.v_proj]
    with torch.no_grad():
        torchs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        torchs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        torchs.out_proj.weight.copy_(ours.attention.out_proj.weight)
        torchs.out_proj.bias.copy_(ours.attention.out_proj.bias)
    x = torch.randn(2, 5, C).double()
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    expected, _ = torchs(x, x, x, attn_mask=later)
    torch.testing.assert_close(ours(x), expected)


@pytest.mark.parametrize("given,same", [
    ({"rsa_gate_init": -1}, {"rsa_gate_init": "-1"}),
    ({"rsa_heads": "0,2,2,0,0,0", "rsa_theta_init": 1}, {"rsa_heads": "0,2,2,0,0,0",
                                                         "rsa_theta_init": 1.0}),
    ({"rsa_heads": "1,0,0,2,0,0", "rsa_dilations": 2}, {"rsa_heads": "1,0,0,2,0,0",
                                                        "rsa_dilations": "2"}),
])  # fmt: skip
def test_numbers_are_read_as_their_option_declares(
    given: dict[str, Any], same: dict[str, Any]
) -> None:
    found, expected = (RSASelfAttention(C, H, **options) for options in (given, same))
    for name, parameter in found.attention.mixture.named_parameters():
        assert torch.equal(parameter, expected.attention.mixture.get_parameter(name)), name
    assert SRformerCrossAttention(C, H, srformer_leak_init=None, srformer_threshold_init=1)


@pytest.mark.parametrize("build,options,words", [
    (RSASelfAttention, {"rsa_heads": (1, 1, 0, 0, 0, 0)}, "expected a text, with commas"),
    (RSASelfAttention, {"rsa_max_power": None}, "rsa_max_power=None: expected a whole number"),
    (RSASelfAttention, {"rsa_theta_init": "1"}, "rsa_theta_init='1': expected a number"),
    (RSASelfAttention, {"rsa_gate_init": True}, "rsa_gate_init=True: expected a text"),
    (RSASelfAttention, {"rsa_normalize": 1}, "rsa_normalize=1: expected True or False"),
    (SRformerCrossAttention, {"segment_size": 2.0}, "segment_size=2.0: expected a whole number"),
    (SRformerCrossAttention, {"srformer_leak_init": "1"}, "leak_init='1': expected a number"),
    (BiARNEncoder, {"recurrence_steps": 2.5}, "recurrence_steps=2.5: expected a whole number"),
    (BiARNEncoder, {"recurrence_steps": True}, "recurrence_steps=True: expected a whole number"),
], ids=lambda x: str(x)[:30])  # fmt: skip
def test_wrong_types(build: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        build(C, H, **options)


def test_wrong_arguments() -> None:
    with pytest.raises(ConfigError, match="embed_dim=10 cannot be split.*num_heads=4"):
        RSASelfAttention(10, 4)
    for heads in (0, -1):
        with pytest.raises(ConfigError, match=f"embed_dim=16 .*num_heads={heads}"):
            BiARNEncoder(C, heads)
    with pytest.raises(ConfigError, match="embed_dim=0 .*; choose a positive multiple"):
        BiARNEncoder(0, 4)
    with pytest.raises(ConfigError, match="unknown options: steps; expected some of"):
        BiARNEncoder(C, steps=3)


@pytest.mark.parametrize("build,options,words", [
    (SRformerCrossAttention, {"srformer_norm": "frobenious"}, "--srformer-norm frobenious: choose"),
    (SRformerCrossAttention, {"srformer_norm": "sum"}, "--srformer-norm sum is for --srform"),
    (SRformerCrossAttention, {"target_length_mode": "ratios"}, "--target-length-mode ratios: choo"),
    (SRformerCrossAttention, {"segment_size": 0}, "--segment-size 0: expected 1 to"),
    (SRformerCrossAttention, {"srformer_threshold_init": 0.0}, "--srformer-threshold-init 0.0"),
    (SRformerCrossAttention, {"srformer_form": "recomputed", "srformer_clamp": 0.5},
     "--srformer-form recomputed does not support --srformer-clamp 0.5"),
    (RSASelfAttention, {"rsa_dropout": "mixt"}, "--rsa-dropout mixt: choose one of"),
    (RSASelfAttention, {"rsa_form": "chunked", "rsa_normalize": True}, "--rsa-form chunked has no"),
    (RSASelfAttention, {"rsa_heads": "9,0,0,0,0,0", "causal": True}, "decoder"),
    (RSASelfAttention, {"rsa_nu_init": "3,4"}, "--rsa-nu-init 3,4 has no effect: the default of"),
    (SRformerCrossAttention, {"target_ratio": 0.3},
     "--target-ratio 0.3 has no effect with --target-length-mode fixed; it needs"),
    (SRformerCrossAttention, {"srformer_no_neuron": True, "srformer_threshold_init": 0.5},
     "--srformer-threshold-init 0.5 has no effect with --srformer-no-neuron True"),
    (BiARNEncoder, {"recurrence_attention": "multihead", "recurrence_coverage": True},
     "--recurrence-coverage True has no effect with --recurrence-attention multihead"),
    (BiARNEncoder, {"recurrence_steps": 0}, "--recurrence-steps 0: expected at least 1"),
    (BiARNEncoder, {"recurrence_positions": True}, "unknown options: recurrence_positions"),
    (BiARNEncoder, {"recurrence_input": "encoder"}, "unknown options: recurrence_input"),
    (BiARNEncoder, {"recurrence_lr_scale": 5.0}, "unknown options: recurrence_lr_scale"),
], ids=lambda x: str(x)[:30])  # fmt: skip
def test_wrong_options(build: Any, options: dict[str, Any], words: str) -> None:
    """They are checked as on the command line; those that only a model reads are unknown here."""
    with pytest.raises(ConfigError, match=re.escape(words)):
        build(C, H, **options)


@pytest.mark.parametrize("shape", [(0, 5, C), (2, 0, C)])
def test_empty_inputs(shape: tuple[int, ...]) -> None:
    some, none = torch.zeros(2, 5, C), torch.zeros(shape)
    words = re.escape(f"has the shape {shape}; expected at least one sentence")
    cross = SRformerCrossAttention(C, H)
    for call in (RSASelfAttention(C, H), BiARNEncoder(C, H), lambda x: cross(x, some)):
        with pytest.raises(ValueError, match=f"^x {words}"):
            call(none)
    with pytest.raises(ValueError, match=f"^memory {words}"):
        cross(some, none)


def test_defaults_may_be_given() -> None:
    """Also of options that have no effect beside the others."""
    SRformerCrossAttention(C, H, srformer_no_neuron=True, srformer_threshold_init=0.1)
    BiARNEncoder(C, H, recurrence_attention="multihead", recurrence_coverage=False)


def test_the_page() -> None:
    page = Path(__file__).parents[2] / "docs" / "outside_fairseq.md"
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.M | re.S):
        if "exported" not in block:  # tests/integration/test_pipelines.py runs this one
            exec(block, names)
    assert names["hidden"].shape == (2, 30, 64) and names["memory"].shape == (2, 8, 128)
    assert names["kernel"][0, 2] == pytest.approx(0.81) and names["kernel"].shape == (2, 10)
