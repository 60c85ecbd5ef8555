"""The elementwise parts of an attentive recurrent network's steps, as Triton kernels.

    e_j = score . tanh(query + key_j)
    r, z = sigma(x + u)    n = tanh(x_n + b + r u_n)    h' = n + z (h - n)

Letters: B sentences of S keys; N chains, one per direction; C channels.
"""

import triton
import triton.language as tl

from fairseq_recur.ops.triton.tile_kernels import load_rows, store_rows


@triton.jit
def tanh(x):
    """The hyperbolic tangent; its absolute error is that of one."""
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


@triton.jit
def sigmoid(x):
    """The logistic function."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def energies(
    query, keys, score, out, chains, length, width, KEYS: tl.constexpr, WIDTH: tl.constexpr
):
    """Write e, (B, N, S). A program has a tile of the keys, for one chain of a sentence."""
    place = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * KEYS
    keys += (place // chains) * length * width
    total = tl.zeros((KEYS,), dtype=keys.dtype.element_ty)
    for start in range(0, width, WIDTH):
        channel = start + tl.arange(0, WIDTH)
        q = tl.load(query + place * width + channel, mask=channel < width, other=0)
        s = tl.load(score + channel, mask=channel < width, other=0)
        k = load_rows(keys, first, length, channel, width, KEYS)
        total += tl.sum(s[None, :] * tanh(q[None, :] + k), axis=1)
    key = first + tl.arange(0, KEYS)
    tl.store(out + place * length + key, total, mask=key < length)


@triton.jit
def energies_back(
    grad, query, keys, score, grad_query, grad_keys, grad_score, chains, length, width,
    KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the gradients of the queries, the keys, and the score's (B, C), which add up.

    A program has some channels of a sentence. The keys' gradient is a sum over the chains, the
    others are sums over the keys.
    """
    sentence = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = channel < width
    keys += sentence * length * width
    s = tl.load(score + channel, mask=inside, other=0)
    of_score = tl.zeros((WIDTH,), dtype=keys.dtype.element_ty)
    for chain in range(0, chains):
        place = sentence * chains + chain
        q = tl.load(query + place * width + channel, mask=inside, other=0)
        of_query = tl.zeros((WIDTH,), dtype=keys.dtype.element_ty)
        for first in range(0, length, KEYS):
            key = first + tl.arange(0, KEYS)
            g = tl.load(grad + place * length + key, mask=key < length, other=0)
            t = tanh(q[None, :] + load_rows(keys, first, length, channel, width, KEYS))
            of_score += tl.sum(g[:, None] * t, axis=0)
            of_query += tl.sum(g[:, None] * (1.0 - t * t), axis=0)
        tl.store(grad_query + place * width + channel, of_query * s, mask=inside)
    tl.store(grad_score + sentence * width + channel, of_score, mask=inside)
    for first in range(0, length, KEYS):
        key = first + tl.arange(0, KEYS)
        k = load_rows(keys, first, length, channel, width, KEYS)
        of_keys = tl.zeros((KEYS, WIDTH), dtype=keys.dtype.element_ty)
        for either in range(0, chains):
            place = sentence * chains + either
            q = tl.load(query + place * width + channel, mask=inside, other=0)
            g = tl.load(grad + place * length + key, mask=key < length, other=0)
            t = tanh(q[None, :] + k)
            of_keys += g[:, None] * (1.0 - t * t)
        to = grad_keys + sentence * length * width
        store_rows(to, of_keys * s[None, :], first, length, channel, width, KEYS)


@triton.jit
def gru(x, u, bias, h, out, batch, width, WIDTH: tl.constexpr):
    """Write h', (N, B, C), for gates x and u (N, B, 3C). A program has channels of one state."""
    place = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = channel < width
    x += place * 3 * width + channel
    u += place * 3 * width + channel
    r = sigmoid(tl.load(x, mask=inside, other=0) + tl.load(u, mask=inside, other=0))
    z = sigmoid(tl.load(x + width, mask=inside, other=0) + tl.load(u + width, mask=inside, other=0))
    b = tl.load(bias + (place // batch) * width + channel, mask=inside, other=0)
    u_n = tl.load(u + 2 * width, mask=inside, other=0)
    n = tanh(tl.load(x + 2 * width, mask=inside, other=0) + b + r * u_n)
    before = tl.load(h + place * width + channel, mask=inside, other=0)
    tl.store(out + place * width + channel, n + z * (before - n), mask=inside)


@triton.jit
def gru_back(
    x, u, bias, h, grad, grad_x, grad_u, grad_h, batch, width, WIDTH: tl.constexpr
):  # fmt: skip
    """Write the gradients of both gates, and that of h through the last sum only."""
    place = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = channel < width
    gates = place * 3 * width + channel
    state = place * width + channel
    x += gates
    u += gates
    r = sigmoid(tl.load(x, mask=inside, other=0) + tl.load(u, mask=inside, other=0))
    z = sigmoid(tl.load(x + width, mask=inside, other=0) + tl.load(u + width, mask=inside, other=0))
    b = tl.load(bias + (place // batch) * width + channel, mask=inside, other=0)
    u_n = tl.load(u + 2 * width, mask=inside, other=0)
    n = tanh(tl.load(x + 2 * width, mask=inside, other=0) + b + r * u_n)
    before = tl.load(h + state, mask=inside, other=0)
    g = tl.load(grad + state, mask=inside, other=0)
    of_n = g * (1.0 - z) * (1.0 - n * n)
    of_r = of_n * u_n * r * (1.0 - r)
    of_z = g * (before - n) * z * (1.0 - z)
    tl.store(grad_x + gates, of_r, mask=inside)
    tl.store(grad_x + gates + width, of_z, mask=inside)
    tl.store(grad_x + gates + 2 * width, of_n, mask=inside)
    tl.store(grad_u + gates, of_r, mask=inside)
    tl.store(grad_u + gates + width, of_z, mask=inside)
    tl.store(grad_u + gates + 2 * width, of_n * r, mask=inside)
    tl.store(grad_h + state, g * z, mask=inside)
