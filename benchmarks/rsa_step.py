"""What a decoding step of RSA costs beside standard attention: python benchmarks/rsa_step.py

One self-attention module of the base size, 20 rows (four sentences, beam 5), from the first step on;
fairseq's own module and RSA with and without a highest power take turns.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Dict, List

import torch
from rsa_forms import WIDTH, build, provenance
from torch import nn

ROWS = 20
KINDS = {
    "dot": dict(rsa_form="dot"),
    "rsa": dict(rsa_form="auto"),
    "rsa, cyclical, no highest power": dict(
        rsa_form="auto", rsa_heads="2,2,2,2,0,0", rsa_dilations="2,3", rsa_max_power=0
    ),
}


@torch.no_grad()
def milliseconds(module: nn.Module, steps: int, device: str) -> float:
    """Of a step, on average over a sentence of so many."""
    x, state = torch.randn(1, ROWS, WIDTH, device=device), {}
    start = time.perf_counter()
    for _ in range(steps):
        module(x, x, x, incremental_state=state, need_weights=False)
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps * 1e3


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--steps", type=int, nargs="+", default=[32, 128, 512])
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    modules = {k: build("decoder", args.device, **o).eval() for k, o in KINDS.items()}
    rows = []
    for steps in args.steps:
        times: Dict[str, List[float]] = {name: [] for name in modules}
        for _ in range(args.repeats):
            for name, module in modules.items():
                times[name].append(round(milliseconds(module, steps, args.device), 4))
        rows.append({"steps": steps, "ms": times})
        for name, t in times.items():
            ratios = [a / b for a, b in zip(t, times["dot"])]
            print(
                f"{steps:>5} steps  {name:32} {statistics.median(t):.3f} ms "
                f"({min(t):.3f}-{max(t):.3f}), of dot {statistics.median(ratios):.2f}",
                flush=True,
            )
    if args.output:
        record = {**provenance(args), "command": "python benchmarks/rsa_step.py", "rows": rows}
        args.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
