"""Compare plans with measured or published speeds: python benchmarks/planning.py WHAT.

``papers`` prints the plans for the setups of the papers, and ``published`` those for training runs
with a published speed. ``measure`` trains small models on this CPU and predicts their speed from
three measurements: the peak of a matrix product, the bandwidth of a copy and the time of a small
operation.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from command_lines import command_line, refuse_unused
from reports import record

import fairseq_recur  # noqa: F401  (registers the presets)
from fairseq_recur.cli import build_parser
from fairseq_recur.cli.plan import BANDWIDTH, MATMUL, setup_of
from fairseq_recur.optim.adamw_fused import FusedAdamW
from fairseq_recur.planning.building import build, sample
from fairseq_recur.planning.hardware import own_device
from fairseq_recur.planning.memory import bytes_per_parameter
from fairseq_recur.planning.plan import Plan, Setup, count_parameters, make_plan
from fairseq_recur.planning.timing import Assumptions, step_seconds
from fairseq_recur.planning.tracing import trace

WMT14 = "--vocabulary 32768 --lengths 30 30 --batch-tokens 25000 --precision fp16"
SHARED = "-- --share-all-embeddings"
LONG = "--vocabulary 50264 --lengths 800 70 --longest 1024 --batch-tokens 65536 --precision fp16"
A100 = "--gpu a100-80 --gpus 8"
SYSTEMS = ("transformer", "transformer_biarn", "srformer", "rsa_transformer")

PAPERS: list[str] = [
    *(f"--arch {a}_wmt_en_de {A100} --updates 100000 {WMT14} {SHARED}" for a in SYSTEMS),
    *(
        f"--arch transformer_biarn_wmt_en_de --gpu {gpu} --updates 100000 {WMT14} {SHARED}"
        for gpu in ("v100-32 --gpus 8", "h100 --gpus 8", "rtx4090 --gpus 1")
    ),
    *(
        f"--arch {a}_wmt_en_de_big {A100} --updates 300000 {WMT14} {SHARED}"
        for a in ("transformer", "transformer_biarn")
    ),
    f"--arch transformer_biarn_wmt_zh_en {A100} --updates 100000 {WMT14}",
    *(
        f"--arch {a} {A100} --updates 20000 {LONG}"
        for a in ("bart_base", "srformer_bart_base", "srformer_bart_large")
    ),
]


class Published(NamedTuple):
    """A training run with a published speed.

    Attributes:
        source: what was trained, and where the speed was published
        words: target words per second
        options: options of `fairseq-recur plan`
    """

    source: str
    words: float
    options: str


PUBLISHED = [
    Published(
        "base, fp32, 4 V100 (fairseq#940, 'more than ~73k')", 73e3,
        "--arch transformer_wmt_en_de --gpu v100-16 --gpus 4 --precision fp32 --batch-tokens 14000 "
        f"--max-tokens 3500 --vocabulary 30000 {SHARED}",
    ),
    Published(
        "base, fp16, 4 V100 (fairseq#940, 'at least 160k')", 160e3,
        "--arch transformer_wmt_en_de --gpu v100-16 --gpus 4 --precision fp16 --batch-tokens 14000 "
        f"--max-tokens 3500 --vocabulary 30000 {SHARED}",
    ),
    Published(
        "big, fp16, 128 V100 (fairseq#361: 80k updates of 617k words in 30,878 s)",
        80e3 * 617e3 / 30878,
        "--arch transformer_vaswani_wmt_en_de_big --gpu v100-16 --gpus 8 --nodes 16 "
        f"--precision fp16 --batch-tokens 655360 --max-tokens 5120 --vocabulary 44512 {SHARED}",
    ),
]  # fmt: skip


def plan_of(options: str) -> tuple[Setup, Plan]:
    """Compute a plan as `fairseq-recur plan` does."""
    setup = setup_of(build_parser().parse_args(["plan", *options.split()]))
    return setup, make_plan(setup)


def print_table(rows: Iterable[Sequence[str]]) -> None:
    """Print rows as Markdown as soon as they are computed; the first is the header."""
    for number, row in enumerate(rows):
        print("| " + " | ".join(row) + " |", flush=True)
        if number == 0:
            print("| --- |" + " ---: |" * (len(row) - 1))


def papers() -> Iterator[list[str]]:
    """Yield the plans for the setups of the papers."""
    yield ["model", "GPUs", "tokens per update", "parameters, M", "MFLOPs per token", "GB",
           "tokens that fit", "max-tokens x update-freq", "updates/s", "MFU", "updates",
           "hours"]  # fmt: skip
    for options in PAPERS:
        setup, plan = plan_of(options)
        used = plan.memory.static + plan.memory.activations(plan.max_tokens)
        hours = setup.updates * plan.seconds.total / 3600
        yield [
            f"`{setup.arch}`", f"{setup.gpus} x {setup.device.name}", f"{setup.batch:,}",
            f"{plan.parameters / 1e6:.1f}", f"{sum(plan.flops.values()) / 1e6:,.0f}",
            f"{used / 1e9:.1f}", f"{plan.fits:,}", f"{plan.max_tokens} x {plan.update_freq}",
            f"{plan.updates_per_second:.1f}", f"{plan.mfu:.0%}",
            f"{setup.updates // 1000}k", f"{hours:.1f}",
        ]  # fmt: skip


def published() -> Iterator[list[str]]:
    """Yield predicted and published words per second."""
    yield ["training", "published words/s", "predicted", "predicted/published"]
    for known in PUBLISHED:
        setup, plan = plan_of(known.options)
        words = setup.batch * plan.updates_per_second
        yield [known.source, f"{known.words:,.0f}", f"{words:,.0f}", f"{words / known.words:.2f}"]


def median_seconds(function: Callable[[], Any], repeats: int) -> float:
    """Time a call on one thread in CPU time, which other programs affect less than wall time."""
    function()  # warm-up
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return statistics.median(times)


def machine(repeats: int) -> dict[str, float]:
    """Measure this CPU: peak in TFLOP/s, bandwidth in GB/s, microseconds per small operation."""
    a, b = torch.randn(512, 512), torch.randn(512, 2048)
    peak = 2 * 512 * 512 * 2048 / median_seconds(lambda: a @ b, repeats)
    x = torch.randn(32 * 2**20 // 4)
    y = torch.empty_like(x)
    copied = 2 * x.numel() * 4 / median_seconds(lambda: y.copy_(x), repeats)
    small = torch.randn(8, 8, requires_grad=True)

    def operations() -> None:
        z = small
        for _ in range(100):
            z = z * 1.5
        z.sum().backward()

    # Each of the 100 multiplications has another one in its backward pass.
    overhead = median_seconds(operations, repeats) / 200
    return {"flops": peak / 1e12, "bandwidth": copied / 1e9, "overhead": overhead * 1e6}


MODELS = ("transformer", "transformer_biarn_tiny", "transformer_rnn_multicolumn_tiny")
SHARES = {"all of it": (1.0, 1.0), "the defaults": (MATMUL, BANDWIDTH)}
TINY = ("--encoder-embed-dim 128 --encoder-ffn-embed-dim 512 --encoder-layers 2 --decoder-layers 2 "
        "--encoder-attention-heads 4 --decoder-attention-heads 4").split()  # fmt: skip


def updates_a_second(arch: str, flags: list[str], sentences: int, repeats: int) -> float:
    """Measure training without data loading: forward, backward, gradient norm, fused AdamW."""
    torch.manual_seed(1)
    built = build(arch, flags, 2000, 2000, "fp32", "cpu")
    batch = sample(built, sentences, 25, 25)
    optimizer = FusedAdamW(built.model.parameters(), lr=1e-4)

    def update() -> None:
        optimizer.zero_grad(set_to_none=True)
        built.criterion(built.model, batch)[0].backward()
        torch.nn.utils.clip_grad_norm_(built.model.parameters(), 1.0)
        optimizer.step()

    return 1 / median_seconds(update, repeats)


def predicted_seconds(
    arch: str, flags: list[str], sentences: int, can: dict[str, float], shares: Sequence[float]
) -> dict[str, float]:
    """Predict the time of an update that reaches *shares* of peak and bandwidth."""
    device = own_device("custom", can["flops"], 8.0, can["bandwidth"])
    built = build(arch, flags, 2000, 2000, "fp32")
    operations = trace(built, sample(built, sentences, 25, 25)).operations
    assumed = Assumptions(*shares, can["overhead"] / 1e6)
    traffic = count_parameters(built) * bytes_per_parameter("fp32", False).traffic
    step = step_seconds(operations, device, "fp32", assumed)
    return {**step, "optimizer": traffic / (device.bandwidth * assumed.bandwidth)}


def measure(repeats: int) -> list[dict[str, Any]]:
    """Predict and measure updates per second; measure the machine again before each model."""
    rows = []
    for arch in MODELS:
        flags = [] if arch.endswith("_tiny") else TINY
        for sentences in (4, 32):
            can = machine(repeats)
            measured = updates_a_second(arch, flags, sentences, repeats)
            row = {
                "arch": arch, "sentences": sentences, "words": 25 * sentences, "machine": can,
                "measured": measured,
            }  # fmt: skip
            for name, shares in SHARES.items():
                seconds = predicted_seconds(arch, flags, sentences, can, shares)
                predicted = 1 / sum(seconds.values())
                row[name] = {
                    "updates_a_second": predicted, "of_measured": predicted / measured,
                    "seconds": seconds,
                }  # fmt: skip
            rows.append(row)
    return rows


def measured(rows: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Format the rows of `measure`."""
    yield ["model", "tokens per update", "GFLOP/s", "GB/s", "us", "measured updates/s",
           *(f"predicted with {name}" for name in SHARES)]  # fmt: skip
    for r in rows:
        can, predicted = r["machine"], [r[name] for name in SHARES]
        yield [
            f"`{r['arch']}`", str(r["words"]), f"{can['flops'] * 1e3:.1f}",
            f"{can['bandwidth']:.1f}", f"{can['overhead']:.1f}", f"{r['measured']:.2f}",
            *(f"{p['updates_a_second']:.2f} (x {p['of_measured']:.2f})" for p in predicted),
        ]  # fmt: skip


def main() -> None:
    """Print a Markdown table; with --output, also write the measurement."""
    parser = command_line(__doc__, device=False)
    parser.add_argument("what", choices=["papers", "published", "measure"])
    parser.add_argument("--repeats", type=int, default=9, help="calls per measurement")
    args = parser.parse_args()
    if args.what != "measure":
        unused = ("output", "repeats")
        refuse_unused(parser, args, unused, f"for {args.what}, which measures nothing")
        print_table(papers() if args.what == "papers" else published())
        return
    torch.set_num_threads(1)
    rows = measure(args.repeats)
    print_table(measured(rows))
    if args.output:
        record(args.output, rows)


if __name__ == "__main__":
    main()
