"""Random sizes, lengths and masks: every fast op is its reference, in outputs and gradients."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairseq_recur.ops import (
    accumulate_fire,
    attention,
    attentive_recurrence,
    directional,
    fusion,
    gru,
    key_norm,
    masking,
    mixture,
    naive,
    relative,
    rem,
    t5_bias,
    toeplitz,
)
from tests.unit.test_ops import assert_same, random
from tests.unit.test_srformer import by_loops, recomputed, stored

Draw = Callable[[st.SearchStrategy], int]

LENGTH, WIDTH, BATCH = st.integers(1, 9), st.integers(1, 5), st.integers(1, 3)

PROPERTIES: dict[str, Callable[[Draw], None]] = {}


def holds(check: Callable[[Draw], None]) -> Callable[[Draw], None]:
    PROPERTIES[check.__name__] = check
    return check


def check(name: str, examples: int) -> None:
    """Draw so many examples, the same at each run."""

    @settings(
        max_examples=examples, derandomize=True, deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )  # fmt: skip
    @given(st.data())
    def run(data: st.DataObject) -> None:
        torch.manual_seed(data.draw(st.integers(0, 10_000)))
        PROPERTIES[name](data.draw)

    run()


def batch(draw: Draw, width: int) -> tuple[Tensor, Tensor, list[list[Tensor]]]:
    """Sentences of at least one token among padding anywhere: the batch, the mask, the tokens."""
    sentences, length = draw(BATCH), draw(LENGTH)
    x = random(sentences, length, width)
    rows = st.lists(st.booleans(), min_size=length, max_size=length).filter(lambda m: not all(m))
    mask = torch.tensor([draw(rows) for _ in range(sentences)])
    return x, mask, [[x[b, j] for j in range(length) if not mask[b, j]] for b in range(sentences)]


def used(inputs: list[Tensor], output: Tensor) -> list[Tensor]:
    """The inputs that the reference reads: it has no gradient for others."""
    found = torch.autograd.grad(output.sum(), inputs, retain_graph=True, allow_unused=True)
    return [x for x, gradient in zip(inputs, found) if gradient is not None]


def same(fast: Tensor, slow: Tensor, inputs: list[Tensor]) -> None:
    assert_same(fast, slow, used(inputs, slow))


@holds
def masked_mean(draw: Draw) -> None:
    x, mask, sentences = batch(draw, draw(WIDTH))
    slow = torch.stack([naive.mean_of_real_tokens(s) for s in sentences])
    same(padding.masked_mean(x, mask), slow, [x])


@holds
def restore_order(draw: Draw) -> None:
    x, mask, _ = batch(draw, draw(WIDTH))
    order, lengths = padding.real_tokens_first(mask)
    sorted_tokens = x.gather(1, order.unsqueeze(-1).expand_as(x))
    assert torch.equal(padding.restore_order(sorted_tokens, order), x)
    assert lengths.tolist() == (~mask).sum(1).tolist()


@holds
def additive_attention(draw: Draw) -> None:
    values, mask, sentences = batch(draw, draw(WIDTH))
    width = draw(WIDTH)
    query = random(len(sentences), draw(LENGTH), width)
    w_k, score = random(width, values.size(2)), random(width)
    slow = torch.stack([
        torch.stack([naive.additive_attention(q, [w_k.mv(v) for v in s], score, s) for q in query[b]])
        for b, s in enumerate(sentences)
    ])  # fmt: skip
    fast = attention.additive_attention(query, values @ w_k.t(), score, values, mask)
    same(fast, slow, [query, values, w_k, score])


@holds
def dot_product_attention(draw: Draw) -> None:
    keys, mask, sentences = batch(draw, draw(WIDTH))
    query = random(len(sentences), draw(LENGTH), keys.size(2))
    slow = torch.stack([
        torch.stack([naive.dot_product_attention(q, s, s) for q in query[b]])
        for b, s in enumerate(sentences)
    ])  # fmt: skip
    one_head = (query.unsqueeze(1), keys.unsqueeze(1), keys.unsqueeze(1))
    fast = attention.dot_product_attention(*one_head, mask).squeeze(1)
    same(fast, slow, [query, keys])


@holds
def gru_step(draw: Draw) -> None:
    units, sentences, width, inner = draw(BATCH), draw(BATCH), draw(WIDTH), draw(WIDTH)
    x, h = random(units, sentences, inner), random(units, sentences, width)
    weights = random(units, 3 * width, inner), random(units, 3 * width, width), random(units, width)
    slow = torch.stack([
        torch.stack([naive.gru(x[n, b], h[n, b], *(w[n] for w in weights)) for b in range(sentences)])
        for n in range(units)
    ])  # fmt: skip
    same(gru.gru_step(x, h, *weights), slow, [x, h, *weights])


@holds
def biarn(draw: Draw) -> None:
    """Each sentence with its own number of steps; it reads its state, doubled."""
    steps = [draw(LENGTH) for _ in range(draw(BATCH))]
    width, most = draw(WIDTH), max(steps)
    h0, bias = random(2, len(steps), width), random(2, width)
    w_x, w_h = random(2, 3 * width, width), random(2, 3 * width, width)

    def attend(h: Tensor) -> Tensor:
        return 2 * h

    fast = attentive_recurrence.attentive_recurrence(
        attend, h0, w_x, w_h, bias, most, torch.tensor(steps)
    )
    slow = torch.stack([
        torch.nn.functional.pad(
            naive.biarn(attend, (h0[0, b], h0[1, b]), w_x, w_h, bias, n), (0, 0, 0, most - n)
        )
        for b, n in enumerate(steps)
    ])  # fmt: skip
    same(fast, slow, [h0, w_x, w_h, bias])


@holds
def gated_sum(draw: Draw) -> None:
    length, width = draw(LENGTH), draw(WIDTH)
    gates = draw(st.sampled_from([1, width]))
    d, r = random(length, width), random(length, width)
    weights = random(gates, width), random(gates, width), random(gates)
    slow = torch.stack([naive.gated_sum(d[t], r[t], *weights) for t in range(length)])
    same(fusion.gated_sum(d, r, *weights), slow, [d, r, *weights])


@holds
def neuron(draw: Draw) -> None:
    width, surrogate = draw(WIDTH), draw(st.booleans())
    x, memory, leak = random(width, width), random(width, width), random()
    threshold = torch.rand((), dtype=torch.float64).add(0.1).requires_grad_()
    inputs = [x, memory, leak, threshold]
    fast = accumulate_fire.accumulate_fire(*inputs, surrogate)
    for ours, theirs in zip(fast, naive.raf(*inputs, surrogate)):
        same(ours, theirs, inputs)


@holds
def norms_of_keys(draw: Draw) -> None:
    keys = random(draw(LENGTH), draw(WIDTH))
    kind = draw(st.sampled_from(["key", "frobenius"]))
    slow = naive.key_norm(list(keys), kind)
    same(key_norm.key_norm(keys, kind).squeeze(0).expand_as(slow), slow, [keys])


@holds
def recurrence_encoding_matrix(draw: Draw) -> None:
    """Square, with a memory before the queries, or of any other pair of sequences."""
    heads, queries, keys = draw(BATCH), draw(LENGTH), draw(LENGTH)
    offset, most, masked = draw(st.integers(0, 4)), draw(st.integers(0, 3)), draw(st.booleans())
    decay, angle = torch.rand(heads, dtype=torch.float64).requires_grad_(), random(heads)
    sine = torch.tensor([draw(st.booleans()) for _ in range(heads)])
    dilation = torch.tensor([draw(st.integers(1, 3)) for _ in range(heads)])
    kernel = rem.rem_kernel(decay, angle, sine, dilation, offset + queries + keys, most)
    fast = toeplitz.toeplitz_matrix(kernel, None if masked else kernel, queries, keys, offset)
    slow = torch.stack([
        naive.rem(
            decay[h], angle[h], bool(sine[h]), int(dilation[h]),
            list(range(offset, offset + queries)), list(range(keys)), masked, most,
        )
        for h in range(heads)
    ])  # fmt: skip
    if slow.requires_grad and slow.abs().sum() > 0:
        same(fast, slow, [decay, angle])
    else:
        assert torch.equal(fast, slow)


@holds
def recurrent_product(draw: Draw) -> None:
    """In chunks of any size: the recurrences themselves."""
    values = random(1, 3, draw(st.integers(2, 12)), draw(WIDTH))
    decay, angle = torch.rand(3, dtype=torch.float64).requires_grad_(), random(3)
    turns = angle * torch.tensor([0.0, 1.0, 1.0])
    sine = torch.tensor([False, False, True])
    fast = rem.recurrent_product(decay, turns, sine, values, draw(LENGTH))
    slow = torch.stack([
        torch.stack(naive.regular_recurrence(decay[0], list(values[0, 0]))),
        torch.stack(naive.cyclical_recurrence(decay[1], angle[1], list(values[0, 1]))[0]),
        torch.stack(naive.cyclical_recurrence(decay[2], angle[2], list(values[0, 2]))[1]),
    ]).unsqueeze(0)  # fmt: skip
    same(fast, slow, [decay, angle, values])


@holds
def banded_product(draw: Draw) -> None:
    kernel, values = random(2, draw(LENGTH)), random(2, 2, draw(LENGTH), draw(WIDTH))
    fast = toeplitz.banded_product(kernel, values, draw(LENGTH))
    slow = torch.zeros_like(values)
    for n in range(min(kernel.size(1), values.size(2))):
        moved = torch.nn.functional.pad(values, (0, 0, n, 0))[:, :, : values.size(2)]
        slow = slow + kernel[:, n].view(1, -1, 1, 1) * moved
    same(fast, slow, [kernel, values])


def causal(queries: int, keys: int) -> Tensor:
    return torch.full((queries, keys), -1e30, dtype=torch.float64).triu(keys - queries + 1)


@holds
def mixed_attention(draw: Draw) -> None:
    """One map, or two outputs: the same sum."""
    heads, keys, width, masked = draw(BATCH), draw(LENGTH), draw(WIDTH), draw(st.booleans())
    queries = draw(st.integers(1, keys))
    q, k, v = (
        random(1, heads, queries, width),
        random(1, heads, keys, width),
        random(1, heads, keys, width),
    )
    matrix, gate = random(heads, queries, keys), torch.rand(heads, 1, 1).double().requires_grad_()
    mask = causal(queries, keys) if masked else None
    slow = torch.stack([
        naive.rsa_head(list(q[0, h]), list(k[0, h]), list(v[0, h]), matrix[h], gate[h, 0, 0], masked)
        for h in range(heads)
    ]).unsqueeze(0)  # fmt: skip
    inputs = [q, k, v, matrix, gate]
    same(mixture.mixed_map(q, k, v, matrix, gate, mask)[0], slow, inputs)
    same(mixture.mixed_outputs(q, k, v, matrix @ v, gate, mask), slow, inputs)


@holds
def relative_attention(draw: Draw) -> None:
    heads, keys, width, masked = draw(BATCH), draw(LENGTH), draw(WIDTH), draw(st.booleans())
    queries, rows = draw(st.integers(1, keys)), 2 * draw(st.integers(1, 4)) + 1
    q, k, v = (
        random(1, heads, queries, width),
        random(1, heads, keys, width),
        random(1, heads, keys, width),
    )
    of_keys, of_values = random(heads, rows, width), random(heads, rows, width)
    mask = causal(queries, keys) if masked else None
    slow = torch.stack([
        naive.relative_head(list(q[0, h]), list(k[0, h]), list(v[0, h]), of_keys[h], of_values[h], masked)
        for h in range(heads)
    ]).unsqueeze(0)  # fmt: skip
    fast, _ = relative.relative_attention(q, k, v, of_keys, of_values, mask)
    same(fast, slow, [q, k, v, of_keys, of_values])


@holds
def directional_attention(draw: Draw) -> None:
    half, length, width = draw(BATCH), draw(LENGTH), draw(WIDTH)
    q, k, v = (random(1, 2 * half, length, width) for _ in range(3))
    slow = torch.stack([
        naive.directional_head(list(q[0, h]), list(k[0, h]), list(v[0, h]), ahead=h >= half)
        for h in range(2 * half)
    ]).unsqueeze(0)  # fmt: skip
    same(directional.directional_attention(q, k, v), slow, [q, k, v])


@holds
def relative_buckets(draw: Draw) -> None:
    buckets, two_sided = draw(st.integers(2, 40)), draw(st.booleans())
    furthest = draw(st.integers(buckets // 2 + 1, 300))
    starts = torch.tensor(t5_bias.bucket_starts(buckets, furthest))
    lags = torch.arange(-2 * furthest, 2 * furthest)
    found = t5_bias.relative_buckets(lags, starts, two_sided)
    every = 2 * buckets if two_sided else buckets
    expected = [naive.relative_bucket(int(lag), every, furthest, two_sided) for lag in lags]
    assert found.tolist() == expected


@holds
def segmented_recurrent_attention(draw: Draw) -> None:
    """Both forms against Algorithm 1 as loops, with every norm and both kinds of segments."""
    heads, width, keys, queries = draw(BATCH), draw(WIDTH), draw(LENGTH), draw(LENGTH)
    size, target = draw(st.integers(1, 5)), draw(st.integers(1, 12))
    options = {"norm": draw(st.sampled_from(key_norm.NORMS)), "current": draw(st.booleans())}
    inputs = [
        random(1, heads, queries, width), random(1, heads, keys, width), random(1, heads, keys, width),
        random(width, width), torch.rand((), dtype=torch.float64).requires_grad_(),
        torch.rand((), dtype=torch.float64).add(0.1).requires_grad_(),
    ]  # fmt: skip
    slow = by_loops(inputs, size, target, **options)
    forms = [stored(inputs, size, target, **options)]
    if target >= -(-keys // size):
        forms.append(recomputed(inputs, size, target, **options))
    for form in forms:
        for ours, theirs in zip(form, slow):
            if theirs.requires_grad:
                same(ours.expand_as(theirs), theirs, inputs)


@pytest.mark.parametrize("name", PROPERTIES)
def test_equal(name: str) -> None:
    check(name, examples=12)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROPERTIES)
def test_equal_in_many_cases(name: str) -> None:
    check(name, examples=600)
