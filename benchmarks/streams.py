"""Language models and forecasters of time series: training and decoding, relative to their hosts.

    python benchmarks/streams.py language-models [--arch NAME ...] [--output FILE]
    python benchmarks/streams.py forecasters [--arch NAME ...] [--output FILE]

All models run in fairseq's trainer, in one process and in turns, on the first batches of an epoch
in their order. So a memory is empty in the first update of a round; in the others it has what the
updates before have left there. Words are drawn by Zipf's law; the series has a daily cycle and
noise. Speeds are compared with the first model, and with the model of the same name without rsa_.

Language models decode greedily from one word on; their speeds are in tokens per second.
Forecasters forecast all windows of the batches; theirs are in forecast rows per second.
"""

import argparse
import logging
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from command_lines import command_line, refuse_unused
from decoding import Decoder
from measuring import Run, Times, peak_mib, ratios, rounded
from reports import Report
from streams_data import FORECASTING, LANGUAGE, make_series, make_text, words_of
from systems import System, add_systems, parse_name, tokens_of
from tables import Row
from torch import Tensor

from fairseq_recur.planning.building import build, sample
from fairseq_recur.planning.tracing import trace

Batches = list[dict[str, Any]]
Systems = dict[str, System]

SYSTEMS = {
    LANGUAGE: ["transformer_lm+decoder-layers=14", "xl_lm", "rsa_xl_lm"],
    FORECASTING: ["informer", "rsa_informer"],
}
"""The default of --arch."""


def host_of(name: str, names: Iterable[str]) -> str | None:
    """Return which of the systems is the one without rsa_: itself, if it has none."""
    arch = parse_name(name).arch
    host = arch.removeprefix("rsa_")
    if host == arch:
        return name  # also beside another system of this architecture
    return next((other for other in names if parse_name(other).arch == host), None)


def flops(name: str, args: argparse.Namespace, vocabulary: int) -> int:
    """Count the FLOPs of an update of a language model with a full memory."""
    arch, own, _ = parse_name(name)
    flags = [*args.flags.split(), "--tokens-per-sample", str(args.length), *own]
    built = build(arch, flags, vocabulary, vocabulary, "fp32")
    return trace(built, sample(built, args.rows, args.length, args.length)).flops


def row_of(amounts: dict[str, int], work: dict[str, int]) -> Callable[[str, Times], Row]:
    """Return what makes the row of a system.

    Args:
        amounts: tokens, or rows of the series, of each system in a measurement
        work: FLOPs of each, if they are known
    """

    def row(name: str, times: Times) -> Row:
        first, host = next(iter(times)), host_of(name, times)
        speeds = {one: [amounts[one] / t for t in times[one]] for one in times}
        return {
            "per_second": rounded(speeds[name]),
            "of_first": rounded(ratios(speeds[name], speeds[first])),
            **({"of_host": rounded(ratios(speeds[name], speeds[host]))} if host else {}),
            **({"flops_allow": round(work[first] / work[name], 3)} if work else {}),
        }

    return row


def train(
    systems: Systems, batches: dict[str, Batches], args: argparse.Namespace, report: Report
) -> list[str]:
    """Measure the training of all systems; return the names of those that work."""
    work: dict[str, int] = {}
    if args.kind == LANGUAGE and args.criterion == "cross_entropy":
        sizes = {name: len(system.task.source_dictionary) for name, system in systems.items()}
        work = {name: flops(name, args, sizes[name]) for name in systems}

    def updates(name: str) -> None:
        for batch in batches[name]:
            systems[name].update(batch)

    def finish(name: str) -> Row:
        peak = peak_mib(partial(updates, name), args.device)
        return {"parameters": systems[name].parameters, "peak_mib": round(peak, 1)}

    amounts = {name: tokens_of(batches[name]) for name in systems}
    runs: dict[str, Run] = {name: partial(updates, name) for name in systems}
    return report.add_in_turns(runs, args, row_of(amounts, work), finish, work="training")


def writer(system: System, batches: Batches, args: argparse.Namespace) -> Run:
    """Return what decodes with a language model as fairseq-generate does."""
    decoder = Decoder(system.name, system.model.eval(), system.task, system.cfg)
    tokens = batches[0]["net_input"]["src_tokens"][:, :1]
    first = {"src_tokens": tokens, "src_lengths": torch.ones_like(tokens[:, 0])}
    generator = decoder.generator(1, args.steps, args.steps)
    return lambda: decoder.decode(generator, [{"net_input": first}])


def forecaster(system: System, batches: Batches) -> Run:
    """Return what forecasts the windows of all batches."""
    model = system.model.eval()
    dtype = next(model.parameters()).dtype

    def converted(x: Tensor) -> Tensor:
        return x.to(dtype) if x.is_floating_point() else x

    inputs = [{name: converted(x) for name, x in b["net_input"].items()} for b in batches]

    @torch.no_grad()
    def run() -> None:
        for each in inputs:
            model(**each)

    return run


def decode(
    systems: Systems, batches: dict[str, Batches], args: argparse.Namespace, report: Report
) -> None:
    """Measure the decoding of all systems."""
    runs: dict[str, Run] = {}
    amounts: dict[str, int] = {}
    for name, system in systems.items():
        with report.attempt(work="decoding", system=name):
            if args.kind == FORECASTING:
                runs[name] = forecaster(system, batches[name])
                amounts[name] = tokens_of(batches[name])
            else:
                runs[name] = writer(system, batches[name], args)
                amounts[name] = args.rows * args.steps
    report.add_in_turns(runs, args, row_of(amounts, {}), work="decoding")


def main() -> int:
    """Run the benchmark; return 1 if a system failed."""
    parser = command_line(__doc__, rounds=5)
    parser.add_argument("kind", choices=list(SYSTEMS))
    add_systems(parser, [])
    parser.add_argument(
        "--rows", type=int, default=16, help="streams of text, or windows, per batch"
    )
    parser.add_argument(
        "--length", type=int, default=512, help="tokens of a segment, or rows of a window"
    )
    parser.add_argument(
        "--steps", type=int, default=128, help="tokens to decode, or rows to forecast"
    )
    parser.add_argument("--updates", type=int, default=4, help="per system and round")
    parser.add_argument(
        "--vocabulary", type=int, default=27, help="number of words; 27 as for Text8's letters"
    )
    parser.add_argument(
        "--criterion", default="cross_entropy", choices=["cross_entropy", "adaptive_loss"]
    )
    args = parser.parse_args()
    if args.kind == FORECASTING:
        unused = ("vocabulary", "criterion")
        refuse_unused(parser, args, unused, "for forecasters, which read no words")
    elif args.steps >= args.length:
        parser.error(f"--steps {args.steps}: expected less than --length {args.length}")
    report = Report(args.output)
    systems: Systems = {}
    batches: dict[str, Batches] = {}
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        make = make_series if args.kind == FORECASTING else make_text
        data = make(args, Path(folder))
        for name in args.arch or SYSTEMS[args.kind]:
            with report.attempt(work="training", system=name):
                system = System(name, words_of(name, data, args), args.device)
                batches[name] = system.following(args.updates)
                systems[name] = system
        working = train(systems, batches, args, report)
        decode({name: systems[name] for name in working}, batches, args, report)
    return int(report.errors > 0)


if __name__ == "__main__":
    sys.exit(main())
