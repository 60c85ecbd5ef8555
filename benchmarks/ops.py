"""Every operation in all its forms: plain loops, fast forms, and torch's attention for comparison.

    python benchmarks/ops.py [--only NAME ...] [--lengths N ...] [--output FILE]

Batches of two sequences, eight heads of width 64 (networks: width 512), float32. Where encoder and
decoder differ, the decoder's operation is measured. All forms of an operation compute the same
function of the same inputs. This is checked in float64 before the measurement, up to 512 positions.
The exception is "sdpa", torch's fused attention without recurrence: it shows the cost of standard
attention. Times cover the forward pass, and forward plus backward. Memory is torch's peak
allocation, without the inputs.

Where Triton kernels compute a form, it is also measured without them, and the row has the largest
difference of the two. "limit_ms" is how long the device takes to copy as many bytes as the inputs,
the output and their gradients have: no form can be faster, unless these fit into a cache. A form
that fails has an error in place of measurements: a kernel that does not compile, or too little
memory.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import product
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.nn.functional as F
from measuring import (
    KERNELS,
    Report,
    Row,
    Run,
    command_line,
    failure,
    in_turns,
    milliseconds,
    peak_mib,
    rounded,
    seconds,
)
from torch import Tensor, nn

from fairseq_recur.ops import naive
from fairseq_recur.ops.attention import (
    attention_map,
    directional_attention,
    dot_product_attention,
)
from fairseq_recur.ops.mixture import mixed_map, mixed_outputs
from fairseq_recur.ops.recurrence_encoder import additive_attention, attentive_recurrence
from fairseq_recur.ops.rem import recurrent_product, rem_kernel
from fairseq_recur.ops.segmented_recurrent import segmented_recurrent
from fairseq_recur.ops.segments import segment_schedule, split_segments
from fairseq_recur.ops.shaw import relative_attention
from fairseq_recur.ops.toeplitz import banded_product, shared_product, toeplitz_matrix
from fairseq_recur.ops.triton import dispatch

BATCH, HEADS, WIDTH = 2, 8, 64
MODEL = HEADS * WIDTH
STEPS, SEGMENT, CLIP, CHUNK, MAX_POWER = 8, 64, 16, 64, 200
LENGTHS = (32, 128, 512, 2048, 4096, 16384)
OTHER = "sdpa"
"""The form that computes a different function, for comparison."""

NAIVE = "naive"
"""The form as loops."""

TORCHS = ", by torch"
"""What the name of a form without its Triton kernels ends with."""

COPIED = 2**26
"""Bytes that are copied to measure the device's bandwidth; on a GPU four times as many."""

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

# The longest sequence for each kind of form: loops over pairs of positions, loops over positions,
# attention over all pairs, and torch's GRU. Beyond it they take minutes or gigabytes.
LONGEST_CHECKED = 512
LONGEST = {"loops": 32, "steps": 512, "square": 4096, "recurrence": 4096}


class Form(NamedTuple):
    """One way to compute an operation.

    Attributes:
        run: computes the output
        kind: key of LONGEST, or "" if there is no limit
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


def regular_heads(device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return decay, angle, sine and dilation of heads with regular matrices."""
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
    """Only P V, without a highest power: a linear recurrence over the values (eqs. 2 and 3)."""
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

    def products() -> Tensor:
        return relative_attention(q, k, v, *tables, causal(length, device))[0]

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


def uses_kernels(form: Form) -> bool:
    """Whether Triton kernels compute a form: whether `importable`, the last condition, is asked."""
    with patch.object(dispatch, "importable", wraps=dispatch.importable) as asked:
        with suppress(Exception):  # it comes again where the form is measured
            form.run()
    return asked.called and dispatch.importable()


def by_torch(form: Form) -> Form:
    """Return a form without Triton kernels."""

    def run() -> Tensor:
        with patch.dict(os.environ, {KERNELS: "0"}):
            return form.run()

    return form._replace(run=run)


def with_torchs(forms: dict[str, Form]) -> dict[str, Form]:
    """Add to each form that Triton kernels compute the same without them."""
    found = {}
    for name, form in forms.items():
        found[name] = form
        if uses_kernels(form):
            found[name + TORCHS] = by_torch(form)
    return found


def difference(case: Case, one: Form, other: Form) -> float:
    """Return the largest difference of two forms' outputs and gradients, by the largest value."""
    pairs = [(one.run(), other.run()), *zip(gradients(case, one), gradients(case, other))]
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in pairs)


def bytes_per_second(device: str) -> float:
    """Measure how many bytes the device reads and writes while it copies."""
    source = torch.ones(COPIED * (1 if device == "cpu" else 4), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * len(source) / min(seconds(lambda: target.copy_(source), device) for _ in range(9))


def limits(case: Case, form: Form, speed: float) -> Row:
    """Return the milliseconds in which inputs, output and gradients are read and written once."""
    with torch.no_grad():
        out = form.run()
    sizes = [x.numel() * x.element_size() for x in (*case.inputs, out)]
    return dict(zip(("forward", "both"), rounded([1e3 * sum(sizes) * n / speed for n in (1, 2)])))


def gradients(case: Case, form: Form) -> tuple[Tensor, ...]:
    """Differentiate the sum of the outputs with respect to the inputs."""
    return torch.autograd.grad(form.run().sum(), case.inputs, allow_unused=True)


def measurable(case: Case, length: int) -> dict[str, Form]:
    """Return the forms that are measured at a length."""
    return {n: f for n, f in case.forms.items() if length <= LONGEST.get(f.kind, length)}


def check(case: Case, forms: dict[str, Form]) -> None:
    """Assert that all forms but torch's attention give the same outputs and gradients."""
    same = [form for name, form in forms.items() if name != OTHER]
    if len(same) < 2:
        return
    output, expected = same[0].run(), gradients(case, same[0])  # once: loops take seconds
    for form in same[1:]:
        torch.testing.assert_close(form.run(), output, rtol=1e-8, atol=1e-10)
        for a, b in zip(gradients(case, form), expected):
            torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9 * float(b.abs().max()))


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make tensors of another dtype."""
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@default_dtype(torch.float64)
def check_in_double(name: str, length: int, device: str) -> None:
    """Check an operation in float64, where rounding cannot make a neuron fire by mistake."""
    case = CASES[name](length, device)
    check(case, measurable(case, length))


def runs_of(case: Case, forms: dict[str, Form]) -> Iterator[tuple[str, dict[str, Run]]]:
    """Yield the functions to time."""

    def forward(form: Form) -> Run:
        @torch.no_grad()
        def run() -> object:
            return form.run()

        return run

    yield "forward", {name: forward(form) for name, form in forms.items()}
    yield "both", {name: lambda f=form: gradients(case, f) for name, form in forms.items()}


def measure(name: str, length: int, args: argparse.Namespace, speed: float) -> Row:
    """Measure all forms of an operation at one length, in turns.

    Args:
        name: of the operation
        length: of the sequences
        args: the program's
        speed: bytes per second of the device
    """
    torch.manual_seed(1)
    case = CASES[name](length, args.device)
    chosen = measurable(case, length)
    if args.no_naive:
        chosen.pop(NAIVE, None)
    forms = with_torchs(chosen)
    found: dict[str, Row] = {form: {} for form in forms}

    def failed(form: str, error: Exception) -> None:
        found[form] = {**failure(error), **found[form]}

    for form in (form for form in forms if form + TORCHS in forms):
        try:
            found[form]["difference"] = difference(case, forms[form], forms[form + TORCHS])
        except Exception as error:
            failed(form, error)
    for kind, runs in runs_of(case, forms):
        try:
            timed = in_turns(runs, args.rounds, args.device, args.inner, failed)
            for form, times in timed.items():
                found[form][f"{kind}_ms"] = milliseconds(times)
                if kind == "both":
                    found[form]["peak_mib"] = round(peak_mib(runs[form], args.device), 1)
        except Exception as error:  # after which a GPU may compute nothing any more
            for form in runs:
                failed(form, error)
    row: Row = {"op": name, "length": length, "forms": found}
    own = next((form for form in forms if form != OTHER and "forward_ms" in found[form]), None)
    if own is not None:
        try:
            row["limit_ms"] = limits(case, forms[own], speed)
        except Exception as error:
            failed(own, error)
    return row


def main() -> int:
    """Run the benchmark; return 1 if a form failed."""
    parser = command_line(__doc__, rounds=5, inner=1)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--precision", default="fp32", choices=DTYPES)
    parser.add_argument(
        "--no-naive", action="store_true", help="check the loops, but do not measure them"
    )
    args = parser.parse_args()
    speed = bytes_per_second(args.device)
    report = Report(args.output, precision=args.precision, gb_per_second=round(speed / 1e9, 1))
    for name, length in product(args.only, args.lengths):
        wrong: Row = {}
        row: Row = {"op": name, "length": length, "forms": {}}
        try:
            if length <= LONGEST_CHECKED:
                check_in_double(name, length, args.device)
        except Exception as error:
            wrong["check"] = failure(error)
        try:
            with default_dtype(DTYPES[args.precision]):
                row = measure(name, length, args, speed)
        except Exception as error:
            wrong["measurement"] = failure(error)
        row["forms"] |= wrong
        if row["forms"]:
            report.add(row)
        report.errors += sum("error" in form for form in row["forms"].values())
    return int(report.errors > 0)


if __name__ == "__main__":
    sys.exit(main())
