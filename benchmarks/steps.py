"""The cost of one step of incremental decoding: python benchmarks/steps.py [--output FILE].

RSA: one self-attention module of base size with 20 rows (four sentences, beam 5). Reports the
milliseconds per step, averaged over a sentence of the given length, for RSA and fairseq's module.

SRformer: only the attention (two sentences, beam 5, eight heads of width 64), after a source of the
given number of keys has been read. The reference is torch's fused attention with a copy of keys and
values for every beam, as in fairseq, and beside it with one copy per sentence, as SRformer has.
"""

import argparse
from functools import partial

import torch
import torch.nn.functional as F
from command_lines import command_line
from measuring import Run, in_turns, milliseconds, ratios, rounded
from reports import Report
from rsa_forms import WIDTH, build
from tables import Row
from torch import Tensor

from fairseq_recur.modules.context import Context
from fairseq_recur.modules.self_attention import SelfAttention
from fairseq_recur.ops.segmented_attention import attend_segments
from fairseq_recur.ops.segments import split_segments

ROWS, BEAM = 20, 5
SENTENCES, HEADS, HEAD, SEGMENT = 2, 8, 64, 64
INNER = 20
"""Calls per measurement of SRformer's step, which takes less than a millisecond."""
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
def sentence(module: SelfAttention, steps: int, device: str) -> None:
    """Decode a sentence of the given length."""
    x, state = torch.randn(1, ROWS, WIDTH, device=device), {}
    for position in range(steps):
        module(x, Context(incremental_state=state, position=position))


def rsa(args: argparse.Namespace, report: Report) -> None:
    """Measure sentences of different lengths."""
    modules = {k: build("decoder", args.device, **o).eval() for k, o in KINDS.items()}
    for steps in args.steps:
        runs = {name: partial(sentence, m, steps, args.device) for name, m in modules.items()}
        times = in_turns(runs, args.rounds, args.device)
        report.add(row("rsa", steps, {n: [x / steps for x in t] for n, t in times.items()}))


def srformer_step(length: int, device: str) -> dict[str, Run]:
    """Return one step of both attentions, for all beams."""
    rows, count = SENTENCES * BEAM, -(-length // SEGMENT)
    query = torch.randn(rows, HEADS, 1, HEAD, device=device)
    keys, values = (torch.randn(rows, HEADS, length, HEAD, device=device) for _ in range(2))
    own_keys, own_values = (split_segments(x[::BEAM].contiguous(), SEGMENT) for x in (keys, values))
    fired = torch.randn(SENTENCES, HEADS, count, HEAD, HEAD, device=device)
    sentences = torch.arange(SENTENCES, device=device)
    step = torch.full((SENTENCES,), count // 2, device=device)

    def full() -> Tensor:
        return F.scaled_dot_product_attention(query, keys, values)

    def beams(x: Tensor) -> Tensor:
        """The rows (N, H, 1, D) as the queries of each sentence: (B, H, beam, D)."""
        return x.unflatten(0, (SENTENCES, BEAM)).squeeze(3).transpose(1, 2)

    shared_keys, shared_values = (x[::BEAM].contiguous() for x in (keys, values))

    def shared() -> Tensor:
        out = F.scaled_dot_product_attention(beams(query), shared_keys, shared_values)
        return out.transpose(1, 2).reshape(query.size())

    def srformer() -> Tensor:
        together = beams(query).unsqueeze(2)
        k, v, p = (x[sentences, :, step].unsqueeze(2) for x in (own_keys, own_values, fired))
        local, _ = attend_segments(together * HEAD**-0.5, k, v)
        out = local + torch.matmul(together * HEAD**-0.5, p)
        return out.squeeze(2).transpose(1, 2).reshape(query.size())

    return {"full": full, "full, one copy per sentence": shared, "srformer": srformer}


def srformer(args: argparse.Namespace, report: Report) -> None:
    """Measure sources of different lengths."""
    for length in args.keys:
        runs = srformer_step(length, args.device)
        report.add(row("srformer", length, in_turns(runs, args.rounds, args.device, inner=INNER)))


def row(op: str, length: int, times: dict[str, list[float]]) -> Row:
    """Report milliseconds, and the speed relative to the first form in the same round."""
    first = next(iter(times.values()))
    forms = {
        name: {"ms": milliseconds(t), "faster": rounded(ratios(first, t))}
        for name, t in times.items()
    }
    return {"op": op, "length": length, "forms": forms}


def main() -> None:
    """Run the benchmark."""
    parser = command_line(__doc__, rounds=7)
    parser.add_argument(
        "--steps", type=int, nargs="+", default=[32, 128, 512], help="sentence lengths for RSA"
    )
    parser.add_argument(
        "--keys", type=int, nargs="+", default=[1024, 4096, 16384], help="sources for SRformer"
    )
    args = parser.parse_args()
    report = Report(args.output)
    rsa(args, report)
    srformer(args, report)


if __name__ == "__main__":
    main()
