"""Target tokens a second in training, beside fairseq's own Transformer.

    python benchmarks/training.py [--arch NAME ...] [--text sentences|LENGTH] [--output FILE]

Every model is in fairseq's trainer, all in one process, on the same batches of real text; in each
round each makes its updates, in another order each time. The first is what the others are
compared with, round by round; beside that stands what is to be expected: the first one's FLOPs over
those of the system, for these batches, as `fairseq-recur plan` counts them. NAME+fused is fairseq's
model with a cross-attention by torch's fused attention in training; NAME+FLAG=VALUE has a flag of its own.
"""

import argparse
import logging
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from measuring import add_device, in_turns, middle, peak_mib, ratios, record, rounded
from systems import SHARED, System, add_models, parse_name, prepare, tokens_of

from fairseq_recur.planning.building import build, sample
from fairseq_recur.planning.tracing import trace

SYSTEMS = (
    "transformer", "transformer+fused", "transformer_biarn", "rsa_transformer", "srformer",
    "transformer_relpos", "transformer_disan", "transformer_rnn_multicolumn",
)  # fmt: skip


def flops(name: str, flags: list[str], vocabulary: int, batches: list[dict[str, Any]]) -> float:
    """Of an update with each of the batches, forward and backward, padding included."""
    arch, own, _ = parse_name(name)
    built = build(arch, [SHARED, *flags, *own], vocabulary, vocabulary, "fp32")
    sides = [(b["net_input"][k] for k in ("src_tokens", "prev_output_tokens")) for b in batches]
    sizes = [(source.size(0), source.size(1), target.size(1)) for source, target in sides]
    return sum(trace(built, sample(built, *size)).flops for size in sizes)


def measure(args: argparse.Namespace, data: Path) -> list[dict[str, Any]]:
    """All systems in turns."""
    systems = [System(name, data, args.flags.split(), args.device) for name in args.arch]
    batches = systems[0].batches("train", args.max_tokens, args.updates)
    tokens = tokens_of(batches)
    sizes = [tuple(batch["net_input"]["src_tokens"].size()) for batch in batches]
    print(f"{tokens} target tokens in {len(batches)} updates a round; sources {sizes}", flush=True)

    def updates(system: System) -> None:
        for batch in batches:
            system.update(batch)

    found = in_turns({s.name: partial(updates, s) for s in systems}, args.rounds, args.device)
    vocabulary = len(systems[0].task.target_dictionary)
    work = {name: flops(name, args.flags.split(), vocabulary, batches) for name in args.arch}
    rows = []
    for system in systems:
        times = found[system.name]
        row = {
            "system": system.name,
            "parameters": system.parameters,
            "tokens_per_second": rounded([tokens / t for t in times]),
            "of_first": rounded(ratios(found[systems[0].name], times)),
            "flops_allow": round(work[systems[0].name] / work[system.name], 3),
            "peak_mib": round(peak_mib(partial(system.update, batches[0]), args.device), 1),
        }
        rows.append(row)
        print(
            f"{system.name:32}{middle(row['tokens_per_second'], 0):>22} tokens/s"
            f"{middle(row['of_first'], 3):>24} of {systems[0].name}, FLOPs allow "
            f"{row['flops_allow']:.3f}, {row['peak_mib']:.0f} MiB",
            flush=True,
        )
    return rows


def main() -> None:
    """Prepare, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_device(parser)
    add_models(parser, SYSTEMS)
    parser.add_argument("--text", default="sentences", help="sentences, or pieces of a source")
    parser.add_argument("--max-tokens", type=int, default=1024, help="of a batch")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--updates", type=int, default=3, help="of each system in each round")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        data = prepare(args.text, args.pieces, args.vocabulary, Path(folder))
        rows = measure(args, data)
    if args.output:
        record(args.output, rows)


if __name__ == "__main__":
    main()
