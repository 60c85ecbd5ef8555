"""Training speed in target tokens per second, relative to fairseq's Transformer.

    python benchmarks/training.py [--arch NAME ...] [--text sentences|LENGTH] [--output FILE]

All models run in fairseq's trainer, in one process, on the same batches of real text. In each round
every model makes its updates, in rotating order. Speeds are compared with the first model, round by
round. The expected ratio comes with it: the FLOPs of the first model over those of the system, for
these batches, as `fairseq-recur plan` counts them. NAME+fused is fairseq's model with torch's fused
attention in the cross-attention; NAME+FLAG=VALUE sets a flag for one model.
"""

import argparse
from functools import partial
from pathlib import Path

from measuring import Report, Row, command_line, in_turns, peak_mib, ratios, rounded
from systems import (
    SHARED,
    System,
    add_models,
    add_text,
    flags_of,
    parse_name,
    prepared,
    tokens_of,
)

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
    systems = [System(name, data, flags_of(args), args.device) for name in args.arch]
    batches = systems[0].batches("train", args.max_tokens, args.updates)
    tokens = tokens_of(batches)
    sizes = [tuple(batch["net_input"]["src_tokens"].size()) for batch in batches]
    print(f"{tokens} target tokens in {len(batches)} updates per round; sources: {sizes}")

    def updates(system: System) -> None:
        for batch in batches:
            system.update(batch)

    times = in_turns({s.name: partial(updates, s) for s in systems}, args.rounds, args.device)
    vocabulary = len(systems[0].task.target_dictionary)
    work = {name: flops(name, args.flags.split(), vocabulary, batches) for name in args.arch}
    first = systems[0].name
    for system in systems:
        report.add({
            **more,
            "system": system.name,
            "parameters": system.parameters,
            "tokens_per_second": rounded([tokens / t for t in times[system.name]]),
            "of_first": rounded(ratios(times[first], times[system.name])),
            "flops_allow": round(work[first] / work[system.name], 3),
            "peak_mib": round(peak_mib(partial(system.update, batches[0]), args.device), 1),
        })  # fmt: skip


def main() -> None:
    """Run the benchmark."""
    parser = command_line(__doc__, rounds=7)
    add_models(parser, SYSTEMS, max_tokens=1024)
    add_text(parser)
    parser.add_argument("--updates", type=int, default=3, help="per system and round")
    args = parser.parse_args()
    with prepared(args, args.text) as data:
        measure(args, data, Report(args.output))


if __name__ == "__main__":
    main()
