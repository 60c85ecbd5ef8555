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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import product
from unittest.mock import patch

import torch
from command_lines import command_line
from measuring import Run, in_turns, milliseconds, peak_mib, rounded, seconds
from op_cases import CASES, OTHER, Case, Form
from reports import KERNELS, Report, failure
from tables import Row
from torch import Tensor

from fairseq_recur.ops.triton import dispatch

LENGTHS = (32, 128, 512, 2048, 4096, 16384)
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


def uses_kernels(form: Form) -> bool:
    """Whether Triton kernels compute a form: whether `obstacle`, the last condition, is asked."""
    with patch.object(dispatch, "obstacle", wraps=dispatch.obstacle) as asked:
        with suppress(Exception):  # it comes again where the form is measured
            form.run()
    return asked.called and not dispatch.obstacle()


def by_torch(form: Form) -> Form:
    """Return a form without Triton kernels."""
    before = os.environ.get(KERNELS, "1")

    def run() -> Tensor:
        os.environ[KERNELS] = "0"  # unlike `patch.dict`, which copies it all, that takes no time
        try:
            return form.run()
        finally:
            os.environ[KERNELS] = before

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
