"""SRformer's cross-attention beside torch's fused full attention.

    python benchmarks/srformer_attention.py [--output FILE]

Two tables. The first: forward and backward of the attention itself (batch 2, 8 heads of 64), in
turns in one run, and the peak of the memory that torch allocates meanwhile, inputs apart. The
second: one step of decoding with a beam, projections apart, once the source has been read; full
attention reads keys and values that every beam has a copy of, as in fairseq.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Callable, Dict, List, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import profile

from fairseq_recur.experiments import machine
from fairseq_recur.ops.segmented_attention import attend_segments, segmented
from fairseq_recur.ops.segmented_recurrent import segmented_recurrent
from fairseq_recur.ops.segments import visits

BATCH, HEADS, WIDTH = 2, 8, 64
LENGTHS = ((128, 1024), (512, 4096), (2048, 16384))
Run = Callable[[], object]


def attention_steps(queries: int, length: int, size: int, compiled: bool) -> Dict[str, Run]:
    """Forward and backward of both attentions on the same inputs."""
    q, k, v = (
        torch.randn(BATCH, HEADS, n, WIDTH, requires_grad=True) for n in (queries, length, length)
    )
    weight = (torch.randn(WIDTH, WIDTH) / WIDTH**0.5).requires_grad_()
    leak, threshold = (torch.tensor(x, requires_grad=True) for x in (1.0, 0.1))
    grad = torch.randn_like(q)

    def full() -> object:
        out = F.scaled_dot_product_attention(q, k, v)
        return torch.autograd.grad(out, (q, k, v), grad)

    def srformer() -> object:
        lengths, targets = (length,) * BATCH, (queries,) * BATCH
        plan = visits(lengths, targets, queries, size, q.device)
        local, recurrent = segmented_recurrent(
            plan.to_blocks(q), segmented(k, size), segmented(v, size), weight, leak, threshold,
            scale=WIDTH**-0.5, compiled=compiled,
        )  # fmt: skip
        out = plan.from_blocks(local + recurrent)
        del local, recurrent
        return torch.autograd.grad(out, (q, k, v, weight, leak, threshold), grad)

    return {"full": full, "srformer": srformer}


def decoding_steps(beam: int, length: int, size: int) -> Dict[str, Run]:
    """One position of both attentions for the beams of each sentence."""
    rows, count = BATCH * beam, -(-length // size)
    query = torch.randn(rows, HEADS, 1, WIDTH)
    keys, values = (torch.randn(rows, HEADS, length, WIDTH) for _ in range(2))
    own_keys, own_values = (segmented(x[::beam].contiguous(), size) for x in (keys, values))
    fired = torch.randn(BATCH, HEADS, count, WIDTH, WIDTH)
    sentences, step = torch.arange(BATCH), torch.full((BATCH,), count // 2)

    def full() -> Tensor:
        return F.scaled_dot_product_attention(query, keys, values)

    def srformer() -> Tensor:
        together = query.unflatten(0, (BATCH, beam)).squeeze(3).transpose(1, 2).unsqueeze(2)
        k, v, p = (x[sentences, :, step].unsqueeze(2) for x in (own_keys, own_values, fired))
        local, _ = attend_segments(together * WIDTH**-0.5, k, v)
        out = local + torch.matmul(together * WIDTH**-0.5, p)
        return out.squeeze(2).transpose(1, 2).reshape(query.size())

    return {"full": full, "srformer": srformer}


def milliseconds(run: Run, inner: int) -> float:
    """The best of some runs."""
    times = []
    for _ in range(inner):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def peak(run: Run) -> float:
    """MiB that torch has allocated at most while it ran, beyond what was there before."""
    with profile(profile_memory=True) as measured:
        run()
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "trace.json")
        measured.export_chrome_trace(trace)
        events = json.loads(Path(trace).read_text())["traceEvents"]
    events = sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: e["ts"])
    before = events[0]["args"]["Total Allocated"] - events[0]["args"]["Bytes"]
    return (max(e["args"]["Total Allocated"] for e in events) - before) / 2**20


def measure(steps: Dict[str, Run], repeats: int, inner: int, memory: bool) -> Dict[str, object]:
    """Times in turns, their ratio repeat by repeat, and memory."""
    for run in steps.values():
        run()
    times: Dict[str, List[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, run in steps.items():
            times[name].append(round(milliseconds(run, inner), 4))
    ratios = [round(a / b, 3) for a, b in zip(times["full"], times["srformer"])]
    row: Dict[str, object] = {"ms": times, "full/srformer": ratios}
    if memory:
        row["peak_mib"] = {name: round(peak(run), 2) for name, run in steps.items()}
    return row


def show(name: str, row: Dict[str, object]) -> None:
    """A line for people: medians, and the range of the ratio."""
    full, own = (statistics.median(row["ms"][x]) for x in ("full", "srformer"))
    ratios = row["full/srformer"]
    line = f"{name:24}{full:12.3f}{own:12.3f}{statistics.median(ratios):8.2f}"
    line += f"  ({min(ratios):.2f}-{max(ratios):.2f})"
    if "peak_mib" in row:
        line += "  MiB {full:.1f} / {srformer:.1f}".format(**row["peak_mib"])
    print(line, flush=True)


def rows(args: argparse.Namespace) -> List[Tuple[str, Dict[str, object]]]:
    """Measure everything that was asked for."""
    found = []
    print(f"{'':24}{'full ms':>12}{'srformer ms':>12}{'ratio':>8}")
    for queries, length in LENGTHS[: args.sizes]:
        name = f"train q {queries} k {length}"
        steps = attention_steps(queries, length, args.segment_size, not args.torch)
        found.append((name, measure(steps, args.repeats, args.inner, memory=True)))
        show(*found[-1])
    for _, length in LENGTHS[: args.sizes]:
        name = f"decode beam {args.beam} k {length}"
        steps = decoding_steps(args.beam, length, args.segment_size)
        found.append((name, measure(steps, args.repeats, 20, memory=False)))
        show(*found[-1])
    return found


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--segment-size", type=int, default=64)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--inner", type=int, default=3, help="runs of which a repeat is the best")
    parser.add_argument("--sizes", type=int, default=3, help="how many of the three sizes")
    parser.add_argument("--torch", action="store_true", help="torch's operations, not ours in C")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    found = dict(rows(args))
    if args.output:
        record = {
            "command": "python benchmarks/srformer_attention.py",
            "options": {k: v for k, v in vars(args).items() if k != "output"},
            "commit": machine.commit(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "threads": torch.get_num_threads(),
            "machine": machine.machine(),
            "rows": found,
        }
        args.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
