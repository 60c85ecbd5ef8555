"""Every operation in all its forms: the plain loops, the fast ones, and torch's own beside them.

    python benchmarks/ops.py [--only NAME ...] [--lengths N ...] [--output FILE]

Batches of two sequences, eight heads of 64 (networks: width 512), float32; the decoder's side where
there are two. All forms of an operation compute the same from the same numbers, which is checked in
float64 before anything is measured (up to 512 positions); but torch's fused attention, "sdpa",
has no recurrence, and shows what standard attention takes. Times are of the forward pass, and of
forward and backward; memory is what torch has allocated at most meanwhile, inputs apart.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from measuring import Run, add_device, in_turns, middle, peak_mib, record, rounded
from torch import Tensor, nn

from fairseq_recur.ops import naive
from fairseq_recur.ops.attention import (
    attention_map,
    directional_attention,
    dot_product_attention,
)
from fairseq_recur.ops.mixture import mixed_map, mixed_outputs
from fairseq_recur.ops.recurrence_encoder import additive_attention, attentive_recurrence
from fairseq_recur.ops.relative_positions import relative_attention
from fairseq_recur.ops.rem import recurrent_product, rem_kernel
from fairseq_recur.ops.segmented_recurrent import segmented_recurrent
from fairseq_recur.ops.segments import segment_schedule, split_segments
from fairseq_recur.ops.toeplitz import banded_product, shared_product, toeplitz_matrix

BATCH, HEADS, WIDTH = 2, 8, 64
MODEL = HEADS * WIDTH
STEPS, SEGMENT, CLIP, CHUNK, MAX_POWER = 8, 64, 16, 64, 200
LENGTHS = (32, 128, 512, 2048, 4096, 16384)
OTHER = "sdpa"
"""The form that computes something else, to compare with."""

# The longest sequence at which a form is measured; beyond, loops over pairs of positions, loops over
# positions, maps and attention over all pairs, and torch's GRU take minutes or gigabytes.
LONGEST_CHECKED = 512
LONGEST = {"loops": 32, "steps": 512, "square": 4096, "recurrence": 4096}


class Form(NamedTuple):
    """One way to compute an operation.

    Attributes:
        run: from the inputs to the output
        kind: of LONGEST, or "" for every length
    """

    run: Callable[[], Tensor]
    kind: str = ""


class Case(NamedTuple):
    """An operation at one length.

    Attributes:
        inputs: what gradients are taken of
        forms: by name
    """

    inputs: Sequence[Tensor]
    forms: dict[str, Form]


def leaf(*size: int, device: str) -> Tensor:
    """Numbers that have a gradient."""
    return torch.randn(size, device=device, requires_grad=True)


def attention_inputs(length: int, device: str, queries: int = 0) -> list[Tensor]:
    """Queries, keys and values (B, H, T or S, D)."""
    return [
        leaf(BATCH, HEADS, n, WIDTH, device=device) for n in (queries or length, length, length)
    ]


def heads_of(head: Callable[..., Tensor], *batched: Tensor) -> Tensor:
    """Loop over sentences and heads: *head* of a number and the rows of each (B, H, T, D)."""
    return torch.stack([
        torch.stack([head(h, *(list(x[b, h]) for x in batched)) for h in range(HEADS)])
        for b in range(batched[0].size(0))
    ])  # fmt: skip


def causal(length: int, device: str) -> Tensor:
    """The decoder's additive mask."""
    return torch.full((length, length), float("-inf"), device=device).triu(1)


def regular_heads(device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Decay, angle, sine and dilation of heads with a regular matrix."""
    decay = torch.linspace(-0.6, 0.9, HEADS, device=device).requires_grad_()
    zeros = torch.zeros(HEADS, device=device)
    return decay, zeros, zeros.bool(), torch.ones(HEADS, dtype=torch.int64, device=device)


def rsa(length: int, device: str) -> Case:
    """RSA's self-attention (Huang et al. 2023, eq. 4)."""
    q, k, v = attention_inputs(length, device)
    decay, angle, sine, dilation = regular_heads(device)
    gate = torch.tensor(0.3, device=device, requires_grad=True)
    gates = gate.expand(HEADS).view(-1, 1, 1)

    def kernel() -> Tensor:
        return rem_kernel(decay, angle, sine, dilation, min(length, MAX_POWER + 1), MAX_POWER)

    def matrix() -> Tensor:
        return toeplitz_matrix(kernel(), None, length, length)

    def loops() -> Tensor:
        times = list(range(length))

        def head(h: int, *rows: list[Tensor]) -> Tensor:
            p = naive.rem(decay[h], angle[h], False, 1, times, times, True, MAX_POWER)
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
    """P V alone, without a highest power: a linear recurrence over the values (eqs. 2 and 3)."""
    (v,) = attention_inputs(length, device)[:1]
    decay, angle, sine, dilation = regular_heads(device)

    def recurrence() -> Tensor:
        return torch.stack(naive.regular_recurrence(decay.view(-1, 1), list(v.unbind(2))), dim=2)

    def dense() -> Tensor:
        kernel = rem_kernel(decay, angle, sine, dilation, length)
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

    return Case([q, k, v, *tables], {
        "naive": Form(lambda: heads_of(head, q, k, v), "loops"),
        "products": Form(lambda: relative_attention(q, k, v, *tables, causal(length, device))[0], "square"),
        OTHER: Form(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), "square"),
    })  # fmt: skip


def directional(length: int, device: str) -> Case:
    """Directional self-attention (Shen et al. 2018)."""
    q, k, v = attention_inputs(length, device)

    def head(h: int, *rows: list[Tensor]) -> Tensor:
        return naive.directional_head(*rows, backward=h >= HEADS // 2)

    return Case([q, k, v], {
        "naive": Form(lambda: heads_of(head, q, k, v), "loops"),
        "fused": Form(lambda: directional_attention(q, k, v), "square"),
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

            found.append(naive.biarn(attend, (h0[0, b], h0[1, b]), w_x, w_h, bias, STEPS))
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
            threshold, scale=scale, compiled=compiled,
        )  # fmt: skip
        return plan.from_blocks(both[0] + both[1])

    def head(h: int, q: list[Tensor], k: list[Tensor], v: list[Tensor]) -> Tensor:
        scaled = [x * scale for x in q]
        return sum(naive.srformer_head(
            scaled, k, v, size, queries, weight, leak, threshold, surrogate=True,
        ))  # fmt: skip

    forms = {
        "naive": Form(lambda: heads_of(head, q, k, v), "loops"),
        "by torch": Form(lambda: blocks(False)),
        "in C": Form(lambda: blocks(True)),
        OTHER: Form(lambda: F.scaled_dot_product_attention(q, k, v)),
    }
    if device != "cpu":
        del forms["in C"]
    return Case([q, k, v, weight, leak, threshold], forms)


CASES: dict[str, Callable[[int, str], Case]] = {
    f.__name__: f for f in (rsa, rem_product, relative, directional, biarn, birnn, srformer)
}


def gradients(case: Case, form: Form) -> tuple[Tensor, ...]:
    """Of the sum of the outputs, for every input that has one."""
    return torch.autograd.grad(form.run().sum(), case.inputs, allow_unused=True)


def measurable(case: Case, length: int) -> dict[str, Form]:
    """The forms that are measured at a length."""
    return {n: f for n, f in case.forms.items() if length <= LONGEST.get(f.kind, length)}


def check(case: Case, forms: dict[str, Form]) -> None:
    """All forms but torch's attention give the same numbers and gradients."""
    same = [form for name, form in forms.items() if name != OTHER]
    for form in same[1:]:
        torch.testing.assert_close(form.run(), same[0].run(), rtol=1e-8, atol=1e-10)
        for a, b in zip(gradients(case, form), gradients(case, same[0])):
            torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9 * float(b.abs().max()))


def check_in_double(name: str, length: int, device: str) -> None:
    """`check` an operation with float64, in which rounding makes no neuron fire that should not."""
    torch.set_default_dtype(torch.float64)
    try:
        case = CASES[name](length, device)
        check(case, measurable(case, length))
    finally:
        torch.set_default_dtype(torch.float32)


def runs_of(case: Case, forms: dict[str, Form]) -> Iterator[tuple[str, dict[str, Run]]]:
    """What is timed."""

    def forward(form: Form) -> Run:
        @torch.no_grad()
        def run() -> object:
            return form.run()

        return run

    yield "forward", {name: forward(form) for name, form in forms.items()}
    yield "both", {name: lambda f=form: gradients(case, f) for name, form in forms.items()}


def measure(name: str, length: int, args: argparse.Namespace) -> dict[str, Any]:
    """One operation at one length: all its forms in turns."""
    torch.manual_seed(1)
    if length <= LONGEST_CHECKED:
        check_in_double(name, length, args.device)
    case = CASES[name](length, args.device)
    forms = measurable(case, length)
    row: dict[str, Any] = {"op": name, "length": length, "forms": {n: {} for n in forms}}
    if not forms:
        return row
    for kind, runs in runs_of(case, forms):
        times = in_turns(runs, args.rounds, args.device, args.inner)
        for form, values in times.items():
            row["forms"][form][f"{kind}_ms"] = rounded([t * 1e3 for t in values])
    for form, run in runs.items():  # forward and backward
        row["forms"][form]["peak_mib"] = round(peak_mib(run, args.device), 1)
        found = row["forms"][form]
        print(
            f"{name:12}{length:>6}  {form:24}{middle(found['forward_ms'], 2):>26}"
            f"{middle(found['both_ms'], 2):>28} ms{found['peak_mib']:>9.1f} MiB", flush=True,
        )  # fmt: skip
    return row


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_device(parser)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--inner", type=int, default=1, help="calls of which the fastest counts")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name, length in product(args.only, args.lengths):
        row = measure(name, length, args)
        if row["forms"]:
            rows.append(row)
        if args.output:  # after each, so that nothing is lost
            record(args.output, rows)


if __name__ == "__main__":
    main()
