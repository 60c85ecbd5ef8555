"""Every fast function equals its loops in `ops.naive`: outputs and all gradients, in float64.

A reference compares one function with its loops, for random sizes and masks drawn from a generator.
It runs at the lengths of the design and, drawn by hypothesis, at short ones.
"""

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from itertools import product
from random import Random
from types import CodeType, FrameType, FunctionType
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fairseq_recur.modules.biarn import BiARN
from fairseq_recur.modules.birnn import BiRNN
from fairseq_recur.modules.context import Padding
from fairseq_recur.ops import (
    accumulate_fire,
    attention,
    block_recurrent,
    label_smoothing,
    mixture,
    naive,
    padding,
    recurrence_encoder,
    rem,
    segmented_attention,
    shaw,
    sparse_attention,
    t5_buckets,
    toeplitz,
    transformer_xl,
)
from tests.conftest import fast_or_slow
from tests.unit.test_ops_gradients import public_ops
from tests.unit.test_srformer import (
    by_loops,
    heads,
    parameters,
    recomputed,
    stored,
    unit_recurrent,
)

LENGTHS = [1, 2, 17, 63, 64, 65]
PADDING = ["none", "left", "right"]

Reference = Callable[[Random, int], None]
REFERENCES: dict[str, Reference] = {}


def reference(function: Reference) -> Reference:
    REFERENCES[function.__name__] = function
    return function


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def assert_same(
    fast: Tensor, slow: Tensor, inputs: Sequence[Tensor], every_input: bool = True
) -> None:
    """Equal values, and equal gradients of a random weighting of them for every input.

    Without *every_input*, both sides may ignore an input, as short sequences do: no gradient is 0.
    """
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)
    weight = torch.randn_like(slow)
    pairs = [
        torch.autograd.grad((out * weight).sum(), inputs, retain_graph=True, allow_unused=True)
        if out.requires_grad
        else [None] * len(inputs)
        for out in (fast, slow)
    ]
    for x, of_fast, of_slow in zip(inputs, *pairs):
        assert not every_input or of_fast is not None and of_slow is not None
        of_fast, of_slow = (torch.zeros_like(x) if g is None else g for g in (of_fast, of_slow))
        torch.testing.assert_close(of_fast, of_slow, rtol=1e-9, atol=1e-11)


def batch(r: Random, length: int, width: int) -> tuple[Tensor, Tensor, list[list[Tensor]]]:
    """Four sentences: full, padded left, padded right, padding anywhere; mask and real tokens."""
    left, right = r.randint(1, length), r.randint(1, length)
    anywhere = [r.random() < 0.5 for _ in range(length)]
    anywhere[r.randrange(length)] = False
    position = range(length)
    rows = [[False] * length, [j < length - left for j in position], [j >= right for j in position]]
    mask = torch.tensor([*rows, anywhere])
    x = random(4, length, width)
    return x, mask, [[x[b, j] for j in position if not mask[b, j]] for b in range(4)]


@reference
def masked_mean(r: Random, length: int) -> None:
    x, mask, sentences = batch(r, length, r.randint(1, 5))
    slow = torch.stack([naive.mean_of_real_tokens(s) for s in sentences])
    assert_same(padding.masked_mean(x, mask), slow, [x])
    torch.testing.assert_close(padding.masked_mean(x[:1], None), slow[:1])


@reference
def order_of_real_tokens(r: Random, length: int) -> None:
    x, mask, sentences = batch(r, length, r.randint(1, 5))
    order, lengths = padding.real_tokens_first(mask)
    moved = x.gather(1, order.unsqueeze(-1).expand_as(x))
    for b, sentence in enumerate(sentences):
        assert lengths[b] == len(sentence)
        assert torch.equal(moved[b, : lengths[b]], torch.stack(sentence))
        assert sorted(order[b].tolist()) == list(range(length))
    assert torch.equal(padding.restore_order(moved, order.unsqueeze(2), 1), x)


@reference
def additive_attention(r: Random, length: int) -> None:
    values, mask, sentences = batch(r, length, r.randint(1, 5))
    width = r.randint(1, 5)
    query, w_k, score = random(4, 2, width), random(width, values.size(2)), random(width)
    arguments = query, values @ w_k.t(), score, values
    slow = torch.stack([
        torch.stack([naive.additive_attention(q, [w_k.mv(v) for v in s], score, s) for q in of_b])
        for of_b, s in zip(query, sentences)
    ])  # fmt: skip
    fast = recurrence_encoder.additive_attention(*arguments, mask)
    assert_same(fast, slow, [query, values, w_k, score], length > 2)
    unmasked = recurrence_encoder.additive_attention(
        *(x[:1] for x in arguments[:2]), score, values[:1]
    )
    torch.testing.assert_close(unmasked, slow[:1])


@reference
def coverage_attention(r: Random, length: int) -> None:
    """Two steps, the second of which reads what the first has read."""
    values, mask, sentences = batch(r, length, r.randint(1, 5))
    width = r.randint(1, 5)
    queries, w_k = random(2, 4, 1, width), random(width, values.size(2))
    score, w_seen = random(width), random(width)
    slow = []
    for b, s in enumerate(sentences):
        chain = naive.CoverageAttention([w_k.mv(v) for v in s], score, s, w_seen)
        slow.append(torch.stack([chain(query[b, 0]) for query in queries]))
    read = values @ w_k.t(), score, values
    seen = torch.zeros(4, 1, length, dtype=torch.float64)
    first, seen = recurrence_encoder.coverage_attention(queries[0], *read, seen, w_seen, mask)
    second, _ = recurrence_encoder.coverage_attention(queries[1], *read, seen, w_seen, mask)
    fast = torch.cat([first, second], dim=1)
    # Over one token the weight is 1, whatever the score.
    assert_same(fast, torch.stack(slow), [queries, values, w_k, score, w_seen], length > 2)


@reference
def rotary(r: Random, length: int) -> None:
    half = r.randint(1, 3)
    x = random(2, 2, length, 2 * half + r.randint(0, 2))
    slow = [naive.rotary(list(head), 2 * half) for row in x for head in row]
    assert_same(block_recurrent.rotary(x, 2 * half), torch.stack(slow).view_as(x), [x])


@reference
def state_gate(_: Random, length: int) -> None:
    inputs = [random(2, length, 3) for _ in range(4)]
    slow = [
        torch.stack([naive.state_gate(*vectors) for vectors in zip(*rows)]) for rows in zip(*inputs)
    ]
    assert_same(block_recurrent.state_gate(*inputs), torch.stack(slow), inputs)


@reference
def label_smoothed_loss(r: Random, length: int) -> None:
    """In blocks of all sizes: of one row, of some, of all."""
    words, epsilon = r.randint(2, 7), r.choice([0.0, 0.1, 0.9])
    logits, target = random(length, words), torch.randint(1, words, (length,))
    target[torch.rand(length) < 0.3] = 0  # the padding
    real = [t for t in range(length) if target[t] != 0]
    tokens = target[real].tolist()
    slow = naive.label_smoothed_loss([logits[t] for t in real], tokens, epsilon) if real else None
    with patch.dict(label_smoothing.BLOCK, cpu=words * r.randint(1, length + 1)):
        loss, likelihood = label_smoothing.label_smoothed_loss(logits, target, epsilon, 0)
    assert_same(loss, (0 * logits).sum() if slow is None else slow, [logits])
    expected = F.cross_entropy(logits, target, ignore_index=0, reduction="sum")
    torch.testing.assert_close(likelihood, expected.detach())
    assert not likelihood.requires_grad


@reference
def dot_product_attention(r: Random, length: int) -> None:
    """Two heads and two queries, over the keys that the padding mask leaves."""
    values, mask, sentences = batch(r, length, 4)
    query, w_k = random(4, 2, 2, 6), random(2, 6, 4)
    keys = torch.einsum("bsc,hdc->bhsd", values, w_k)
    per_head = values.unsqueeze(1).expand(4, 2, length, 4)
    slow = torch.stack([
        naive.dot_product_attention(query[b, h, n], [w_k[h].mv(v) for v in s], s)
        for b, s in enumerate(sentences) for h in range(2) for n in range(2)
    ]).view(4, 2, 2, 4)  # fmt: skip
    visible = padding.visible_keys(mask)
    fast = attention.dot_product_attention(query, keys, per_head, visible)
    assert_same(fast, slow, [query, values, w_k], length > 2)
    unmasked = attention.dot_product_attention(query[:1], keys[:1], per_head[:1])
    torch.testing.assert_close(unmasked, slow[:1])


def gru_weights(units: int, inner: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    return random(units, 3 * width, inner), random(units, 3 * width, width), random(units, width)


def lstm_weights(units: int, inner: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    rows = 4 * width
    return random(units, rows, inner), random(units, rows, width), random(units, rows)


@reference
def gru_step(r: Random, sentences: int) -> None:
    units, width, inner = r.randint(1, 3), r.randint(1, 5), r.randint(1, 5)
    x, h = random(units, sentences, inner), random(units, sentences, width)
    weights = gru_weights(units, inner, width)
    slow = torch.stack([
        torch.stack([naive.gru(x[n, b], h[n, b], *of_n) for b in range(sentences)])
        for n, of_n in enumerate(zip(*weights))
    ])  # fmt: skip
    assert_same(recurrence_encoder.gru_step(x, h, *weights), slow, [x, h, *weights])


CELLS = {"gru": gru_weights, "lstm": lstm_weights}


@reference
def lstm_step(r: Random, sentences: int) -> None:
    units, width, inner = r.randint(1, 3), r.randint(1, 5), r.randint(1, 5)
    x, (h, m) = random(units, sentences, inner), random(2, units, sentences, width)
    weights = lstm_weights(units, inner, width)
    slow = torch.stack([
        torch.stack([
            torch.stack(naive.lstm(x[n, b], h[n, b], m[n, b], *of_n)) for b in range(sentences)
        ])
        for n, of_n in enumerate(zip(*weights))
    ])  # fmt: skip
    fast = torch.stack(recurrence_encoder.lstm_step(x, h, m, *weights), dim=2)
    assert_same(fast, slow, [x, h, m, *weights])


@reference
def attentive_recurrence(r: Random, most: int) -> None:
    """Each sentence with its own number of steps; all with the same; they read their state."""
    steps, width, cell = [most, r.randint(1, most), 1], r.randint(1, 5), r.choice([*CELLS])
    h0, weights = random(2, 3, width), CELLS[cell](2, width, width)

    def attend(h: Tensor) -> Tensor:
        return 2 * h

    slow = torch.stack([
        F.pad(naive.biarn((attend, attend), (h0[0, b], h0[1, b]), *weights, n), (0, 0, 0, most - n))
        for b, n in enumerate(steps)
    ])  # fmt: skip
    fast = recurrence_encoder.attentive_recurrence(
        attend, h0, *weights, most, torch.tensor(steps), cell
    )
    assert_same(fast, slow, [h0, *weights])
    alike = recurrence_encoder.attentive_recurrence(attend, h0[:, :1], *weights, most, cell=cell)
    torch.testing.assert_close(alike, slow[:1])


@reference
def gated_sum(r: Random, length: int) -> None:
    width = r.randint(1, 5)
    gates = r.choice([1, width])
    d, other = random(length, width), random(length, width)
    weights = random(gates, width), random(gates, width), random(gates)
    slow = torch.stack([naive.gated_sum(d[t], other[t], *weights) for t in range(length)])
    assert_same(recurrence_encoder.gated_sum(d, other, *weights), slow, [d, other, *weights])


@reference
def accumulate_fire_step(r: Random, length: int) -> None:
    width, surrogate = min(length, 9), r.random() < 0.5
    threshold = torch.rand((), dtype=torch.float64).add(0.1).requires_grad_()
    inputs = [random(width, width), random(width, width), random(), threshold]
    fast = accumulate_fire.accumulate_fire(*inputs, surrogate)
    for ours, theirs in zip(fast, naive.raf(*inputs, surrogate)):
        assert_same(ours, theirs, inputs, False)


@reference
def key_norm(r: Random, length: int) -> None:
    keys = random(length, r.randint(1, 5))
    for kind in ("key", "frobenius", "sum"):
        slow = naive.key_norm(list(keys), kind)
        fast = segmented_attention.key_norm(keys, kind).squeeze(0).expand_as(slow)
        assert_same(fast, slow, [keys])


# ---- recurrence encoding matrices and their products


def heads_of_rem(r: Random, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Decay, of both signs, angle, sine and dilation of so many heads."""
    decay = (1.9 * torch.rand(count, dtype=torch.float64) - 0.95).requires_grad_()
    sine = torch.tensor([r.random() < 0.5 for _ in range(count)])
    return decay, random(count), sine, torch.tensor([r.randint(1, 3) for _ in range(count)])


def naive_rems(heads: Sequence[Tensor], queries: range, keys: range, *rest: object) -> Tensor:
    return torch.stack([
        naive.rem(decay, angle, bool(sine), int(dilation), list(queries), list(keys), *rest)
        for decay, angle, sine, dilation in zip(*heads)
    ])  # fmt: skip


@reference
def recurrence_encoding_matrix(r: Random, queries: int) -> None:
    """Square, with a memory before the queries, a step of decoding, or any other two sequences.

    Zero on the diagonal, off the dilation's grid and beyond the highest power.
    """
    keys, offset = r.choice([
        (queries, 0), (queries + 4, 4), (1, r.randint(0, 4)), (r.randint(1, 9), r.randint(0, 4)),
    ])  # fmt: skip
    heads, most = heads_of_rem(r, r.randint(1, 3) if queries < 17 else 2), r.choice([0, 1, 2, 3])
    for masked in (True, False):
        kernel = rem.rem_kernel(*heads, offset + queries + keys, most)
        fast = toeplitz.toeplitz_matrix(kernel, None if masked else kernel, queries, keys, offset)
        slow = naive_rems(heads, range(offset, offset + queries), range(keys), masked, most)
        assert_same(fast, slow, heads[:2], False)


@reference
def recurrent_product(r: Random, length: int) -> None:
    """Dense, and in chunks of any size: the recurrences themselves, for each kind of head."""
    values = random(2, 3, length, r.randint(1, 5))
    decay = torch.tensor([r.choice([0.9, -0.8]), 0.95, 0.7]).double().requires_grad_()
    angle, sine = random(3), torch.tensor([False, False, True])
    turns = angle * torch.tensor([0.0, 1.0, 1.0])  # the angle of a regular head is no parameter
    kernel = rem.rem_kernel(decay, turns, sine, torch.ones(3, dtype=torch.int64), length)
    slow = torch.stack([torch.stack([
        torch.stack(naive.regular_recurrence(decay[0], list(v[0]))),
        torch.stack(naive.cyclical_recurrence(decay[1], angle[1], list(v[1]))[0]),
        torch.stack(naive.cyclical_recurrence(decay[2], angle[2], list(v[2]))[1]),
    ]) for v in values])  # fmt: skip
    dense = toeplitz.shared_product(toeplitz.toeplitz_matrix(kernel, None, length, length), values)
    chunked = rem.recurrent_product(decay, turns, sine, values, r.choice([1, 4, 16, 64]))
    for fast in (dense, chunked):
        assert_same(fast, slow, [decay, angle, values], length > 2)


@reference
def banded_product(r: Random, length: int) -> None:
    """With fewer and with more lags than positions, in blocks of any size, one way and both."""
    kernel, values = random(2, r.choice([1, 2, 6, 41])), random(2, 2, length, r.randint(1, 5))
    slow = torch.zeros_like(values)
    for n in range(min(kernel.size(1), length)):
        moved = F.pad(values, (0, 0, n, 0))[:, :, :length]
        slow = slow + kernel[:, n].view(1, -1, 1, 1) * moved
    fast = toeplitz.banded_product(kernel, values, r.choice([1, 4, 64]))
    assert_same(fast, slow, [kernel, values])
    future = random(2, r.choice([1, 2, 6, 41]))
    for n in range(1, min(future.size(1), length)):
        moved = F.pad(values, (0, 0, 0, n))[:, :, n:]
        slow = slow + future[:, n].view(1, -1, 1, 1) * moved
    fast = toeplitz.banded_product(kernel, values, r.choice([1, 4, 64]), future)
    assert_same(fast, slow, [kernel, future, values], False)


# ---- attention maps: causal or not, square or with memory, with padding on either side


def against_heads(
    r: Random,
    length: int,
    fast: Callable[[Tensor, Tensor, Tensor, Tensor | None, bool], list[Tensor]],
    slow: Callable[[int, tuple[list[Tensor], ...], bool, slice, slice], Tensor],
    parameters: Sequence[Tensor],
    one_way: bool = False,
) -> None:
    """Compare *fast*(q, k, v, mask, causal) with *slow*(head, real q, k, v, causal, rows, columns).

    *rows* and *columns* are the positions of the real queries and keys.
    The last query is at the last key. Padding hides keys at the left, or at the right of a square.
    """
    kinds = [(False, False)] if one_way else list(product([True, False], repeat=2))
    for causal, memory in kinds if length >= 17 else [r.choice(kinds)]:
        queries = r.randint(1, length) if memory else length
        q, k, v = (random(1, 2, n, 3) for n in (queries, length, length))
        pad = r.choice([0, r.randint(0, length - 1)])
        left = memory or r.random() < 0.5
        columns = slice(pad, length) if left else slice(0, length - pad)
        first = max(0, pad - (length - queries)) if left else 0
        rows = slice(first, queries if left else queries - pad)
        hidden = torch.ones(queries, length, dtype=torch.bool)
        hidden[:, columns] = False
        if causal:
            hidden |= torch.ones(queries, length, dtype=torch.bool).triu(length - queries + 1)
        mask = torch.zeros(hidden.shape).double().masked_fill(hidden, -1e300)
        visible = torch.zeros_like(v).index_fill(2, torch.arange(length)[columns], 1.0) * v
        positions = slice(rows.start + length - queries, rows.stop + length - queries)
        loops = []
        for h in range(2):
            real = list(q[0, h, rows]), list(k[0, h, columns]), list(v[0, h, columns])
            loops.append(slow(h, real, causal, positions, columns))
        for out in fast(q, k, visible, mask if hidden.any() else None, causal):
            assert_same(out[0, :, rows], torch.stack(loops), [q, k, v, *parameters], False)


@reference
def mixed_attention(r: Random, length: int) -> None:
    """One map, or two outputs: the same sum; the second head has no matrix."""
    matrix, mu = random(1, length, length), random()

    def gate() -> Tensor:
        return torch.stack([torch.sigmoid(mu), mu.new_zeros(())]).view(2, 1, 1)

    def fast(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> list[Tensor]:
        p = matrix[:, length - q.size(2) :]
        weights = attention.attention_map(q, k, mask)
        one, mixed = mixture.mixed_map(weights, v, F.pad(p, (0, 0, 0, 0, 0, 1)), gate())
        torch.testing.assert_close(mixed @ v, one)
        local = attention.dot_product_attention(q, k, v, mask)
        return [one, mixture.mixed_outputs(local, p @ v[:, :1], gate())]

    def slow(h: int, vectors: tuple, causal: bool, rows: slice, columns: slice) -> Tensor:
        p = matrix[0][rows, columns] * (h == 0)
        return naive.rsa_head(*vectors, p, gate()[h, 0, 0], causal)

    against_heads(r, length, fast, slow, [matrix, mu])


@reference
def relative_attention(r: Random, length: int) -> None:
    tables = [random(2, 2 * r.choice([1, 2, 4, 16]) + 1, 3)]
    tables.append(random(*tables[0].shape))

    def fast(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> list[Tensor]:
        row = shaw.table_rows(q.size(2), k.size(2), tables[0].size(1), q.device)
        out, weights = shaw.relative_attention(q, k, v, *tables, row, mask)
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
        return [out]

    def slow(h: int, vectors: tuple, causal: bool, rows: slice, columns: slice) -> Tensor:
        return naive.relative_head(*vectors, tables[0][h], tables[1][h], causal)

    against_heads(r, length, fast, slow, tables)


@reference
def log_sparse_mask(r: Random, length: int) -> None:
    def fast(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> list[Tensor]:
        additive = sparse_attention.log_sparse_mask(q.size(2), k.size(2), mask, q)
        return [
            attention.dot_product_attention(q, k, v, additive),
            attention.read_values(attention.attention_map(q, k, additive), v),
        ]

    def slow(h: int, vectors: tuple, causal: bool, rows: slice, columns: slice) -> Tensor:
        return naive.log_sparse_head(*vectors, causal)

    against_heads(r, length, fast, slow, [])


@reference
def prob_sparse_attention(r: Random, length: int) -> None:
    """Given the sampled keys, of which a sentence has the same ones in a batch and alone."""
    factor, seed, causal = r.randint(1, 3), r.randint(0, 99), r.random() < 0.5
    mixing = r.random() < 0.5
    q, k, v = (random(4, 2, length, 3) for _ in range(3))
    kernel, mu = random(2, length), random(2)
    square = toeplitz.toeplitz_matrix(kernel, None if causal else kernel, length, length)
    _, away, _ = batch(r, length, 1)
    order, counts = padding.real_tokens_first(away)
    hidden = away[:, None, None, :].expand(-1, -1, length, -1)
    if causal:
        hidden = hidden | torch.ones(length, length, dtype=torch.bool).triu(1)
    mask = torch.zeros(hidden.shape).double().masked_fill(hidden, -1e300)
    drawn = sparse_attention.sampled_keys(seed, counts, length, order, factor)
    visible = v.masked_fill(away[:, None, :, None], 0.0)
    chosen = sparse_attention.attending_rows(q, k, *drawn, counts, away)
    mixture: list[Tensor] = []
    if mixing:
        mixture = [sparse_attention.matrix_rows(square, chosen[0]), mu.sigmoid().view(-1, 1, 1)]
    out, weights = sparse_attention.prob_sparse_attention(
        q, k, visible, *chosen, counts, away, mask, causal, 0.0, None, True, *mixture
    )
    assert weights is not None
    torch.testing.assert_close(weights @ visible, out)
    loops, fast = [], []
    for b in range(4):
        n = int(counts[b])
        alone, u = sparse_attention.sampled_keys(seed, counts[b : b + 1], n, None, factor)
        rank = torch.zeros(length, dtype=torch.int64).scatter(0, order[b], torch.arange(length))
        assert torch.equal(rank[drawn[0][b, order[b, :n], : int(u)]], alone[0])
        for h in range(2):
            real = (list(x[b, h, order[b, :n]]) for x in (q, k, v))
            at = order[b, :n]
            same = (square[h][at][:, at], mu[h].sigmoid()) if mixing else ()
            loops.append(naive.prob_sparse_head(*real, alone[0].tolist(), causal, *same))
            fast.append(out[b, h, order[b, :n]])
    learned = [q, k, v, kernel, mu] if mixing else [q, k, v]
    assert_same(torch.cat(fast), torch.cat(loops), learned, False)


@reference
def xl_map(r: Random, length: int) -> None:
    """Keys of positions for the lags of both directions, and for a causal map of earlier keys."""
    projection, u, v = random(2, 3, r.randint(1, 7)), random(2, 3), random(2, 3)

    def fast(q: Tensor, k: Tensor, x: Tensor, mask: Tensor | None, causal: bool) -> list[Tensor]:
        outputs = []
        for last in (-q.size(2), -1) if causal else (-q.size(2),):
            lags = torch.arange(length - 1, last, -1).double()
            encoding = transformer_xl.sinusoids(lags, projection.size(2))
            keys = encoding @ projection.transpose(1, 2)
            weights = transformer_xl.xl_map(q, k, keys, u, v, mask)
            torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
            outputs.append(attention.read_values(weights, x))
        return outputs

    def slow(h: int, vectors: tuple, causal: bool, rows: slice, columns: slice) -> Tensor:
        return naive.xl_head(*vectors, projection[h], u[h], v[h], causal)

    against_heads(r, length, fast, slow, [projection, u, v])


@reference
def directional_attention(r: Random, length: int) -> None:
    def fast(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> list[Tensor]:
        masks = attention.directional_masks(q, mask)
        weights = attention.directional_map(q, k, masks)
        return [
            attention.directional_attention(q, k, v, masks),
            attention.read_values(weights, v),
        ]

    def slow(h: int, vectors: tuple, causal: bool, rows: slice, columns: slice) -> Tensor:
        return naive.directional_head(*vectors, backward=h == 1)

    against_heads(r, length, fast, slow, [], one_way=True)


@reference
def relative_buckets(r: Random, length: int) -> None:
    buckets, two_sided = min(length + 1, 40), r.random() < 0.5
    furthest = r.randint(buckets // 2 + 1, 300)
    starts = torch.tensor(t5_buckets.bucket_starts(buckets, furthest))
    lags = torch.arange(-2 * furthest, 2 * furthest)
    found = t5_buckets.relative_buckets(lags, starts, two_sided)
    every = 2 * buckets if two_sided else buckets
    expected = [naive.relative_bucket(int(lag), every, furthest, two_sided) for lag in lags]
    assert found.tolist() == expected


@reference
def segmented_recurrent_attention(r: Random, keys: int) -> None:
    """Both forms against Algorithm 1, with every norm and both kinds of segments."""
    heads, width = (1, 2) if keys >= 17 else (r.randint(1, 3), r.randint(1, 5))
    queries, size, target = r.randint(1, 9), r.randint(1, 5), r.randint(1, 12)
    options = {"norm": r.choice(segmented_attention.NORMS), "current": r.random() < 0.5}
    inputs = [
        *(random(1, heads, n, width) for n in (queries, keys, keys)),
        random(width, width), torch.rand((), dtype=torch.float64).requires_grad_(),
        torch.rand((), dtype=torch.float64).add(0.1).requires_grad_(),
    ]  # fmt: skip
    slow = by_loops(inputs, size, target, **options)
    forms = [stored(inputs, size, target, **options)]
    if target >= -(-keys // size):
        forms.append(recomputed(inputs, size, target, **options))
    for form in forms:
        for ours, theirs in zip(form, slow):
            assert_same(ours.expand_as(theirs), theirs, inputs, False)


@reference
def unit_scale_attention(r: Random, length: int) -> None:
    """The recurrent term of SRformer at the unit scale, in each form; no segment is skipped."""
    size = r.choice([3, 8])
    inputs = [*heads(length, 5, 1, 3), *parameters(3)]
    target = -(-length // size)
    _, slow = by_loops(inputs, size, target, unit=True)
    for form in ("stored", "recomputed"):
        assert_same(unit_recurrent(inputs, size, target, form), slow, inputs, False)


# ---- the references, run


CHUNKED = {
    "recurrence_encoding_matrix", "recurrent_product", "banded_product", "mixed_attention",
    "segmented_recurrent_attention", "masked_mean",
}  # fmt: skip
"""What computes in chunks of 64: the others need one of the lengths about it in the fast run."""


def lengths_of(chunked: bool) -> list[Any]:
    """Parameters of a test over `LENGTHS`."""
    return [fast_or_slow(n, str(n), chunked or n not in (63, 64)) for n in LENGTHS]


EQUAL = [
    pytest.param(name, *length.values, id=f"{name}-{length.id}", marks=length.marks)
    for name in REFERENCES
    for length in lengths_of(name in CHUNKED)
]


@pytest.mark.parametrize("name, length", EQUAL)
def test_equal(name: str, length: int) -> None:
    REFERENCES[name](Random(length), length)


def in_random_cases(name: str, examples: int) -> None:
    @settings(
        max_examples=examples, derandomize=True, deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )  # fmt: skip
    @given(st.randoms(use_true_random=False), st.integers(1, 9), st.integers(0, 10_000))
    def run(r: Random, length: int, seed: int) -> None:
        torch.manual_seed(seed)
        REFERENCES[name](r, length)

    run()


@pytest.mark.parametrize("name", REFERENCES)
def test_equal_in_random_cases(name: str) -> None:
    in_random_cases(name, examples=12)


@pytest.mark.slow
@pytest.mark.parametrize("name", REFERENCES)
def test_equal_in_many_cases(name: str) -> None:
    in_random_cases(name, examples=600)


# ---- what no loops say


def test_naive_gru_is_torch_gru() -> None:
    """The reference itself against torch: the same cell where only the candidate has a bias."""
    x, h, w_x, w_h, bias = random(3), random(4), random(12, 3), random(12, 4), random(4)
    cell = nn.GRUCell(3, 4, dtype=torch.float64)
    with torch.no_grad():
        cell.weight_ih.copy_(w_x), cell.weight_hh.copy_(w_h)
        cell.bias_ih.zero_(), cell.bias_hh.zero_()
        cell.bias_ih[8:].copy_(bias)
    torch.testing.assert_close(naive.gru(x, h, w_x, w_h, bias), cell(x, h))


def test_naive_lstm_is_torch_lstm() -> None:
    x, h, m, w_x, w_h, bias = (random(*n) for n in ((3,), (4,), (4,), (16, 3), (16, 4), (16,)))
    cell = nn.LSTMCell(3, 4, dtype=torch.float64)
    with torch.no_grad():
        cell.weight_ih.copy_(w_x), cell.weight_hh.copy_(w_h)
        cell.bias_ih.copy_(bias), cell.bias_hh.zero_()
    torch.testing.assert_close(naive.lstm(x, h, m, w_x, w_h, bias), cell(x, (h, m)))


def test_gate_of_one_gives_d_to_the_last_bit() -> None:
    d, r, w = torch.randn(3, 5), torch.randn(3, 5), torch.zeros(5, 5)
    assert torch.equal(recurrence_encoder.gated_sum(d, r, w, w, torch.full((5,), float("inf"))), d)


@pytest.mark.parametrize("each", [False, True], ids=["shared", "per sentence"])
def test_dropout_of_a_mixed_map(each: bool) -> None:
    """With what was dropped known: outputs, the map, and the gradients of both."""
    weights, value, mu = random(3, 2, 9, 11), random(3, 2, 11, 4), random(1, 1, 1)
    matrix = random(*([3] if each else []), 2, 9, 11)
    inputs = [weights, value, matrix, mu]
    gate = F.pad(torch.sigmoid(mu), (0, 0, 0, 0, 0, 1))  # the second head has no matrix
    out, mixed = mixture.mixed_map(weights, value, matrix, gate, dropout=0.4)
    kept = ((mixed - gate * matrix) / weights).abs() > 1e-9
    assert 0.5 < kept.double().mean() < 0.7
    plain = (1 - gate) * weights * kept / 0.6 + gate * matrix
    assert_same(out, plain @ value, inputs)
    out, mixed = mixture.mixed_map(weights, value, matrix, gate, dropout=1.0)
    assert_same(out, gate * matrix @ value, [value, matrix, mu])
    torch.manual_seed(1)
    found = mixture.mixed_map(weights, value, matrix, gate, dropout=0.4)[1]
    torch.manual_seed(1)
    again = mixture.mixed_map(weights, value, matrix, gate, dropout=0.4)[1]
    assert_same(found, again, [weights, matrix, mu])


def test_autocast_does_not_change_the_gradients_of_a_mixed_map() -> None:
    weights, matrix, mu = (random(*s).float() for s in ((3, 2, 9, 11), (2, 9, 11), (2, 1, 1)))
    inputs = [x.detach().requires_grad_() for x in (weights, matrix, torch.sigmoid(mu))]
    mixed = mixture.MixedMap.apply(*inputs, 0.0)
    usual = torch.autograd.grad(mixed.square().sum(), inputs, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        within = torch.autograd.grad(mixed.square().sum(), inputs)
    for one, other in zip(within, usual):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_open_gate_of_a_mixed_map(dropout: float) -> None:
    """With g = 1 the matrix is alone, and no gradient is infinite."""
    weights, value, matrix = random(3, 2, 9, 11), random(3, 2, 11, 4), random(2, 9, 11)
    mu = torch.full((1, 1, 1), torch.inf, dtype=torch.float64, requires_grad=True)
    gate = torch.sigmoid(mu).expand(2, 1, 1)
    out, _ = mixture.mixed_map(weights, value, matrix, gate, dropout)
    assert_same(out, matrix @ value, [value, matrix])
    of_weights, of_mu = torch.autograd.grad(out.sum(), [weights, mu])
    assert not of_weights.any() and not of_mu.any()


def test_xl_map_needs_a_key_for_each_lag() -> None:
    q, k, u = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4), torch.zeros(2, 4)
    with pytest.raises(ValueError, match="6 lags; expected 5 for causal attention or 7"):
        transformer_xl.xl_map(q, k, torch.randn(2, 6, 4), u, u)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_over_the_source_are_float32(dtype: torch.dtype) -> None:
    """A mean and an attention over 20,000 tokens that half precision cannot sum."""
    x = torch.full((1, 20000, 1), 8.0, dtype=dtype)
    assert padding.masked_mean(x, None).item() == 8.0
    assert padding.masked_mean(x, torch.zeros(1, 20000, dtype=torch.bool)).item() == 8.0
    query, score = torch.zeros(1, 1, 1, dtype=dtype), torch.ones(1, dtype=dtype)
    out = recurrence_encoder.additive_attention(query, torch.zeros_like(x), score, x)
    assert abs(out.item() - 8.0) < 8.0 * torch.finfo(dtype).eps


# ---- the modules of the recurrence encoder


def options(attention: str = "additive", steps: int = 8, cell: str = "gru") -> Namespace:
    """The options that a recurrent network reads; the attention may be "coverage"."""
    coverage = attention == "coverage"
    return Namespace(
        recurrence_steps=steps, recurrence_cell=cell, recurrence_coverage=coverage,
        recurrence_attention="additive" if coverage else attention,
        attention_dropout=0.0, encoder=Namespace(attention_heads=2),
    )  # fmt: skip


def reference_attend(module: BiARN, tokens: list[Tensor]) -> Callable[[Tensor], Tensor]:
    """The attention of a BiARN over one sentence, for one state."""
    att = module.attention
    if hasattr(att, "score"):
        keys = [att.key.weight.mv(t) for t in tokens]
        if att.coverage is not None:
            w_seen = att.coverage.weight[:, 0]
            covering = naive.CoverageAttention(keys, att.score.weight[0], tokens, w_seen)
            return lambda h: covering(att.query.weight.mv(h))
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


KINDS = [("additive", "gru"), ("multihead", "gru"), ("coverage", "lstm")]
BIARN = [
    pytest.param(*kind, *length.values, marks=length.marks)
    for kind in [*((*kind, 3) for kind in KINDS), ("additive", "gru", -1)]
    for length in lengths_of(chunked=False)
]


@pytest.mark.parametrize("first", [True, False], ids=["first-layer", "upper-layer"])
@pytest.mark.parametrize("kind, cell, steps, length", BIARN)
def test_biarn(length: int, kind: str, cell: str, steps: int, first: bool) -> None:
    width = 4
    module = BiARN(width if first else 2 * width, width, options(kind, steps, cell)).double()
    nn.init.normal_(module.bias)
    x, mask, sentences = batch(Random(length), length, module.input_dim)
    slow = []
    for tokens in sentences:
        mean = naive.mean_of_real_tokens(tokens)
        h0 = (mean, mean) if first else (mean[:width], mean[width:])
        attend = reference_attend(module, tokens), reference_attend(module, tokens)
        weights = module.w_x, module.w_h, module.bias
        slow.append(naive.biarn(attend, h0, *weights, len(tokens) if steps < 0 else steps))
    fast = module(x, Padding.of(mask))
    torch.testing.assert_close(module(x[:1], None)[0], slow[0])
    if steps < 0:
        assert not fast[mask].any()
        fast = fast[~mask]
    # A bias common to all keys never has a gradient.
    parameters = [p for n, p in module.named_parameters() if n != "attention.key.bias"]
    slow = torch.cat(slow) if steps < 0 else torch.stack(slow)
    assert_same(fast, slow, [x, *parameters], length > 2)


@pytest.mark.parametrize("first", [True, False], ids=["first-layer", "upper-layer"])
@pytest.mark.parametrize("length", lengths_of(chunked=False))
@pytest.mark.parametrize("cell", CELLS)
def test_birnn(length: int, first: bool, cell: str) -> None:
    width = 4
    module = BiRNN(width if first else 2 * width, width, options(cell=cell)).double()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    named = dict(module.get_submodule(cell).named_parameters())
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    weights = [tuple(named[n + suffix] for n in names) for suffix in ("", "_reverse")]
    x, mask, sentences = batch(Random(length), length, module.input_dim)
    fast = module(x, Padding.of(mask))
    assert torch.equal(fast[mask], torch.zeros_like(fast[mask]))
    slow = []
    for tokens in sentences:
        mean = naive.mean_of_real_tokens(tokens)
        h0 = (mean, mean) if first else (mean[:width], mean[width:])
        slow.append(naive.birnn(tokens, h0, *weights))
    torch.testing.assert_close(module(x[:1], None)[0], slow[0])
    assert_same(fast[~mask], torch.cat(slow), [x, *module.parameters()])


# ---- every op has a reference


NO_LOOPS: dict[str, str] = {
    "banded_product": "its reference adds up the lags itself",
    "spread": "moves weights: test_weights_are_over_the_segment_that_is_read",
    "at_least": "torch's clamp but for its gradient: "
    "test_a_threshold_below_the_smallest_one_can_rise_again",
}
"""Ops that are compared without `ops.naive`, and how they are tested."""


def called_by(run: Callable[[], None], codes: dict[CodeType, str]) -> set[str]:
    """The functions with these codes that a function calls, by their names."""
    called: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code in codes:
            called.add(codes[frame.f_code])

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return called


def test_every_op_is_compared_with_loops() -> None:
    """Some reference calls both the op and a function of `ops.naive`."""
    ops = {function.__code__: name for name, function in public_ops().items()}
    loops = {
        function.__code__: name
        for name, function in vars(naive).items()
        if isinstance(function, FunctionType)
    }
    compared = {}
    for function in REFERENCES.values():
        for length in (9, 65):
            called = called_by(lambda f=function, n=length: f(Random(n), n), {**ops, **loops})
            compared |= dict.fromkeys(called if called & {*loops.values()} else ())
    assert {*ops.values()} - compared.keys() == NO_LOOPS.keys()
