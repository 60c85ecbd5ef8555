"""Attention within segments, with SRformer's recurrent term added, as Triton kernels.

    O[t] = softmax(Q_t K_i^T + mask) V_i + unit * F[t]

The queries of step i read segment i. A program has a tile of the queries, or of the keys, of one
step of a row. It goes through the segment tile by tile, so no weights are stored: the backward
pass computes them again from the logarithm of their sum.

Letters: R rows, one per head of a sentence; M segments of s positions; N steps of n queries.
"""

import triton
import triton.language as tl

from fairseq_recur.ops.triton.tile_kernels import VARYING, load_rows, store_rows


@triton.jit
def scores_of(
    q, k, masks, first, size, MASKED: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr
):
    """Scores of queries and the keys from *first* on; -inf beyond the segment."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    key = first + tl.arange(0, KEYS)
    if MASKED:
        scores += tl.load(masks + key, mask=key < size, other=0)[None, :]
    return tl.where((key < size)[None, :], scores, float("-inf"))


@triton.jit
def dropped(
    x, seed, start, first, size,
    DROPOUT: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Weights, or their gradient, after dropout: the same entries for the same seed."""
    if DROPOUT > 0:
        query = start + tl.arange(0, QUERIES)
        key = first + tl.arange(0, KEYS)
        kept = tl.rand(seed, query[:, None] * size + key[None, :]) >= DROPOUT
        scale = 0.0 if DROPOUT == 1 else 1.0 / (1.0 - DROPOUT)
        x = tl.where(kept, x * scale, 0.0)
    return x


@triton.jit(do_not_specialize=VARYING)
def attend(
    queries, keys, values, masks, added, unit, seed_at, out, logs,
    heads, segments, steps, size, room, width,
    MASKED: tl.constexpr, ADDED: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write O, (R, N, n, D), and the logarithms of the softmax's sums, (R, N, n)."""
    place = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * QUERIES
    row = place // steps
    step = place % steps
    channels = tl.arange(0, WIDTH)
    queries += place * room * width
    keys += (row * segments + step) * size * width
    values += (row * segments + step) * size * width
    seed = place
    if DROPOUT > 0:
        seed += tl.load(seed_at)
    if MASKED:
        masks += ((row // heads) * steps + step) * size
    q = load_rows(queries, start, room, channels, width, QUERIES)
    highest = tl.full((QUERIES,), float("-inf"), dtype=queries.dtype.element_ty)
    total = tl.zeros((QUERIES,), dtype=queries.dtype.element_ty)
    found = tl.zeros((QUERIES, WIDTH), dtype=queries.dtype.element_ty)
    for first in range(0, size, KEYS):
        k = load_rows(keys, first, size, channels, width, KEYS)
        v = load_rows(values, first, size, channels, width, KEYS)
        scores = scores_of(q, k, masks, first, size, MASKED, KEYS, PRECISION)
        higher = tl.maximum(highest, tl.max(scores, axis=1))
        weights = tl.exp(scores - higher[:, None])
        earlier = tl.exp(highest - higher)
        total = total * earlier + tl.sum(weights, axis=1)
        weights = dropped(weights, seed, start, first, size, DROPOUT, QUERIES, KEYS)
        found = found * earlier[:, None] + tl.dot(weights, v, input_precision=PRECISION)
        highest = higher
    found = found / total[:, None]
    if ADDED:
        factors = tl.load(unit + row * width + channels, mask=channels < width, other=0)
        f = load_rows(added + place * room * width, start, room, channels, width, QUERIES)
        found += f * factors[None, :]
    store_rows(out + place * room * width, found, start, room, channels, width, QUERIES)
    query = start + tl.arange(0, QUERIES)
    tl.store(logs + place * room + query, highest + tl.log(total), mask=query < room)


@triton.jit(do_not_specialize=VARYING)
def attend_back_queries(
    queries, keys, values, masks, added, unit, seed_at, logs, grad,
    grad_queries, grad_added, grad_unit, means,
    heads, segments, steps, size, room, width,
    MASKED: tl.constexpr, ADDED: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the gradients of Q, and with ADDED those of F and of *unit*, (R, N, tiles, D) to sum.

    Let w be the weights of a query and g their gradient. That of its scores is w (g - m), with
    m = sum_j w_j g_j, which is written to *means* (R, N, n). So that of Q is the sum of w g K minus
    m times the sum of w K.
    """
    place = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * QUERIES
    row = place // steps
    step = place % steps
    channels = tl.arange(0, WIDTH)
    keys += (row * segments + step) * size * width
    values += (row * segments + step) * size * width
    seed = place
    if DROPOUT > 0:
        seed += tl.load(seed_at)
    if MASKED:
        masks += ((row // heads) * steps + step) * size
    at = place * room * width
    query = start + tl.arange(0, QUERIES)
    q = load_rows(queries + at, start, room, channels, width, QUERIES)
    y = load_rows(grad + at, start, room, channels, width, QUERIES)
    log = tl.load(logs + place * room + query, mask=query < room, other=0)
    mean = tl.zeros((QUERIES,), dtype=queries.dtype.element_ty)
    of_product = tl.zeros((QUERIES, WIDTH), dtype=queries.dtype.element_ty)
    of_weights = tl.zeros((QUERIES, WIDTH), dtype=queries.dtype.element_ty)
    for first in range(0, size, KEYS):
        k = load_rows(keys, first, size, channels, width, KEYS)
        v = load_rows(values, first, size, channels, width, KEYS)
        scores = scores_of(q, k, masks, first, size, MASKED, KEYS, PRECISION)
        weights = tl.exp(scores - log[:, None])
        g = tl.dot(y, tl.trans(v), input_precision=PRECISION)
        product = weights * dropped(g, seed, start, first, size, DROPOUT, QUERIES, KEYS)
        mean += tl.sum(product, axis=1)
        of_product += tl.dot(product, k, input_precision=PRECISION)
        of_weights += tl.dot(weights, k, input_precision=PRECISION)
    of_queries = of_product - mean[:, None] * of_weights
    store_rows(grad_queries + at, of_queries, start, room, channels, width, QUERIES)
    tl.store(means + place * room + query, mean, mask=query < room)
    if ADDED:
        factors = tl.load(unit + row * width + channels, mask=channels < width, other=0)
        f = load_rows(added + at, start, room, channels, width, QUERIES)
        store_rows(grad_added + at, y * factors[None, :], start, room, channels, width, QUERIES)
        part = (place * tl.num_programs(1) + tl.program_id(1)) * width
        tl.store(grad_unit + part + channels, tl.sum(y * f, axis=0), mask=channels < width)


@triton.jit(do_not_specialize=VARYING)
def attend_back_keys(
    queries, keys, values, masks, seed_at, logs, means, grad, grad_keys, grad_values,
    heads, segments, steps, size, room, width,
    MASKED: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a tile of keys and of its values; *means* as above."""
    place = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * KEYS
    row = place // steps
    step = place % steps
    channels = tl.arange(0, WIDTH)
    segment = (row * segments + step) * size * width
    seed = place
    if DROPOUT > 0:
        seed += tl.load(seed_at)
    if MASKED:
        masks += ((row // heads) * steps + step) * size
    k = load_rows(keys + segment, first, size, channels, width, KEYS)
    v = load_rows(values + segment, first, size, channels, width, KEYS)
    of_keys = tl.zeros((KEYS, WIDTH), dtype=queries.dtype.element_ty)
    of_values = tl.zeros((KEYS, WIDTH), dtype=queries.dtype.element_ty)
    at = place * room * width
    for start in range(0, room, QUERIES):
        query = start + tl.arange(0, QUERIES)
        q = load_rows(queries + at, start, room, channels, width, QUERIES)
        y = load_rows(grad + at, start, room, channels, width, QUERIES)
        log = tl.load(logs + place * room + query, mask=query < room, other=0)
        mean = tl.load(means + place * room + query, mask=query < room, other=0)
        scores = scores_of(q, k, masks, first, size, MASKED, KEYS, PRECISION)
        weights = tl.exp(scores - log[:, None])
        used = dropped(weights, seed, start, first, size, DROPOUT, QUERIES, KEYS)
        of_values += tl.dot(tl.trans(used), y, input_precision=PRECISION)
        g = tl.dot(y, tl.trans(v), input_precision=PRECISION)
        g = dropped(g, seed, start, first, size, DROPOUT, QUERIES, KEYS)
        of_scores = weights * (g - mean[:, None])
        of_keys += tl.dot(tl.trans(of_scores), q, input_precision=PRECISION)
    store_rows(grad_keys + segment, of_keys, first, size, channels, width, KEYS)
    store_rows(grad_values + segment, of_values, first, size, channels, width, KEYS)
