"""Training speed in target tokens per second, relative to fairseq's Transformer.

    python benchmarks/training.py [--arch NAME ...] [--text sentences|LENGTH] [--output FILE]

All models run in fairseq's trainer, in one process, on the same batches of real text. In each round
every model makes its updates, in rotating order. Speeds are compared with the first model, round by
round. The expected ratio comes with it: the FLOPs of the first model over those of the system, for
these batches, as `fairseq-recur plan` counts them. NAME+fused is fairseq's model with torch's fused
attention in the cross-attention; NAME+FLAG=VALUE sets a flag for one model.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from command_lines import command_line
from gpu_usage import usage
from measuring import Times, peak_mib, ratios, rounded
from reports import Report
from systems import (
    FLAGS,
    SHARED,
    System,
    add_models,
    add_text,
    flags_of,
    parse_name,
    prepared,
    tokens_of,
)
from tables import Row

from fairseq_recur.planning.building import build, sample
from fairseq_recur.planning.tracing import trace

SYSTEMS = (
    "transformer", "transformer+fused", "transformer_biarn", "rsa_transformer", "srformer",
    "transformer_relpos", "transformer_disan", "transformer_rnn_multicolumn",
)  # fmt: skip


def flops(name: str, flags: list[str], vocabulary: int, batches: list[Row]) -> float:
    """Count the FLOPs of an update with each batch: forward, backward, padding included."""
    arch, own, _ = parse_name(name)
    built = build(arch, [SHARED, *flags, *own], vocabulary, vocabulary, "fp32")
    sides = [(b["net_input"][k] for k in ("src_tokens", "prev_output_tokens")) for b in batches]
    sizes = [(source.size(0), source.size(1), target.size(1)) for source, target in sides]
    return sum(trace(built, sample(built, *size)).flops for size in sizes)


def measure(args: argparse.Namespace, data: Path, report: Report, **more: int) -> None:
    """Measure all systems in turns, and add a row per system that starts with *more*."""
    systems: dict[str, System] = {}
    for name in args.arch:
        with report.attempt(**more, system=name):
            words = [str(data), *FLAGS, *flags_of(args)]
            systems[name] = System(name, words, args.device)
    if not systems:
        return
    first = next(iter(systems.values()))
    batches = first.batches("train", args.max_tokens, args.updates)
    tokens = tokens_of(batches)
    sizes = [tuple(batch["net_input"]["src_tokens"].size()) for batch in batches]
    print(f"{tokens} target tokens in {len(batches)} updates per round; sources: {sizes}")
    vocabulary = len(first.task.target_dictionary)
    work = {name: flops(name, args.flags.split(), vocabulary, batches) for name in systems}

    def updates(system: System) -> None:
        for batch in batches:
            system.update(batch)

    def row(name: str, times: Times) -> Row:
        first = next(iter(times))
        return {
            "parameters": systems[name].parameters,
            "tokens_per_second": rounded([tokens / t for t in times[name]]),
            "of_first": rounded(ratios(times[first], times[name])),
            "flops_allow": round(work[first] / work[name], 3),
        }

    def finish(name: str) -> Row:
        peak = peak_mib(partial(systems[name].update, batches[0]), args.device)
        return {"peak_mib": round(peak, 1), **usage(runs[name], args.device)}

    runs = {name: partial(updates, system) for name, system in systems.items()}
    report.add_in_turns(runs, args, row, finish, **more)


def main() -> int:
    """Run the benchmark; return 1 if a system failed."""
    parser = command_line(__doc__, rounds=7)
    add_models(parser, SYSTEMS, max_tokens=1024)
    add_text(parser)
    parser.add_argument("--updates", type=int, default=3, help="per system and round")
    args = parser.parse_args()
    report = Report(args.output)
    with prepared(args, args.text) as data:
        measure(args, data, report)
    return int(report.errors > 0)


if __name__ == "__main__":
    sys.exit(main())
