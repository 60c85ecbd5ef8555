"""SRformer's scan over the segments with its accumulate-and-fire neurons, as Triton kernels.

    x_i = sum_j X_j - X_i,  X_i = L_i^T R_i        mem = leak mem + x_i
    fired_i = relu(mem - thr)                      mem = mem - thr [mem > thr]

A program has one row, a head of a sentence, and B columns of its D x D matrices: a neuron acts on
one entry. A tile has all D rows, and A with padding. Its rows are channels of L and its columns
channels of R. L is K, and R is V W^T; exchanged, they give the transposed matrices. Strides say
which they are in a stored matrix.

Letters: M segments of s positions, N steps of n queries.
"""

import triton
import triton.language as tl

from fairseq_recur.ops.triton.tile_kernels import VARYING, outer_sum, store_product, store_rows


@triton.jit
def places(a, b, width, stride_a, stride_b):
    """The places of a tile's entries in a D x D matrix, and which of them are within it."""
    inside = (a < width)[:, None] & (b < width)[None, :]
    return a[:, None] * stride_a + b[None, :] * stride_b, inside


@triton.jit(do_not_specialize=VARYING)
def scan(
    left, right, asked, other, out, products, spikes, total, of_leak, leak_at, threshold_at,
    segments, steps, words, size, room, width, stride_a, stride_b,
    REST: tl.constexpr, GRADIENT: tl.constexpr, PRECISION: tl.constexpr,
    A: tl.constexpr, B: tl.constexpr, KEYS: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """Write asked_i fired_i, (R, N, n, D), for *asked* (R, N, n, D).

    With REST, *products* has sum_j X_j, (R, D, D).

    With GRADIENT, the derivative of the loss by fired_i is F_i = asked_i^T other_i, and the one by
    mem is G_i. Then these are written too, none of which needs the steps in reverse:

        spikes     (R, words, D, D): which neurons fire, a bit per step, 32 steps per word
        total      (R, D, D): sum_i G_i = sum_i spike_i F_i (1 + leak + ... + leak^i)
        of_leak    (R, column blocks): sum_i spike_i F_i dmem_i / dleak
    """
    row = tl.program_id(0).to(tl.int64)
    a = tl.arange(0, A)
    b = tl.program_id(1) * B + tl.arange(0, B)
    left += row * segments * size * width
    right += row * segments * size * width
    asked += row * steps * room * width
    other += row * steps * room * width
    out += row * steps * room * width
    leak = tl.load(leak_at)
    threshold = tl.load(threshold_at)
    whole = tl.zeros((A, B), dtype=left.dtype.element_ty)
    memory = tl.zeros((A, B), dtype=left.dtype.element_ty)
    if GRADIENT:
        drift = tl.zeros((A, B), dtype=left.dtype.element_ty)  # dmem / dleak
        summed = tl.zeros((A, B), dtype=left.dtype.element_ty)
        by_leak = tl.zeros((A, B), dtype=left.dtype.element_ty)
        weight = leak * 0.0
    if REST:
        square, inside = places(a, b, width, stride_a, stride_b)
        whole = tl.load(products + row * width * width + square, mask=inside, other=0.0)
    for first in range(0, steps, 32):
        word = tl.zeros((A, B), dtype=tl.int32)
        for i in range(first, tl.minimum(first + 32, steps)):
            at = i * size * width
            x = outer_sum(left + at, right + at, size, a, b, width, KEYS, A, B, PRECISION)
            if REST:
                x = whole - x
            if GRADIENT:
                drift = leak * drift + memory
            memory = leak * memory + x
            over = memory - threshold
            spike = over > 0
            fired = tl.where(over <= 0, 0.0, over)  # not a number stays one
            memory = tl.where(spike, over, memory)
            to = i * room * width
            store_product(asked + to, fired, out + to, room, a, b, width, QUERIES, PRECISION)
            if GRADIENT:
                fresh = outer_sum(
                    asked + to, other + to, room, a, b, width, QUERIES, A, B, PRECISION
                )
                fresh = tl.where(spike, fresh, 0.0)
                weight = 1.0 + leak * weight
                summed += fresh * weight
                by_leak += fresh * drift
                word = word | (spike.to(tl.int32) << (i - first))
        if GRADIENT:
            of_word = (row * words + first // 32) * width * width
            store_rows(spikes + of_word, word, 0, width, b, width, A)
    if GRADIENT:
        store_rows(total + row * width * width, summed, 0, width, b, width, A)
        place = row * tl.num_programs(1) + tl.program_id(1)
        tl.store(of_leak + place, tl.sum(tl.sum(by_leak, axis=1), axis=0))


@triton.jit(do_not_specialize=VARYING)
def scan_back(
    read, asked, other, out, spikes, total, of_threshold, leak_at,
    segments, steps, words, size, room, width, stride_a, stride_b,
    REST: tl.constexpr, PRECISION: tl.constexpr,
    A: tl.constexpr, B: tl.constexpr, KEYS: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """Write read_i E_i, (R, M, s, D), with E_i = sum_j G_j - G_i: the gradient of R, or of L.

    G_i = spike_i asked_i^T other_i + leak G_{i+1}, from the last step to the first. The spikes and
    the sum come from `scan`.
    of_threshold (R, column blocks) receives - sum_i spike_i (asked_i^T other_i + leak G_{i+1}).
    """
    row = tl.program_id(0).to(tl.int64)
    a = tl.arange(0, A)
    b = tl.program_id(1) * B + tl.arange(0, B)
    square, inside = places(a, b, width, stride_a, stride_b)
    read += row * segments * size * width
    out += row * segments * size * width
    asked += row * steps * room * width
    other += row * steps * room * width
    leak = tl.load(leak_at)
    whole = tl.zeros((A, B), dtype=read.dtype.element_ty)
    if REST:
        whole = tl.load(total + row * width * width + square, mask=inside, other=0.0)
    for i in range(steps, segments):  # no query reads these
        at = i * size * width
        store_product(read + at, whole, out + at, size, a, b, width, KEYS, PRECISION)
    carried = tl.zeros((A, B), dtype=read.dtype.element_ty)  # leak G_{i+1}
    lost = tl.zeros((A, B), dtype=read.dtype.element_ty)
    for behind in range(0, words):
        number = words - 1 - behind
        first = number * 32
        word_at = spikes + (row * words + number) * width * width
        word = tl.load(word_at + square, mask=inside, other=0)
        count = tl.minimum(steps - first, 32)
        for back in range(0, count):
            within = count - 1 - back
            to = (first + within) * room * width
            fresh = outer_sum(asked + to, other + to, room, a, b, width, QUERIES, A, B, PRECISION)
            spike = ((word >> within) & 1) != 0
            grad = tl.where(spike, fresh, 0.0) + carried
            lost += tl.where(spike, grad, 0.0)
            carried = leak * grad
            if REST:
                grad = whole - grad
            at = (first + within) * size * width
            store_product(read + at, grad, out + at, size, a, b, width, KEYS, PRECISION)
    place = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(of_threshold + place, -tl.sum(tl.sum(lost, axis=1), axis=0))
