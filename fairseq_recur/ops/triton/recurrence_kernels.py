"""The elementwise parts of an attentive recurrent network's steps, as Triton kernels.

    e_j = score . tanh(query + key_j)
    r, z = sigma(x + u)    n = tanh(x_n + b + r u_n)    h' = n + z (h - n)

They compute in float32, or with DOUBLE in float64, and convert what they load and store.

Letters: B sentences of S keys; N chains, one per direction; C channels.
"""

import triton
import triton.language as tl

from fairseq_recur.ops.triton.tile_kernels import VARYING, load_rows, store_rows


@triton.jit
def exact(x, DOUBLE: tl.constexpr):
    """A tile in the precision of the computation."""
    return x.to(tl.float64) if DOUBLE else x.to(tl.float32)


@triton.jit
def part(at, index, limit, DOUBLE: tl.constexpr):
    """The numbers of a vector at *index*, zero from *limit* on."""
    return exact(tl.load(at + index, mask=index < limit, other=0), DOUBLE)


@triton.jit
def tanh(x):
    """The hyperbolic tangent; its absolute error is that of one."""
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


@triton.jit
def sigmoid(x):
    """The logistic function."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit(do_not_specialize=VARYING)
def energies(
    query, keys, score, out, chains, length, width,
    DOUBLE: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write e, (B, N, S). A program has a tile of the keys, for one chain of a sentence."""
    place = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * KEYS
    keys += (place // chains) * length * width
    total = exact(tl.zeros((KEYS,), dtype=tl.float32), DOUBLE)
    for start in range(0, width, WIDTH):
        channel = start + tl.arange(0, WIDTH)
        q = part(query + place * width, channel, width, DOUBLE)
        s = part(score, channel, width, DOUBLE)
        k = exact(load_rows(keys, first, length, channel, width, KEYS), DOUBLE)
        total += tl.sum(s[None, :] * tanh(q[None, :] + k), axis=1)
    key = first + tl.arange(0, KEYS)
    tl.store(out + place * length + key, total, mask=key < length)


@triton.jit(do_not_specialize=VARYING)
def energies_back(
    grad, query, keys, score, grad_query, grad_keys, grad_score, chains, length, width,
    DOUBLE: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the gradients of the queries, the keys, and the score's (B, C), which add up.

    A program has some channels of a sentence. The keys' gradient is a sum over the chains, the
    others are sums over the keys.
    """
    sentence = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = channel < width
    keys += sentence * length * width
    s = part(score, channel, width, DOUBLE)
    of_score = exact(tl.zeros((WIDTH,), dtype=tl.float32), DOUBLE)
    for chain in range(0, chains):
        place = sentence * chains + chain
        q = part(query + place * width, channel, width, DOUBLE)
        of_query = exact(tl.zeros((WIDTH,), dtype=tl.float32), DOUBLE)
        for first in range(0, length, KEYS):
            g = part(grad + place * length, first + tl.arange(0, KEYS), length, DOUBLE)
            k = exact(load_rows(keys, first, length, channel, width, KEYS), DOUBLE)
            t = tanh(q[None, :] + k)
            of_score += tl.sum(g[:, None] * t, axis=0)
            of_query += tl.sum(g[:, None] * (1.0 - t * t), axis=0)
        tl.store(grad_query + place * width + channel, of_query * s, mask=inside)
    tl.store(grad_score + sentence * width + channel, of_score, mask=inside)
    for first in range(0, length, KEYS):
        k = exact(load_rows(keys, first, length, channel, width, KEYS), DOUBLE)
        of_keys = exact(tl.zeros((KEYS, WIDTH), dtype=tl.float32), DOUBLE)
        for either in range(0, chains):
            place = sentence * chains + either
            q = part(query + place * width, channel, width, DOUBLE)
            g = part(grad + place * length, first + tl.arange(0, KEYS), length, DOUBLE)
            t = tanh(q[None, :] + k)
            of_keys += g[:, None] * (1.0 - t * t)
        to = grad_keys + sentence * length * width
        store_rows(to, of_keys * s[None, :], first, length, channel, width, KEYS)


@triton.jit
def gates(x, u, bias, channel, width, DOUBLE: tl.constexpr):
    """r, z, n and u_n of some channels of a state, for its x and u (3C)."""
    r = sigmoid(part(x, channel, width, DOUBLE) + part(u, channel, width, DOUBLE))
    x += width
    u += width
    z = sigmoid(part(x, channel, width, DOUBLE) + part(u, channel, width, DOUBLE))
    u_n = part(u + width, channel, width, DOUBLE)
    b = part(bias, channel, width, DOUBLE)
    n = tanh(part(x + width, channel, width, DOUBLE) + b + r * u_n)
    return r, z, n, u_n


@triton.jit(do_not_specialize=VARYING)
def gru(
    x, u, bias, h, out, batch, width, DOUBLE: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Write h', (N, B, C), for gates x and u (N, B, 3C). A program has channels of one state."""
    place = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    gate = place * 3 * width
    bias += (place // batch) * width
    _, z, n, _ = gates(x + gate, u + gate, bias, channel, width, DOUBLE)
    before = part(h + place * width, channel, width, DOUBLE)
    tl.store(out + place * width + channel, n + z * (before - n), mask=channel < width)


@triton.jit(do_not_specialize=VARYING)
def gru_back(
    x, u, bias, h, grad, grad_x, grad_u, grad_h, batch, width,
    DOUBLE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the gradients of both gates, and that of h through the last sum only."""
    place = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = channel < width
    gate = place * 3 * width
    bias += (place // batch) * width
    r, z, n, u_n = gates(x + gate, u + gate, bias, channel, width, DOUBLE)
    before = part(h + place * width, channel, width, DOUBLE)
    g = part(grad + place * width, channel, width, DOUBLE)
    of_n = g * (1.0 - z) * (1.0 - n * n)
    of_r = of_n * u_n * r * (1.0 - r)
    of_z = g * (before - n) * z * (1.0 - z)
    gate += channel
    tl.store(grad_x + gate, of_r, mask=inside)
    tl.store(grad_x + gate + width, of_z, mask=inside)
    tl.store(grad_x + gate + 2 * width, of_n, mask=inside)
    tl.store(grad_u + gate, of_r, mask=inside)
    tl.store(grad_u + gate + width, of_z, mask=inside)
    tl.store(grad_u + gate + 2 * width, of_n * r, mask=inside)
    tl.store(grad_h + place * width + channel, g * z, mask=inside)
