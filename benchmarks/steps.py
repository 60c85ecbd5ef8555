"""What one step of incremental decoding costs, by itself: python benchmarks/steps.py [--output FILE].

RSA: one self-attention module of the base size, 20 rows (four sentences, beam 5), milliseconds of a step
on average over a sentence of so many; beside fairseq's own module.

SRformer: the attention alone (two sentences, beam 5, eight heads of 64), once the source of so
many keys has been read; beside torch's fused attention over keys and values of which every beam
has a copy, as in fairseq.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from measuring import Run, add_device, in_turns, middle, ratios, record, rounded
from rsa_forms import WIDTH, build
from torch import Tensor, nn

from fairseq_recur.ops.segmented_attention import attend_segments
from fairseq_recur.ops.segments import split_segments

ROWS, BEAM = 20, 5
SENTENCES, HEADS, HEAD, SEGMENT = 2, 8, 64, 64
INNER = 20
"""Calls of a step of SRformer, which takes less than a millisecond."""
KINDS = {
    "dot": {"rsa_form": "dot"},
    "rsa": {"rsa_form": "auto"},
    "rsa, cyclical, no highest power": {
        "rsa_form": "auto",
        "rsa_heads": "2,2,2,2,0,0",
        "rsa_dilations": "2,3",
        "rsa_max_power": 0,
    },
}


@torch.no_grad()
def sentence(module: nn.Module, steps: int, device: str) -> None:
    """Decode one of so many steps."""
    x, state = torch.randn(1, ROWS, WIDTH, device=device), {}
    for _ in range(steps):
        module(x, x, x, incremental_state=state, need_weights=False)


def rsa(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Sentences of different lengths."""
    modules = {k: build("decoder", args.device, **o).eval() for k, o in KINDS.items()}
    rows = []
    for steps in args.steps:
        runs = {name: partial(sentence, m, steps, args.device) for name, m in modules.items()}
        times = in_turns(runs, args.rounds, args.device)
        rows.append(row("rsa", steps, {n: [x / steps for x in t] for n, t in times.items()}, "dot"))
    return rows


def srformer_step(length: int, device: str) -> dict[str, Run]:
    """One position of both attentions for the beams of each sentence."""
    rows, count = SENTENCES * BEAM, -(-length // SEGMENT)
    query = torch.randn(rows, HEADS, 1, HEAD, device=device)
    keys, values = (torch.randn(rows, HEADS, length, HEAD, device=device) for _ in range(2))
    own_keys, own_values = (
        split_segments(x[::BEAM].contiguous(), SEGMENT) for x in (keys, values)
    )
    fired = torch.randn(SENTENCES, HEADS, count, HEAD, HEAD, device=device)
    sentences = torch.arange(SENTENCES, device=device)
    step = torch.full((SENTENCES,), count // 2, device=device)

    def full() -> Tensor:
        return F.scaled_dot_product_attention(query, keys, values)

    def srformer() -> Tensor:
        together = query.unflatten(0, (SENTENCES, BEAM)).squeeze(3).transpose(1, 2).unsqueeze(2)
        k, v, p = (x[sentences, :, step].unsqueeze(2) for x in (own_keys, own_values, fired))
        local, _ = attend_segments(together * HEAD**-0.5, k, v)
        out = local + torch.matmul(together * HEAD**-0.5, p)
        return out.squeeze(2).transpose(1, 2).reshape(query.size())

    return {"full": full, "srformer": srformer}


def srformer(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Sources of different lengths."""
    rows = []
    for length in args.keys:
        runs = srformer_step(length, args.device)
        times = in_turns(runs, args.rounds, args.device, inner=INNER)
        rows.append(row("srformer", length, times, "full"))
    return rows


def row(op: str, length: int, times: dict[str, list[float]], first: str) -> dict[str, Any]:
    """Milliseconds, and how many times as fast as the first in the same round."""
    found = {
        name: {"ms": rounded([x * 1e3 for x in t]), "faster": rounded(ratios(times[first], t))}
        for name, t in times.items()
    }
    for name, numbers in found.items():
        print(f"{op:10}{length:>6}  {name:34}{middle(numbers['ms'], 3):>24} ms"
              f"{middle(numbers['faster'], 2):>22} times as fast", flush=True)  # fmt: skip
    return {"op": op, "length": length, "forms": found}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_device(parser)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, nargs="+", default=[32, 128, 512], help="of RSA")
    parser.add_argument(
        "--keys", type=int, nargs="+", default=[1024, 4096, 16384], help="of SRformer"
    )
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    rows = rsa(args) + srformer(args)
    if args.output:
        record(args.output, rows)


if __name__ == "__main__":
    main()
