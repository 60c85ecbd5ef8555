"""Every fast function equals its naive reference: outputs and all gradients, in float64."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from fairseq_recur.modules.biarn import BiARN
from fairseq_recur.modules.birnn import BiRNN
from fairseq_recur.modules.recurrence import RecurrenceOptions
from fairseq_recur.ops import attention, fusion, gru, masking, naive
from fairseq_recur.ops.recurrence_encoder import attentive_recurrence

LENGTHS = [1, 2, 17, 63, 64, 65]
PADDING = ["none", "left", "right"]


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def padded_batch(length: int, width: int, side: str) -> tuple[Tensor, Tensor, list[list[Tensor]]]:
    """Three sentences of different lengths: the batch, its mask, the real tokens of each."""
    lengths = [length, length, length] if side == "none" else [length, (length + 1) // 2, 1]
    x = random(3, length, width)
    mask = torch.ones(3, length, dtype=torch.bool)
    sentences = []
    for b, real in enumerate(lengths):
        start = length - real if side == "left" else 0
        mask[b, start : start + real] = False
        sentences.append([x[b, j] for j in range(start, start + real)])
    return x, mask, sentences


def assert_same(fast: Tensor, slow: Tensor, inputs: Sequence[Tensor]) -> None:
    """Equal values, and equal gradients of a random weighting of them for every input."""
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)
    weight = torch.randn_like(slow)
    pairs = [
        torch.autograd.grad((out * weight).sum(), inputs, retain_graph=True, allow_unused=True)
        for out in (fast, slow)
    ]
    for of_fast, of_slow in zip(*pairs):
        assert of_fast is not None and of_slow is not None
        torch.testing.assert_close(of_fast, of_slow, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("side", PADDING)
@pytest.mark.parametrize("length", LENGTHS)
def test_masked_mean(length: int, side: str) -> None:
    x, mask, sentences = padded_batch(length, 3, side)
    fast = padding.masked_mean(x, None if side == "none" else mask)
    assert_same(fast, torch.stack([naive.mean_of_real_tokens(s) for s in sentences]), [x])


@pytest.mark.parametrize("side", PADDING)
def test_real_tokens_first(side: str) -> None:
    x, mask, sentences = padded_batch(17, 3, side)
    order, lengths = padding.real_tokens_first(mask)
    for b, sentence in enumerate(sentences):
        assert lengths[b] == len(sentence)
        assert torch.equal(x[b, order[b, : lengths[b]]], torch.stack(sentence))
        assert sorted(order[b].tolist()) == list(range(17))


def test_gru_step() -> None:
    x, h, w_x, w_h, bias = (
        random(2, 5, 3),
        random(2, 5, 4),
        random(2, 12, 3),
        random(2, 12, 4),
        random(2, 4),
    )
    slow = [
        [naive.gru(x[n, b], h[n, b], w_x[n], w_h[n], bias[n]) for b in range(5)] for n in range(2)
    ]
    slow = torch.stack([torch.stack(row) for row in slow])
    assert_same(gru.gru_step(x, h, w_x, w_h, bias), slow, [x, h, w_x, w_h, bias])


def test_naive_gru_is_torch_gru() -> None:
    """The reference itself against torch: the same cell where only the candidate has a bias."""
    x, h, w_x, w_h, bias = random(3), random(4), random(12, 3), random(12, 4), random(4)
    cell = nn.GRUCell(3, 4, dtype=torch.float64)
    with torch.no_grad():
        cell.weight_ih.copy_(w_x), cell.weight_hh.copy_(w_h)
        cell.bias_ih.zero_(), cell.bias_hh.zero_()
        cell.bias_ih[8:].copy_(bias)
    torch.testing.assert_close(naive.gru(x, h, w_x, w_h, bias), cell(x, h))


@pytest.mark.parametrize("side", PADDING)
@pytest.mark.parametrize("length", LENGTHS)
def test_additive_attention(length: int, side: str) -> None:
    values, mask, sentences = padded_batch(length, 4, side)
    query, w_k, score = random(3, 2, 5), random(5, 4), random(5)
    fast = attention.additive_attention(
        query, values @ w_k.t(), score, values, None if side == "none" else mask
    )
    slow = torch.stack(
        [
            torch.stack(
                [
                    naive.additive_attention(query[b, n], [w_k.mv(v) for v in s], score, s)
                    for n in range(2)
                ]
            )
            for b, s in enumerate(sentences)
        ]
    )
    # A single token has weight one whatever its score is: no gradient to compare.
    assert_same(fast, slow, [values] if length == 1 else [query, values, w_k, score])


@pytest.mark.parametrize("side", PADDING)
@pytest.mark.parametrize("length", LENGTHS)
def test_dot_product_attention(length: int, side: str) -> None:
    values, mask, sentences = padded_batch(length, 4, side)
    query, w_k = random(3, 2, 2, 6), random(2, 6, 4)  # two heads, two queries
    keys = torch.einsum("bsc,hdc->bhsd", values, w_k)
    per_head = values.unsqueeze(1).expand(3, 2, length, 4)
    fast = attention.dot_product_attention(query, keys, per_head, None if side == "none" else mask)
    slow = torch.stack(
        [
            torch.stack(
                [
                    torch.stack(
                        [
                            naive.dot_product_attention(
                                query[b, h, n], [w_k[h].mv(v) for v in s], s
                            )
                            for n in range(2)
                        ]
                    )
                    for h in range(2)
                ]
            )
            for b, s in enumerate(sentences)
        ]
    )
    assert_same(fast, slow, [values] if length == 1 else [query, values, w_k])


def reference_attend(module: BiARN, tokens: list[Tensor]) -> Callable[[Tensor], Tensor]:
    """The attention of a BiARN over one sentence, for one state."""
    att = module.attention
    if hasattr(att, "score"):
        keys = [att.key.weight.mv(t) for t in tokens]
        return lambda h: naive.additive_attention(
            att.query.weight.mv(h), keys, att.score.weight[0], tokens
        )

    def attend(h: Tensor) -> Tensor:
        keys, values = [att.key(t) for t in tokens], [att.value(t) for t in tokens]
        query, heads = att.query(h).chunk(att.heads), []
        for i in range(att.heads):
            head = [k.chunk(att.heads)[i] for k in keys], [v.chunk(att.heads)[i] for v in values]
            heads.append(naive.dot_product_attention(query[i], *head))
        return att.out(torch.cat(heads))

    return attend


BIARN = [(kind, 3, length) for kind in ("additive", "multihead") for length in LENGTHS]
# As many steps as tokens, in quadratic time; of those about 64 one is enough in each run.
BIARN += [
    pytest.param("additive", -1, length, marks=pytest.mark.slow if length in (63, 64) else ())
    for length in LENGTHS
]


@pytest.mark.parametrize("first", [True, False], ids=["first-layer", "upper-layer"])
@pytest.mark.parametrize("kind, steps, length", BIARN)
@pytest.mark.parametrize("side", PADDING)
def test_biarn(length: int, side: str, kind: str, steps: int, first: bool) -> None:
    width = 4
    options = RecurrenceOptions(steps=steps, attention=kind, heads=2, attention_dropout=0.0)
    module = BiARN(width if first else 2 * width, width, options).double()
    nn.init.normal_(module.bias)
    x, mask, sentences = padded_batch(length, module.input_dim, side)
    slow = []
    for tokens in sentences:
        mean = naive.mean_of_real_tokens(tokens)
        h0 = (mean, mean) if first else (mean[:width], mean[width:])
        attend = reference_attend(module, tokens)
        gru = module.w_x, module.w_h, module.bias
        slow.append(naive.biarn(attend, h0, *gru, len(tokens) if steps < 0 else steps))
    fast = module(x, None if side == "none" else mask)
    if steps < 0:
        assert side == "none" or not fast[mask].any()
        fast = fast.flatten(0, 1) if side == "none" else fast[~mask]
        slow = [torch.cat(slow)]
    # What scores a single token gets no gradient, and a bias common to all keys never does.
    scoring = ("attention.query", "attention.key", "attention.score") if length == 1 else ()
    skipped = (*scoring, "attention.key.bias")
    parameters = [p for n, p in module.named_parameters() if not n.startswith(skipped)]
    assert_same(fast, slow[0] if steps < 0 else torch.stack(slow), [x, *parameters])


@pytest.mark.parametrize("steps", [1, 2, 17])
def test_attentive_recurrence_steps(steps: int) -> None:
    source, w_x, w_h, bias = random(3), random(2, 12, 3), random(2, 12, 4), random(2, 4)
    h0 = random(2, 1, 4)

    def attend(states: Tensor) -> Tensor:
        return source * states.sum(-1, keepdim=True)

    fast = attentive_recurrence(attend, h0, w_x, w_h, bias, steps)
    slow = naive.biarn(attend, (h0[0, 0], h0[1, 0]), w_x, w_h, bias, steps)
    assert_same(fast, slow.unsqueeze(0), [source, w_x, w_h, bias, h0])


@pytest.mark.parametrize("first", [True, False], ids=["first-layer", "upper-layer"])
@pytest.mark.parametrize("side", PADDING)
@pytest.mark.parametrize("length", LENGTHS)
def test_birnn(length: int, side: str, first: bool) -> None:
    width = 4
    options = RecurrenceOptions(steps=8, attention="additive", heads=2, attention_dropout=0.0)
    module = BiRNN(width if first else 2 * width, width, options).double()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    named = dict(module.gru.named_parameters())
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    weights = [tuple(named[n + suffix] for n in names) for suffix in ("", "_reverse")]
    x, mask, sentences = padded_batch(length, module.input_dim, side)
    fast = module(x, None if side == "none" else mask)
    if side != "none":
        assert torch.equal(fast[mask], torch.zeros_like(fast[mask]))
    slow = []
    for tokens in sentences:
        mean = naive.mean_of_real_tokens(tokens)
        h0 = (mean, mean) if first else (mean[:width], mean[width:])
        slow.append(naive.birnn(tokens, h0, *weights))
    real = torch.cat([states[~m] for states, m in zip(fast, mask)])
    if side == "none":
        real = fast.flatten(0, 1)
    assert_same(real, torch.cat(slow), [x, *module.parameters()])


@pytest.mark.parametrize("gates", [1, 5])
def test_gated_sum(gates: int) -> None:
    d, r = random(7, 2, 5), random(7, 2, 5)
    w_d, w_r, bias = random(gates, 5), random(gates, 5), random(gates)
    slow = [
        torch.stack([naive.gated_sum(d[t, b], r[t, b], w_d, w_r, bias) for b in range(2)])
        for t in range(7)
    ]
    fast = fusion.gated_sum(d, r, w_d, w_r, bias)
    assert_same(fast, torch.stack(slow), [d, r, w_d, w_r, bias])


def test_gate_of_one_gives_d_to_the_last_bit() -> None:
    d, r, w = torch.randn(3, 5), torch.randn(3, 5), torch.zeros(5, 5)
    assert torch.equal(fusion.gated_sum(d, r, w, w, torch.full((5,), float("inf"))), d)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_over_the_source_are_float32(dtype: torch.dtype) -> None:
    """A mean and an attention over 20,000 tokens that half precision cannot sum."""
    x = torch.full((1, 20000, 1), 8.0, dtype=dtype)
    assert padding.masked_mean(x, None).item() == 8.0
    assert padding.masked_mean(x, torch.zeros(1, 20000, dtype=torch.bool)).item() == 8.0
    query, score = torch.zeros(1, 1, 1, dtype=dtype), torch.ones(1, dtype=dtype)
    out = attention.additive_attention(query, torch.zeros_like(x), score, x)
    assert abs(out.item() - 8.0) < 8.0 * torch.finfo(dtype).eps
