"""The systems of table 4 of Hao et al. 2019: relative positions, DiSAN, multi-column encoder."""

import re
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_recur.modules.context import Context, Padding, additive_mask
from fairseq_recur.modules.directional import DirectionalSelfAttention
from fairseq_recur.modules.fusion import MultiColumn
from fairseq_recur.modules.parts import CROSS_ATTENTION
from fairseq_recur.ops import attention, naive
from tests.conftest import SMALL
from tests.running import weights
from tests.unit.test_model_properties import compare_to_stock, encode, sentences, small
from tests.unit.test_ops import PADDING, assert_same, lengths_of, random

Build = Callable[..., nn.Module]
pytestmark = pytest.mark.usefixtures("fairseq_in_the_models_precision")
HEADS, WIDTH = 4, 3
ROOT = Path(__file__).parents[2]


def real_positions(length: int, side: str) -> list[range]:
    """The positions of two sentences' real tokens: all, or with padding in both."""
    lengths = [(length + 1) // 2, 1] if side != "none" else [length] * 2
    starts = [length - n if side == "left" else 0 for n in lengths]
    return [range(start, start + n) for start, n in zip(starts, lengths)]


def padding_mask(real: list[range], length: int) -> Tensor:
    """(B, S) bool, True at padding."""
    return torch.tensor([[j not in r for j in range(length)] for r in real])


@pytest.mark.parametrize("side", PADDING)
@pytest.mark.parametrize("length", lengths_of(chunked=False))
def test_multi_column_equals_the_loops(make_model: Build, length: int, side: str) -> None:
    """The encoder's output is the merged one: both columns of one token, in their order."""
    model = make_model("transformer_rnn_multicolumn", *SMALL, "--recurrence-layers", "2")
    model = model.double().eval()
    nn.init.normal_(model.encoder.columns.merge.bias)
    lengths = [length, length, length] if side == "none" else [length, (length + 1) // 2, 1]
    source = sentences(lengths, side)
    columns: list[Tensor] = []
    with patch.object(
        MultiColumn, "forward", lambda self, *states: columns.extend(states) or states[0]
    ):
        encode(model, source)
    assert [c.shape for c in columns] == [(length, 3, 16), (length, 3, 32)]
    out = encode(model, source)
    assert "recurrence_out" not in out and torch.equal(out["encoder_padding_mask"][0], source.eq(1))
    merge = model.encoder.columns.merge
    inputs = [c.detach().requires_grad_() for c in columns]
    fast = model.encoder.columns(*inputs)
    torch.testing.assert_close(out["encoder_out"][0], fast, rtol=1e-10, atol=1e-12)
    slow = [
        torch.stack([naive.multi_column(e, r, merge.weight, merge.bias) for e, r in zip(*at)])
        for at in zip(*inputs)
    ]
    assert_same(fast, torch.stack(slow), [*inputs, merge.weight, merge.bias])


def directional_module(**changed: Any) -> DirectionalSelfAttention:
    options = dict(
        encoder_embed_dim=12, encoder_attention_heads=HEADS, attention_dropout=0.0, **changed
    )
    cfg = TransformerConfig.from_namespace(Namespace(host="transformer", **options))
    return DirectionalSelfAttention(cfg, "encoder", None).double().eval()


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("side", PADDING)
def test_directional_weights_on_demand(side: str, biased: bool) -> None:
    """The maps give the fused form's output, and see what they may: also with a T5's bias."""
    module, x = directional_module(), torch.randn(7, 2, 12, dtype=torch.float64)
    hidden = padding_mask(real_positions(7, side), 7)
    padding = Padding.of(hidden)
    assert (padding is None) is (side == "none")
    bias = torch.randn(HEADS, 7, 7, dtype=torch.float64) if biased else None
    context = Context(padding=padding, mask=additive_mask(bias, padding, torch.float64))
    fused, none = module(x, context)
    out, maps = module(x, context, need_head_weights=True)
    assert none is None and maps.shape == (HEADS, 2, 7, 7)
    real = ~hidden.t()
    torch.testing.assert_close(out[real], fused[real], rtol=1e-10, atol=1e-12)
    for b, r in enumerate(real_positions(7, side)):
        for i in r:
            for j in range(7):
                seen = [j in r and j <= i] * 2 + [j in r and j >= i] * 2
                assert (maps[:, b, i, j] > 0).tolist() == seen


def test_directional_reads_the_bias_of_its_heads() -> None:
    """A bias that lets each head see only one key, a different one for each head."""
    values = random(1, HEADS, 4, WIDTH)
    wanted = [0, 1, 3, 2]  # for position 1 in the first half, for position 2 in the second
    bias = torch.full((HEADS, 4, 4), -1e9, dtype=torch.float64)
    for head, key in enumerate(wanted):
        bias[head, :, key] = 0.0
    masks = attention.directional_masks(values, bias)
    out = attention.directional_attention(values, values, values, masks)
    for head, key in enumerate(wanted):
        position = 1 if head < HEADS // 2 else 2
        torch.testing.assert_close(out[0, head, position], values[0, head, key])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("weights", [False, True])
def test_directional_hides_with_finite_numbers(dtype: torch.dtype, weights: bool) -> None:
    """So that a sentence of padding alone, which sees nothing, stays finite."""
    module, x = directional_module().to(dtype), torch.randn(4, 2, 12).to(dtype)
    padding = Padding.of(torch.tensor([[False] * 4, [True] * 4]))
    context = Context(padding=padding, mask=additive_mask(None, padding, torch.float32))
    out, _ = module(x, context, need_head_weights=weights)
    assert out.isfinite().all()


def test_directional_dropout() -> None:
    module = directional_module().train()
    module.dropout_module.p = 0.999999
    x = torch.randn(5, 2, 12, dtype=torch.float64)
    for wanted in (False, True):
        out, _ = module(x, Context(), need_weights=wanted)
        assert torch.equal(out, module.out_proj.bias.expand_as(out))


def test_changes_reach_the_heads_that_see_them(make_model: Build) -> None:
    """In a one-layer encoder, only backward-looking heads let the first word affect others."""
    flags = ["--encoder-layers", "1", "--encoder-attention-heads", "2"]
    model = small(make_model, ["--arch", "transformer_disan", *flags])
    attention = model.encoder.layers[0].self_attn
    out_of_heads: list[Tensor] = []
    attention.out_proj.register_forward_pre_hook(lambda m, x: out_of_heads.append(x[0]))
    for first in (5, 6):
        encode(model, torch.tensor([[first, 7, 8, 2]]))
    moved = (out_of_heads[0] - out_of_heads[1]).abs().view(4, 2, 8).amax(-1) > 1e-9
    assert moved.tolist() == [[True, True], [True, False], [True, False], [True, False]]


def test_presets_are_what_their_papers_say(make_model: Build) -> None:
    relpos = make_model("transformer_relpos", *SMALL)
    assert relpos.encoder.embed_positions is None and relpos.decoder.embed_positions is None
    for layer in relpos.encoder.layers:
        assert layer.self_attn.positions.key.shape == (2, 2 * 16 + 1, 8)
    for layer in relpos.decoder.layers:
        assert layer.self_attn.positions.value.shape == (2, 16 + 1, 8)
    disan = make_model("transformer_disan", *SMALL)
    assert all(isinstance(x.self_attn, DirectionalSelfAttention) for x in disan.encoder.layers)
    assert all(x.self_attn.stock for x in disan.decoder.layers)
    assert disan.encoder.embed_positions is not None
    columns = make_model("transformer_rnn_multicolumn", *SMALL)
    assert len(columns.encoder.recurrence_encoder.layers) == 6
    assert not any(layer.fusion for layer in columns.decoder.layers)
    for name in ("transformer_relpos", "transformer_disan", "transformer_rnn_multicolumn"):
        sizes = ["", "_tiny", "_iwslt_de_en", "_wmt_en_de", "_wmt_en_de_big", "_wmt_zh_en"]
        assert {name + size for size in sizes} <= ARCH_MODEL_REGISTRY.keys()


def parameters_beside_the_stock(make_model: Build, *system: str) -> int:
    """The number of parameters that a system adds to fairseq's `transformer`."""
    with torch.device("meta"):
        sizes = [
            sum(p.numel() for p in weights(dict(make_model(*a).named_parameters())).values())
            for a in (("transformer",), system)
        ]
    return sizes[1] - sizes[0]


@pytest.mark.parametrize(
    "arch, added",
    [
        # 6 layers, 8 heads of width 64, keys and values: 33 rows in the encoder, 17 in the decoder
        ("transformer_relpos", 6 * 2 * 8 * 64 * (33 + 17)),
        ("transformer_disan", 0),
        (
            "transformer_rnn_multicolumn",
            # two GRUs, six layers: the first reads C, those above 2C; two biases a gate
            2 * (6 * 3 * 512 * 512 + 3 * 512 * 512 + 5 * 3 * 1024 * 512 + 6 * 2 * 3 * 512)
            + 6 * (2 * 1024 * 2048 + 2048 + 1024 + 2 * 2 * 1024)  # networks 2C, F, 2C, and norms
            + 3 * 512 * 512 + 512,  # the merge
        ),
    ],
)  # fmt: skip
def test_parameters_added(make_model: Build, arch: str, added: int) -> None:
    assert parameters_beside_the_stock(make_model, arch) == added


def test_page_says_what_the_flags_add(make_model: Build) -> None:
    """The rows of tables 1 and 2 in docs/comparison_systems.md, all of them flags of the parser."""
    page = (ROOT / "docs" / "comparison_systems.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|[^|]*-layer[^|]*\|([^|]*)\| ([\d,]+) \|", page, re.M)
    rows += re.findall(r"^\| (?:gated sum|stack), [^|]*\|([^|]*)\| ([\d,]+) \|", page, re.M)
    assert len(rows) == 8
    for flags, added in rows:
        found = parameters_beside_the_stock(
            make_model, "transformer_biarn_wmt_en_de", *flags.strip(" `").split()
        )
        assert f"{found:,}" == added, flags


def test_closed_column_is_the_stock_transformer(make_model: Build) -> None:
    """Bit for bit, with a stock checkpoint and nothing of the recurrence encoder let through."""
    model = make_model("transformer_rnn_multicolumn", *SMALL).eval()
    stock = make_model("transformer", *SMALL).eval()
    model.load_state_dict(stock.state_dict())
    with pytest.raises(AssertionError):
        compare_to_stock(model, stock)
    nn.init.zeros_(model.encoder.columns.merge.weight[:, 16:])
    compare_to_stock(model, stock)


def test_merge_begins_as_identity_and_xavier(make_model: Build) -> None:
    merge = make_model("transformer_rnn_multicolumn", *SMALL).encoder.columns.merge
    assert torch.equal(merge.weight[:, :16], torch.eye(16)) and not merge.bias.any()
    bound = (6 / (16 + 32)) ** 0.5
    assert 0.9 * bound < merge.weight[:, 16:].abs().max() <= bound


@pytest.mark.parametrize("cross", CROSS_ATTENTION)
def test_every_cross_attention_reads_the_columns(make_model: Build, cross: str) -> None:
    flags = [] if cross == "dot" else "--segment-size 2 --target-length 4".split()
    system = ["--arch", "transformer_rnn_multicolumn", "--cross-attention", cross, *flags]
    model = small(make_model, [*system, *"--recurrence-layers 1".split()])
    source, target = sentences([5, 2], "left"), torch.tensor([[2, 5, 6], [2, 7, 8]])
    out = encode(model, source)
    before, _ = model.decoder(target, encoder_out=out)
    alone = encode(model, source[1:, 3:])
    apart, _ = model.decoder(target[1:], encoder_out=alone)
    torch.testing.assert_close(before[1:], apart, rtol=1e-9, atol=1e-11)
    state, steps = {}, []
    for t in (1, 2, 3):
        steps.append(model.decoder(target[:, :t], encoder_out=out, incremental_state=state)[0])
    torch.testing.assert_close(torch.cat(steps, dim=1), before, rtol=1e-9, atol=1e-11)
    nn.init.zeros_(model.encoder.columns.merge.weight[:, 16:])
    after, _ = model.decoder(target, encoder_out=encode(model, source))
    assert (before - after).abs().max() > 1e-3
