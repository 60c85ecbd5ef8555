"""RSA in the cross-attention: against the equations, in all forms, padded, and step by step."""

from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.models.transformer import TransformerConfig
from torch import Tensor

from fairseq_recur.models.config import encoder_decoder_slots, part_fields
from fairseq_recur.modules.context import Context, Padding, Source
from fairseq_recur.modules.cross_attention import DotCrossAttention
from fairseq_recur.modules.mixture import FORMS
from fairseq_recur.modules.parts import build_cross_attention
from fairseq_recur.ops import naive

KINDS = {"rsa_heads": "2,1,1,1,1,1", "rsa_dilations": "2,3,3"}


def attention(**options: Any) -> DotCrossAttention:
    """Eight heads of width two, in float64."""
    values = {name: made.default for name, _, made in part_fields(encoder_decoder_slots())}
    chosen = {"cross_attention_mixture": "rsa", "host": "transformer", "attention_dropout": 0.0}
    for side in ("encoder", "decoder"):
        chosen |= {f"{side}_embed_dim": 16, f"{side}_attention_heads": 8}
    cfg = TransformerConfig.from_namespace(Namespace(**{**values, **KINDS, **chosen, **options}))
    module = build_cross_attention(cfg).double().eval()
    assert isinstance(module, DotCrossAttention)
    return module


def context_of(
    states: Tensor, source: Tensor | None, target: Tensor | None = None, start: int = 0
) -> Context:
    """Of teacher forcing over *states* (S, B, C), with padding masks of source and target."""
    return Context(
        padding=Padding.of(target),
        encoder_out=states,
        source=Source.of(states, Padding.of(source)),
        target_start=start,
    )


def by_the_equations(module: DotCrossAttention, x: Tensor, states: Tensor, start: int) -> Tensor:
    """Eq. 4 with the matrix of appendix D.2, of one sentence: (T, C) and (S, C) to (T, C)."""
    p: Any = module.mixture
    lam, gamma, zero = torch.tanh(p.eta), torch.sigmoid(p.nu), torch.zeros(()).double()
    heads = [
        (lam[0], zero, False, 1), (lam[1], zero, False, 1),
        (gamma[0], p.theta[0], False, 1), (gamma[0], p.theta[0], True, 1),
        (lam[2], zero, False, 2),
        (gamma[1], p.theta[1], False, 3), (gamma[1], p.theta[1], True, 3),
    ]  # fmt: skip
    q = module.q_proj(x).view(len(x), 8, 2)
    k, v = (f(states).view(len(states), 8, 2) for f in (module.k_proj, module.v_proj))
    times = list(range(start, start + len(x))), list(range(len(states)))
    outputs = []
    for h in range(8):
        matrix, gate = torch.zeros(len(x), len(states)).double(), zero
        if h < len(heads):
            decay, angle, sine, dilation = heads[h]
            matrix = naive.rem(decay, angle, sine, dilation, *times, masked=False)
            gate = torch.sigmoid(p.mu)
        outputs.append(naive.rsa_head(*(list(m[:, h]) for m in (q, k, v)), matrix, gate, False))
    return module.out_proj(torch.cat(outputs, dim=1))


@pytest.mark.parametrize("start, steps, keys", [(0, 5, 9), (0, 9, 4), (6, 7, 8), (20, 3, 4)])
def test_equations(start: int, steps: int, keys: int) -> None:
    """Outputs and gradients, where the target begins before, in and after the end of the source."""
    module = attention()
    x = torch.randn(steps, 16, dtype=torch.float64, requires_grad=True)
    states = torch.randn(keys, 16, dtype=torch.float64, requires_grad=True)
    wanted = [x, states, *module.parameters()]
    expected = by_the_equations(module, x, states, start)
    weight = torch.linspace(-1, 1, expected.numel(), dtype=x.dtype).view_as(expected)
    gradients = torch.autograd.grad((expected * weight).sum(), wanted)
    assert module.mixture is not None
    for form in FORMS:
        module.mixture.form = form
        context = context_of(states.unsqueeze(1), None, start=start)
        out = module(x.unsqueeze(1), context)[0].squeeze(1)
        torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-11)
        for a, b in zip(torch.autograd.grad((out * weight).sum(), wanted), gradients):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("length", [1, 2, 17, 63, 64, 65])
def test_forms_with_padding_on_both_sides(length: int) -> None:
    """Each sentence gives what it gives alone, its weights stand at its words, in all forms."""
    module, steps = attention(), length // 2 + 1
    x = torch.randn(steps, 3, 16, dtype=torch.float64)
    states = torch.randn(length, 3, 16, dtype=torch.float64)
    source = torch.zeros(3, length, dtype=torch.bool)
    source[0, : length // 3] = source[1, length - length // 3 :] = True
    target = torch.zeros(3, steps, dtype=torch.bool)
    target[1, : steps // 2] = target[2, steps - steps // 2 :] = True
    assert module.mixture is not None
    for form in FORMS:
        module.mixture.form = form
        out, weights = module(x, context_of(states, source, target), need_head_weights=False)
        _, weights = module(x, context_of(states, source, target), need_head_weights=True)
        for b in range(3):
            t, s = ~target[b], ~source[b]
            alone = context_of(states[s][:, b : b + 1], None)
            expected, map_alone = module(x[t][:, b : b + 1], alone, need_head_weights=True)
            torch.testing.assert_close(out[t, b], expected[:, 0], rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(weights[:, b][:, t][:, :, s], map_alone[:, 0])
            assert not weights[:, b][:, t][:, :, ~s].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scores_are_in_float32(dtype: torch.dtype) -> None:
    """So that a map is exact for what it is given, where scores are large."""
    module = attention().float()
    query, key, value = (20 * torch.randn(2, 8, 6, 2) for _ in range(3))
    query, key, value = (x.to(dtype) for x in (query, key, value / 20))
    context = context_of(torch.zeros(6, 2, 16), None)
    assert module.mixture is not None

    def weights(*given: Tensor) -> Tensor:
        return module.mixture.mix_source(module, *given, None, context, True)[1]

    expected = weights(query.float(), key.float(), value.float())
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(
        weights(query, key, value).float(), expected, rtol=rounding, atol=rounding
    )


@pytest.mark.parametrize("normalize", [False, True])
def test_steps_equal_teacher_forcing(normalize: bool) -> None:
    """Beyond the first table of rows, with a start, in a beam of three."""
    module = attention(rsa_normalize=normalize)
    x = torch.randn(70, 2, 16, dtype=torch.float64)
    states = torch.randn(9, 2, 16, dtype=torch.float64)
    padding = torch.zeros(2, 9, dtype=torch.bool)
    padding[1, :4] = True
    expected = module(x, context_of(states, padding, start=3))[0]
    rows = torch.tensor([0, 0, 0, 1, 1, 1])
    source, state = Source(states, Padding.of(padding), rows, beam=3), {}
    for t in range(70):
        context = Context(
            encoder_out=states, source=source, target_start=3, incremental_state=state, position=t
        )
        out = module(x[t : t + 1, rows], context)[0]
        torch.testing.assert_close(out, expected[t : t + 1, rows], rtol=1e-9, atol=1e-11)
        module.reorder_incremental_state(state, torch.tensor([2, 0, 1, 5, 5, 3]))
