"""RSA's mixed map of short sequences and its product with V, as Triton kernels.

    out = M V,  M = (1 - g) A + g P

The map of a head of a sentence is one tile.
"""

import triton
import triton.language as tl

from fairseq_recur.ops.triton.tile_kernels import load_rows, store_rows


@triton.jit
def mix_maps(
    weights, matrix, gates, values, out, mixed, heads, queries, keys, width,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write M, (B, H, T, S), and M V. A program has one head of a sentence."""
    row = tl.program_id(0).to(tl.int64)
    head = row % heads
    key = tl.arange(0, KEYS)
    channels = tl.arange(0, WIDTH)
    gate = tl.load(gates + head)
    a = load_rows(weights + row * queries * keys, 0, queries, key, keys, QUERIES)
    p = load_rows(matrix + head * queries * keys, 0, queries, key, keys, QUERIES)
    v = load_rows(values + row * keys * width, 0, keys, channels, width, KEYS)
    m = (1.0 - gate) * a + gate * p
    y = tl.dot(m, v, input_precision=PRECISION)
    store_rows(mixed + row * queries * keys, m, 0, queries, key, keys, QUERIES)
    store_rows(out + row * queries * width, y, 0, queries, channels, width, QUERIES)


@triton.jit
def mix_back(
    weights, matrix, gates, values, grad_out, grad_mixed,
    grad_weights, grad_matrix, grad_gates, grad_values, batch, queries, keys, width,
    READ: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the gradients of A and V, and those of P and g in (parts, ...), which add up.

    A program has a head and every parts-th sentence. READ: the gradient of M is given too.
    """
    head = tl.program_id(0).to(tl.int64)
    key = tl.arange(0, KEYS)
    channels = tl.arange(0, WIDTH)
    gate = tl.load(gates + head)
    p = load_rows(matrix + head * queries * keys, 0, queries, key, keys, QUERIES)
    summed = tl.zeros((QUERIES, KEYS), dtype=weights.dtype.element_ty)
    by_gate = tl.zeros((QUERIES, KEYS), dtype=weights.dtype.element_ty)
    for sentence in range(tl.program_id(1), batch, tl.num_programs(1)):
        row = sentence * tl.num_programs(0) + head
        to = row * queries * keys
        a = load_rows(weights + to, 0, queries, key, keys, QUERIES)
        v = load_rows(values + row * keys * width, 0, keys, channels, width, KEYS)
        y = load_rows(grad_out + row * queries * width, 0, queries, channels, width, QUERIES)
        d = tl.dot(y, tl.trans(v), input_precision=PRECISION)
        if READ:
            d += load_rows(grad_mixed + to, 0, queries, key, keys, QUERIES)
        m = (1.0 - gate) * a + gate * p
        of_values = tl.dot(tl.trans(m), y, input_precision=PRECISION)
        store_rows(grad_weights + to, (1.0 - gate) * d, 0, queries, key, keys, QUERIES)
        store_rows(grad_values + row * keys * width, of_values, 0, keys, channels, width, KEYS)
        summed += d
        by_gate += d * (p - a)
    part = tl.program_id(1) * tl.num_programs(0) + head
    store_rows(grad_matrix + part * queries * keys, gate * summed, 0, queries, key, keys, QUERIES)
    tl.store(grad_gates + part, tl.sum(tl.sum(by_gate, axis=1), axis=0))
