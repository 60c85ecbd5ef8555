"""The operations that ops.py measures, each in all its forms.

All forms of an operation compute the same function of the same inputs, except `OTHER`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_recur.ops import naive
from fairseq_recur.ops.attention import (
    attention_map,
    directional_attention,
    directional_masks,
    dot_product_attention,
)
from fairseq_recur.ops.mixture import mixed_map, mixed_outputs
from fairseq_recur.ops.recurrence_encoder import additive_attention, attentive_recurrence
from fairseq_recur.ops.rem import recurrent_product, rem_kernel
from fairseq_recur.ops.segmented_recurrent import segmented_recurrent
from fairseq_recur.ops.segments import segment_schedule, split_segments
from fairseq_recur.ops.shaw import relative_attention, table_rows
from fairseq_recur.ops.toeplitz import banded_product, shared_product, toeplitz_matrix

BATCH, HEADS, WIDTH = 2, 8, 64
MODEL = HEADS * WIDTH
STEPS, SEGMENT, CLIP, CHUNK, MAX_POWER = 8, 64, 16, 64, 200
OTHER = "sdpa"
"""The form that computes a different function, for comparison."""


class Form(NamedTuple):
    """One way to compute an operation.

    Attributes:
        run: computes the output
        kind: what limits the length, a key of LONGEST in ops.py, or "" for nothing
    """

    run: Callable[[], Tensor]
    kind: str = ""


class Case(NamedTuple):
    """An operation at one length.

    Attributes:
        inputs: the tensors that have gradients
        forms: by name
    """

    inputs: Sequence[Tensor]
    forms: dict[str, Form]


def leaf(*size: int, device: str) -> Tensor:
    """Draw a leaf tensor that requires a gradient."""
    return torch.randn(size, device=device, requires_grad=True)


def attention_inputs(length: int, device: str, queries: int = 0) -> list[Tensor]:
    """Draw queries, keys and values, (B, H, T or S, D)."""
    return [
        leaf(BATCH, HEADS, n, WIDTH, device=device) for n in (queries or length, length, length)
    ]


def heads_of(head: Callable[..., Tensor], *batched: Tensor) -> Tensor:
    """Loop over sentences and heads: call *head* with its index and the rows of (B, H, T, D)."""
    return torch.stack([
        torch.stack([head(h, *(list(x[b, h]) for x in batched)) for h in range(HEADS)])
        for b in range(batched[0].size(0))
    ])  # fmt: skip


def causal(length: int, device: str) -> Tensor:
    """Return the decoder's additive mask."""
    return torch.full((length, length), float("-inf"), device=device).triu(1)


def decays(device: str) -> Tensor:
    """Return the decays of heads with regular matrices: (H,)."""
    return torch.linspace(-0.6, 0.9, HEADS, device=device).requires_grad_()


def rsa(length: int, device: str) -> Case:
    """RSA's self-attention (Huang et al. 2023, eq. 4)."""
    q, k, v = attention_inputs(length, device)
    decay = decays(device)
    gate = torch.tensor(0.3, device=device, requires_grad=True)
    gates = gate.expand(HEADS).view(-1, 1, 1)

    def kernel() -> Tensor:
        return rem_kernel(decay, None, None, None, min(length, MAX_POWER + 1), MAX_POWER)

    def matrix() -> Tensor:
        return toeplitz_matrix(kernel(), None, length, length)

    def loops() -> Tensor:
        times, zero = list(range(length)), torch.zeros((), device=device)

        def head(h: int, *rows: list[Tensor]) -> Tensor:
            p = naive.rem(decay[h], zero, False, 1, times, times, True, MAX_POWER)
            return naive.rsa_head(*rows, p, gate, True)

        return heads_of(head, q, k, v)

    def sum_of(recurrent: Tensor) -> Tensor:
        local = dot_product_attention(q, k, v, causal(length, device))
        return mixed_outputs(local, recurrent, gates)

    def mixed() -> Tensor:
        weights = attention_map(q, k, causal(length, device))
        return mixed_map(weights, v, matrix(), gates)[0]

    return Case([q, k, v, decay, gate], {
        "naive": Form(loops, "loops"),
        "mixed": Form(mixed, "square"),
        "dense": Form(lambda: sum_of(shared_product(matrix(), v)), "square"),
        "chunked": Form(lambda: sum_of(banded_product(kernel(), v, CHUNK)), "square"),
        OTHER: Form(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), "square"),
    })  # fmt: skip


def rem_product(length: int, device: str) -> Case:
    """Only P V, without a highest power: a linear recurrence over the values (eqs. 2 and 3)."""
    (v,) = attention_inputs(length, device)[:1]
    decay = decays(device)
    angle = torch.zeros_like(decay)
    sine = angle.bool()

    def recurrence() -> Tensor:
        return torch.stack(naive.regular_recurrence(decay.view(-1, 1), list(v.unbind(2))), dim=2)

    def dense() -> Tensor:
        kernel = rem_kernel(decay, None, None, None, length)
        return shared_product(toeplitz_matrix(kernel, None, length, length), v)

    return Case([v, decay], {
        "naive": Form(recurrence, "recurrence"),
        "dense": Form(dense, "square"),
        "chunked": Form(lambda: recurrent_product(decay, angle, sine, v, CHUNK)),
    })  # fmt: skip


def relative(length: int, device: str) -> Case:
    """Relative positions in keys and values (Shaw et al. 2018), causal."""
    q, k, v = attention_inputs(length, device)
    tables = [leaf(HEADS, 2 * CLIP + 1, WIDTH, device=device) for _ in range(2)]

    def head(h: int, *rows: list[Tensor]) -> Tensor:
        return naive.relative_head(*rows, tables[0][h], tables[1][h], True)

    def products() -> Tensor:
        row = table_rows(length, length, 2 * CLIP + 1, q.device)
        return relative_attention(q, k, v, *tables, row, causal(length, device))[0]

    return Case([q, k, v, *tables], {
        "naive": Form(lambda: heads_of(head, q, k, v), "loops"),
        "products": Form(products, "square"),
        OTHER: Form(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), "square"),
    })  # fmt: skip


def directional(length: int, device: str) -> Case:
    """Directional self-attention (Shen et al. 2018)."""
    q, k, v = attention_inputs(length, device)

    def head(h: int, *rows: list[Tensor]) -> Tensor:
        return naive.directional_head(*rows, backward=h >= HEADS // 2)

    return Case([q, k, v], {
        "naive": Form(lambda: heads_of(head, q, k, v), "loops"),
        "fused": Form(lambda: directional_attention(q, k, v, directional_masks(q, None)), "square"),
        OTHER: Form(lambda: F.scaled_dot_product_attention(q, k, v), "square"),
    })  # fmt: skip


def biarn(length: int, device: str) -> Case:
    """BiARN with additive attention, R = 8 (Hao et al. 2019, eqs. 12 and 13)."""
    source, h0 = leaf(BATCH, length, MODEL, device=device), leaf(2, BATCH, MODEL, device=device)
    shapes = [(2, 3 * MODEL, MODEL)] * 2 + [(2, MODEL), (MODEL, MODEL), (MODEL, MODEL), (MODEL,)]
    w_x, w_h, bias, w_k, w_q, score = (leaf(*s, device=device) for s in shapes)
    for weight in (w_x, w_h, w_k, w_q, score):
        weight.data.mul_(MODEL**-0.5)

    def loops() -> Tensor:
        found = []
        for b in range(BATCH):
            keys, values = [w_k.mv(x) for x in source[b]], list(source[b])

            def attend(h: Tensor, keys: Any = keys, values: Any = values) -> Tensor:
                return naive.additive_attention(w_q.mv(h), keys, score, values)

            found.append(naive.biarn((attend, attend), (h0[0, b], h0[1, b]), w_x, w_h, bias, STEPS))
        return torch.stack(found)

    def batched(every_step: bool) -> Tensor:
        projected = None if every_step else source @ w_k.t()

        def attend(h: Tensor) -> Tensor:
            keys = source @ w_k.t() if projected is None else projected
            return additive_attention(h @ w_q.t(), keys, score, source)

        return attentive_recurrence(attend, h0, w_x, w_h, bias, STEPS)

    return Case([source, h0, w_x, w_h, bias, w_k, w_q, score], {
        "naive": Form(loops, "loops"),
        "projected at each step": Form(lambda: batched(True)),
        "projected once": Form(lambda: batched(False)),
    })  # fmt: skip


def birnn(length: int, device: str) -> Case:
    """The bidirectional GRU over the tokens (eqs. 9 to 11)."""
    gru = nn.GRU(MODEL, MODEL, batch_first=True, bidirectional=True).to(device)
    x = leaf(BATCH, length, MODEL, device=device)
    named = dict(gru.named_parameters())
    both = [
        [named[f"{name}_l0{end}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        for end in ("", "_reverse")
    ]

    def loops() -> Tensor:
        zero = torch.zeros(MODEL, device=device)
        return torch.stack([naive.birnn(list(one), (zero, zero), *map(tuple, both)) for one in x])

    return Case([x, *named.values()], {
        "naive": Form(loops, "steps"), "torch's GRU": Form(lambda: gru(x)[0], "recurrence"),
    })  # fmt: skip


def srformer(length: int, device: str) -> Case:
    """Segmented recurrent cross-attention, s = 64, an eighth as many queries as keys."""
    queries, size = max(1, length // 8), min(SEGMENT, length)
    q, k, v = attention_inputs(length, device, queries)
    weight = leaf(WIDTH, WIDTH, device=device)
    weight.data.mul_(WIDTH**-0.5)
    leak = torch.tensor(0.9, device=device, requires_grad=True)
    threshold = torch.tensor(1.0, device=device, requires_grad=True)
    scale = WIDTH**-0.5

    def blocks(compiled: bool) -> Tensor:
        plan = segment_schedule((length,) * BATCH, (queries,) * BATCH, queries, size, q.device)
        both = segmented_recurrent(
            plan.to_blocks(q), split_segments(k, size), split_segments(v, size), weight, leak,
            threshold, scale=scale, compiled=compiled, together=True,
        )  # fmt: skip
        return plan.from_blocks(both[0])

    def head(h: int, q: list[Tensor], k: list[Tensor], v: list[Tensor]) -> Tensor:
        scaled = [x * scale for x in q]
        return sum(naive.srformer_head(
            scaled, k, v, size, queries, weight, leak, threshold, surrogate=True,
        ))  # fmt: skip

    return Case([q, k, v, weight, leak, threshold], {
        "naive": Form(lambda: heads_of(head, q, k, v), "loops"),
        **({"by torch": Form(lambda: blocks(False))} if device == "cpu" else {}),
        "in C" if device == "cpu" else "segments": Form(lambda: blocks(True)),
        OTHER: Form(lambda: F.scaled_dot_product_attention(q, k, v)),
    })  # fmt: skip


CASES: dict[str, Callable[[int, str], Case]] = {
    f.__name__: f for f in (rsa, rem_product, relative, directional, biarn, birnn, srformer)
}
