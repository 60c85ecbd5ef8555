"""RSA's mixed map of short sequences and its product with V, as Triton kernels.

    out = M V,  M = (1 - g) A + g P

A program has QUERIES rows of the map of a head, with all of their columns.
"""

import triton
import triton.language as tl

from fairseq_recur.ops.triton.tile_kernels import VARYING, load_rows, store_rows


@triton.jit(do_not_specialize=[*VARYING, "queries"])
def mix_maps(
    weights, matrix, gates, values, out, mixed, heads, queries, keys, width,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write M, (B, H, T, S), and M V. A program has one sentence."""
    row = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * QUERIES
    head = row % heads
    key = tl.arange(0, KEYS)
    channels = tl.arange(0, WIDTH)
    gate = tl.load(gates + head)
    a = load_rows(weights + row * queries * keys, start, queries, key, keys, QUERIES)
    p = load_rows(matrix + head * queries * keys, start, queries, key, keys, QUERIES)
    v = load_rows(values + row * keys * width, 0, keys, channels, width, KEYS)
    m = (1.0 - gate) * a + gate * p
    y = tl.dot(m, v, input_precision=PRECISION)
    store_rows(mixed + row * queries * keys, m, start, queries, key, keys, QUERIES)
    store_rows(out + row * queries * width, y, start, queries, channels, width, QUERIES)


@triton.jit(do_not_specialize=[*VARYING, "queries"])
def mix_back(
    weights, matrix, gates, values, grad_out, grad_mixed, grad_weights, grad_matrix, grad_gates,
    batch, queries, keys, width,
    READ: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the gradient of A, and those of P, (parts, H, T, S), and g, (parts, H, T), to sum.

    A program has every parts-th sentence. READ: the gradient of M is given too.
    """
    heads = tl.num_programs(0)
    head = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * QUERIES
    query = start + tl.arange(0, QUERIES)
    key = tl.arange(0, KEYS)
    channels = tl.arange(0, WIDTH)
    gate = tl.load(gates + head)
    p = load_rows(matrix + head * queries * keys, start, queries, key, keys, QUERIES)
    summed = tl.zeros((QUERIES, KEYS), dtype=weights.dtype.element_ty)
    by_gate = tl.zeros((QUERIES,), dtype=weights.dtype.element_ty)
    for sentence in range(tl.program_id(2), batch, tl.num_programs(2)):
        row = sentence * heads + head
        to = row * queries * keys
        v = load_rows(values + row * keys * width, 0, keys, channels, width, KEYS)
        y = load_rows(grad_out + row * queries * width, start, queries, channels, width, QUERIES)
        d = tl.dot(y, tl.trans(v), input_precision=PRECISION)
        if READ:
            d += load_rows(grad_mixed + to, start, queries, key, keys, QUERIES)
        store_rows(grad_weights + to, (1.0 - gate) * d, start, queries, key, keys, QUERIES)
        a = load_rows(weights + to, start, queries, key, keys, QUERIES)
        summed += d
        by_gate += tl.sum(d * (p - a), axis=1)
    part = tl.program_id(2) * heads + head
    to = grad_matrix + part * queries * keys
    store_rows(to, gate * summed, start, queries, key, keys, QUERIES)
    tl.store(grad_gates + part * queries + query, by_gate, mask=query < queries)
