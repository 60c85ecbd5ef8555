"""Predict what a training costs: memory, tokens per GPU, and hours.

The model, an encoder-decoder or a language model that reads tokens, is run on tensors without data.
This takes seconds and no memory, and its operations are counted. Flags of the model come after --,
as in fairseq-train.
docs/planning.md describes the method, how it was checked, and its limits.
"""

import argparse
import json
from collections.abc import Iterator

from fairseq_recur.errors import refuse
from fairseq_recur.files import output_problems, write_text
from fairseq_recur.modules.options import flag
from fairseq_recur.planning.building import EXPECTED, model_problems
from fairseq_recur.planning.hardware import (
    GIGA,
    GPUS,
    PRECISIONS,
    device_problems,
    own_device,
)
from fairseq_recur.planning.plan import Setup, as_json, make_plan
from fairseq_recur.planning.report import report
from fairseq_recur.planning.timing import Assumptions

MATMUL = 0.4
BANDWIDTH = 0.6
OVERHEAD = 8.0
NETWORK = 12.5

LARGEST: dict[str, float] = {
    "vocabulary": 2_000_000,
    "lengths": 1_000_000,
    "longest": 1_000_000,
    "batch_tokens": 1_000_000_000,
    "max_tokens": 1_000_000_000,
    "updates": 1_000_000_000,
    "gpus": 100_000,
    "nodes": 100_000,
    **dict.fromkeys(("flops", "memory", "bandwidth", "network", "overhead"), 1e9),
}
"""Upper limits of the options; with larger values a plan would take more than seconds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `plan`."""
    add = parser.add_argument
    add("--arch", required=True, metavar="NAME", help=f"{EXPECTED}; see train --list")
    add("flags", nargs="*", metavar="FLAG", help="after --: fairseq-train's flags for the model")
    add(
        "--vocabulary", nargs="+", type=int, default=[32768], metavar="N",
        help="dictionary size; two numbers: of the source and of the target",
    )  # fmt: skip
    add(
        "--lengths", nargs=2, type=int, default=[30, 30], metavar=("SOURCE", "TARGET"),
        help="mean sentence lengths in tokens, including the end of the sentence",
    )  # fmt: skip
    add(
        "--longest", type=int, metavar="N",
        help="tokens of the longest sentences, which must fit into memory (default: 256, or the "
        "longer mean length)",
    )  # fmt: skip
    add(
        "--batch-tokens", type=int, default=25000, metavar="N",
        help="tokens per update on all GPUs, of the longer side and with padding: "
        "GPUs x --max-tokens x --update-freq",
    )  # fmt: skip
    add(
        "--max-tokens", type=int, default=0, metavar="N",
        help="tokens per step on one GPU; 0: the most that fit and divide the batch",
    )  # fmt: skip
    add("--updates", type=int, default=100000, metavar="N", help="updates of the whole training")
    _add_device(parser)
    _add_assumptions(parser)
    add("--json", metavar="FILE", help="also write the plan to this file")


def _add_device(parser: argparse.ArgumentParser) -> None:
    """Declare the options that describe the machine."""
    add = parser.add_argument
    add(
        "--gpu", required=True, metavar="TYPE",
        help=f"{', '.join(GPUS)}, a name that nvidia-smi prints, or custom with the "
        "next three options",
    )  # fmt: skip
    add("--flops", type=float, metavar="TFLOPS", help="peak speed of matrix products")
    add("--memory", type=float, metavar="GB", help="memory of one device")
    add("--bandwidth", type=float, metavar="GB/S", help="bandwidth of the device's memory")
    add("--gpus", type=int, default=1, metavar="N", help="GPUs per node")
    add("--nodes", type=int, default=1, metavar="N", help="number of nodes")
    add(
        "--network", type=float, default=NETWORK, metavar="GB/S",
        help="network bandwidth per node, in one direction",
    )  # fmt: skip
    add("--precision", choices=PRECISIONS, default="fp16", help="fp16 and bf16 as fairseq's flags")
    add(
        "--memory-efficient", action="store_true",
        help="fairseq's --memory-efficient-fp16 or -bf16: no fp32 copies",
    )  # fmt: skip


def _add_assumptions(parser: argparse.ArgumentParser) -> None:
    """Declare the options for what the device reaches."""
    add = parser.add_argument
    add(
        "--matmul-efficiency", type=float, default=MATMUL, metavar="SHARE",
        help="share of the peak speed that matrix products reach",
    )  # fmt: skip
    add(
        "--bandwidth-efficiency", type=float, default=BANDWIDTH, metavar="SHARE",
        help="share of the bandwidths that is reached",
    )  # fmt: skip
    add(
        "--overhead", type=float, default=OVERHEAD, metavar="US",
        help="minimum time per operation in microseconds",
    )  # fmt: skip
    add(
        "--mfu", type=float, default=0.0, metavar="SHARE",
        help="predict the time of a step from FLOPs only, at this share of the peak; 0: off",
    )  # fmt: skip
    add(
        "--reserve", type=float, default=0.1, metavar="SHARE",
        help="share of the memory for the CUDA context, libraries and fragmentation",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Make the plan, write it and print it."""
    setup = setup_of(args)
    plan = make_plan(setup)
    if args.json:  # before the report, which standard output may refuse
        write_text(args.json, json.dumps(as_json(setup, plan), indent=1) + "\n")
    print(report(setup, plan))
    return 0


def setup_of(args: argparse.Namespace) -> Setup:
    """Convert the options.

    Raises:
        ConfigError: options are out of range or contradict each other
    """
    refuse("invalid options of plan", _problems(args))
    return Setup(
        arch=args.arch,
        flags=args.flags,
        vocabulary=(args.vocabulary * 2)[:2],
        lengths=args.lengths,
        longest=args.longest or max(256, *args.lengths),
        precision=args.precision,
        memory_efficient=args.memory_efficient,
        device=own_device(args.gpu, args.flops, args.memory, args.bandwidth),
        gpus=args.gpus,
        nodes=args.nodes,
        network=args.network * GIGA,
        batch=args.batch_tokens,
        max_tokens=args.max_tokens,
        updates=args.updates,
        reserve=args.reserve,
        assumed=Assumptions(
            args.matmul_efficiency, args.bandwidth_efficiency, args.overhead / 1e6, args.mfu
        ),
    )


def _problems_of_device(args: argparse.Namespace) -> Iterator[str]:
    """Yield what is wrong with the device, or with the precision on it."""
    described = args.gpu, args.flops, args.memory, args.bandwidth
    found = list(device_problems(*described))
    yield from found
    device = None if found else own_device(*described)
    if device and args.precision not in device.peak:
        yield (
            f"--precision {args.precision}: {device.name} does not support it; expected one of "
            f"{', '.join(device.peak)}"
        )


def _problems(args: argparse.Namespace) -> Iterator[str]:
    """Yield all that is wrong with the options."""
    yield from model_problems(args.arch, args.flags)
    yield from _problems_of_device(args)
    for name in ("batch_tokens", "updates", "gpus", "nodes", "network", "overhead"):
        value = getattr(args, name)
        if not value > 0:
            yield f"{flag(name)} {value}: expected more than 0"
    if not min(args.lengths) > 0:
        yield f"--lengths {min(args.lengths)}: expected more than 0"
    for name, most in LARGEST.items():
        values = getattr(args, name)
        for value in values if isinstance(values, list) else [values]:
            if value is not None and not value <= most:  # also true of nan
                yield f"{flag(name)} {value}: expected at most {most:.12g}"
                break
    if args.max_tokens < 0:
        yield f"--max-tokens {args.max_tokens}: expected 0 or more"
    for name in ("matmul_efficiency", "bandwidth_efficiency"):
        value = getattr(args, name)
        if not 0 < value <= 1:
            yield f"{flag(name)} {value}: expected more than 0 and at most 1"
    if not 0 <= args.mfu <= 1:
        yield f"--mfu {args.mfu}: expected 0 to 1"
    if not 0 <= args.reserve < 1:
        yield f"--reserve {args.reserve}: expected at least 0 and less than 1"
    if len(args.vocabulary) > 2 or min(args.vocabulary) < 10:
        yield f"--vocabulary {args.vocabulary}: expected one or two numbers, at least 10 each"
    if args.longest is not None and args.longest < max(args.lengths):
        yield f"--longest {args.longest} is less than the mean lengths {args.lengths}; increase it"
    yield from output_problems(args.json)
    if args.nodes == 1 and args.network != NETWORK:
        yield f"--network {args.network:g} has no effect with --nodes 1; leave it out"
    for name, default in (("matmul_efficiency", MATMUL), ("overhead", OVERHEAD)):
        value = getattr(args, name)
        if args.mfu > 0 and value != default:
            yield f"{flag(name)} {value:g} has no effect with --mfu; leave out one of them"
    if args.precision == "fp32" and args.memory_efficient:
        yield "--memory-efficient needs --precision fp16 or bf16, found fp32; change one of them"
