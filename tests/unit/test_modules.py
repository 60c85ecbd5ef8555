"""Layers and fusions equal the papers' equations written for one sentence and position."""

from argparse import Namespace
from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from fairseq_recur.modules import cross_attention
from fairseq_recur.modules.context import Context, Padding
from fairseq_recur.modules.layers import LayerRunner
from fairseq_recur.modules.recurrence_encoder import RecurrenceEncoder
from fairseq_recur.modules.transformer_layer import DecoderLayer
from fairseq_recur.ops import naive
from fairseq_recur.ops.attention import dot_product_attention
from tests.conftest import SMALL

Build = Callable[..., nn.Module]
NORMS = {"post-norm": [], "pre-norm": ["--encoder-normalize-before", "--decoder-normalize-before"]}
CLOSE = {"rtol": 1e-9, "atol": 1e-11}
pytestmark = pytest.mark.usefixtures("fairseq_in_the_models_precision")


@pytest.fixture(params=NORMS.values(), ids=NORMS.keys())
def norm_flags(request: pytest.FixtureRequest) -> list[str]:
    return request.param


def randomised(model: nn.Module) -> nn.Module:
    """In float64 and evaluation mode, no weight at a value that hides a mistake."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model.double().eval()


def norm_of(module: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: naive.layer_norm(x, module.weight, module.bias, module.eps)


def feed_forward(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: (
        layer.fc2.weight.mv((layer.fc1.weight.mv(x) + layer.fc1.bias).clamp(min=0)) + layer.fc2.bias
    )


def same_with_gradients(fast: Tensor, slow: Tensor, inputs: list[Tensor]) -> None:
    torch.testing.assert_close(fast, slow, **CLOSE)
    weight = torch.randn_like(slow)
    for a, b in zip(
        torch.autograd.grad((fast * weight).sum(), inputs, retain_graph=True),
        torch.autograd.grad((slow * weight).sum(), inputs),
    ):
        torch.testing.assert_close(a, b, **CLOSE)


@pytest.mark.parametrize("kind", ["biarn", "birnn"])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("width, channels", [("full", 32), ("half", 16), ("projected", 16)])
def test_recurrence_encoder(
    make_model: Build, norm_flags: list[str], kind: str, layers: int, width: str, channels: int
) -> None:
    """Eqs. 7-8, layer by layer; REC itself is compared with its loops in test_ops."""
    flags = ["--recurrence", kind, "--recurrence-layers", str(layers), "--recurrence-width", width]
    model = randomised(make_model("transformer_biarn", *SMALL, *norm_flags, *flags))
    encoder: RecurrenceEncoder = model.encoder.recurrence_encoder
    x = torch.randn(2, 6, 16, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[False] * 6, [True, True, True, False, False, False]])
    states, padding = encoder(x, Padding.of(mask))
    assert (padding is None) == (kind == "biarn") and states.size(2) == channels
    for b, real in enumerate([range(6), range(3, 6)]):
        tokens = [x[b, j] for j in real]
        for i, layer in enumerate(encoder.layers):
            tokens = naive.recurrence_layer(
                tokens,
                lambda seq, layer=layer: list(layer.recurrence(torch.stack(seq)[None], None)[0]),
                feed_forward(layer),
                (norm_of(layer.recurrence_layer_norm), norm_of(layer.final_layer_norm)),
                first=i == 0,
                before=bool(norm_flags),
            )
        slow = torch.stack(tokens)
        if norm_flags:
            slow = torch.stack([norm_of(encoder.layer_norm)(t) for t in slow])
        if width == "projected":
            last = encoder.projection
            slow = torch.stack([last.weight.mv(state) + last.bias for state in slow])
        fast = states[:, b] if padding is None else states[~padding.mask[b], b]
        same_with_gradients(fast, slow, [x])


def attend(module: nn.Module, memory: list[Tensor]) -> Callable[[Tensor], Tensor]:
    """fairseq's multi-head attention over one sentence, head by head."""

    def function(x: Tensor) -> Tensor:
        queries = module.q_proj(x).chunk(module.num_heads)
        keys = [module.k_proj(m).chunk(module.num_heads) for m in memory]
        values = [module.v_proj(m).chunk(module.num_heads) for m in memory]
        heads = [
            naive.dot_product_attention(q, [k[h] for k in keys], [v[h] for v in values])
            for h, q in enumerate(queries)
        ]
        return module.out_proj(torch.cat(heads))

    return function


def fusion_inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """C_self, D (T, B, C), H_r (L, B, 2C) and its mask."""
    c, d = torch.randn(2, 4, 2, 16, dtype=torch.float64).requires_grad_()
    states = torch.randn(5, 2, 32, dtype=torch.float64, requires_grad=True)
    return c, d, states, torch.tensor([[False] * 5, [False, False, False, True, True]])


@pytest.mark.parametrize("gate", ["vector", "scalar", None])
def test_fusion(make_model: Build, norm_flags: list[str], gate: str) -> None:
    """Eqs. 14-18: what the feed-forward network of the fused layer reads."""
    flags = ["--recurrence-fusion", "gated_sum", "--recurrence-gate", gate] if gate else []
    model = randomised(make_model("transformer_biarn", *SMALL, *norm_flags, *flags))
    fusion = model.decoder.layers[-1].fusion
    c, d, states, mask = fusion_inputs()
    fast = fusion(c, d, Context(recurrence=states, recurrence_padding=mask))
    for b in range(2):
        memory = [states[i, b] for i in range(5) if not mask[b, i]]
        for t in range(4):
            arguments = (
                c[t, b], d[t, b], attend(fusion.attention, memory),
                norm_of(fusion.layer_norm), bool(norm_flags),
            )  # fmt: skip
            if gate:
                weights = fusion.gate_d.weight, fusion.gate_r.weight, fusion.gate_r.bias
                slow = naive.gate(*arguments, weights)
            else:
                slow = naive.stack(*arguments)
            same_with_gradients(fast[t, b], slow, [d, states] + ([c] if gate else []))


@pytest.mark.parametrize("kind", ["stack", "replace"])
def test_fused_decoder_layer(make_model: Build, norm_flags: list[str], kind: str) -> None:
    """Eqs. 4, 5, 18 and 19: the sub-layers in their order, for one sentence, causal."""
    flags = [*norm_flags, "--recurrence-fusion", kind]
    model = randomised(make_model("transformer_biarn", *SMALL, *flags))
    layer: DecoderLayer = model.decoder.layers[-1]
    before = bool(norm_flags)
    x = torch.randn(4, 1, 16, dtype=torch.float64, requires_grad=True)
    source = torch.randn(3, 1, 16, dtype=torch.float64, requires_grad=True)
    states = torch.randn(5, 1, 32, dtype=torch.float64, requires_grad=True)
    mask = model.decoder.buffered_future_mask(x)
    fast, _, _ = layer(x, Context(future=mask, encoder_out=source, recurrence=states))
    norm_c, norm_h = norm_of(layer.self_attn_layer_norm), norm_of(layer.final_layer_norm)
    inputs = [x, states]
    for t in range(4):
        seen = [norm_c(x[s, 0]) if before else x[s, 0] for s in range(t + 1)]
        c = naive.sublayer(x[t, 0], attend(layer.self_attn, seen), norm_c, before)
        d = c
        if kind == "stack":
            norm_d, inputs = norm_of(layer.encoder_attn_layer_norm), [x, source, states]
            d = naive.sublayer(c, attend(layer.encoder_attn, list(source[:, 0])), norm_d, before)
        reads = attend(layer.fusion.attention, list(states[:, 0]))
        r = naive.stack(c, d, reads, norm_of(layer.fusion.layer_norm), before)
        slow = naive.sublayer(r, feed_forward(layer), norm_h, before)
        same_with_gradients(fast[t, 0], slow, inputs)


@pytest.mark.parametrize(
    "flags, expected",
    [([], [False, False, True]), (["all"], [True] * 3), (["2"], [False, True, True])],
)
def test_which_layers_are_fused(make_model: Build, flags: list[str], expected: list[bool]) -> None:
    option = ["--recurrence-fused-layers", *flags] if flags else []
    model = make_model("transformer_biarn", *SMALL, "--decoder-layers", "3", *option)
    assert [layer.fusion is not None for layer in model.decoder.layers] == expected


@pytest.mark.parametrize("cell, gates", [("gru", 3), ("lstm", 4)])
def test_new_weights_are_xavier_by_gate(make_model: Build, cell: str, gates: int) -> None:
    """The paper starts new modules like its Transformer: each gate's matrix within its bound."""
    model = make_model("transformer_biarn", *SMALL, "--recurrence-cell", cell)
    rec: Namespace = model.encoder.recurrence_encoder.layers[0].recurrence
    for direction in rec.w_h:
        for matrix in direction.chunk(gates):
            bound = (6 / (16 + 16)) ** 0.5
            assert 0.8 * bound < matrix.abs().max() <= bound
    assert not rec.bias.any()


@pytest.mark.parametrize("host", ["transformer_biarn", "t5_small"])
def test_fused_cross_attention(host: str, make_model: Callable[..., torch.nn.Module]) -> None:
    """Logits and gradients are those of fairseq's module, which stores weights that it drops."""
    still = "--dropout 0 --attention-dropout 0 --activation-dropout 0".split()
    stock, fused = (
        make_model(host, *SMALL, *still, *flags) for flags in ([], ["--cross-attention-fused"])
    )
    fused.load_state_dict(stock.state_dict())
    source = torch.randint(4, 60, (3, 9))
    source[1, :3] = stock.encoder.padding_idx
    lengths, target = torch.tensor([9, 6, 9]), torch.randint(4, 60, (3, 7))
    found = []
    for model in (stock, fused):
        model.double().train()
        with patch.object(
            cross_attention, "dot_product_attention", wraps=dot_product_attention
        ) as f:
            logits, _ = model(source, lengths, target)
        logits.square().sum().backward()
        found.append((logits, [p.grad for p in model.parameters()]))
        assert f.call_count == (2 if model is fused else 0), "layers"
    torch.testing.assert_close(found[1], found[0], **CLOSE)


@pytest.mark.parametrize("kept", [(False, False), (True, False), (False, True)])
def test_offloaded_activations_are_checkpointed(kept: tuple[bool, bool]) -> None:
    """In fairseq one flag implies the other, but not in its language models."""
    flags = dict(zip(("checkpoint_activations", "offload_activations"), kept))
    assert LayerRunner(Namespace(**flags)).checkpointed is any(kept)
