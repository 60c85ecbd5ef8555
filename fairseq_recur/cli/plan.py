"""Predict what a training costs: memory, tokens a GPU, and hours.

The model of any architecture is computed without its numbers, which takes seconds and no memory,
and its operations are counted. Flags of the model come after --, as in fairseq-train.
docs/planning.md says what the prediction is made of, how it was checked, and its limits.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from fairseq_recur.errors import ConfigError
from fairseq_recur.planning.hardware import GIGA, GPUS, PRECISIONS, own_device
from fairseq_recur.planning.plan import Setup, as_json, make_plan
from fairseq_recur.planning.report import report
from fairseq_recur.planning.timing import Assumptions

HELP = "predict memory, tokens a GPU and hours of a training"

MATMUL = 0.4
BANDWIDTH = 0.6
OVERHEAD = 8.0

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
"""The largest numbers that are taken."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `plan`."""
    parser.add_argument("--arch", required=True, metavar="NAME", help="any architecture of fairseq")
    parser.add_argument(
        "flags", nargs="*", metavar="FLAG", help="after --: flags of fairseq-train for the model"
    )
    _add_text(parser)
    _add_batch(parser)
    _add_device(parser)
    _add_assumptions(parser)
    parser.add_argument("--json", metavar="FILE", help="write the plan there as well")


def _add_text(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--vocabulary", nargs="+", type=int, default=[32768], metavar="N",
        help="entries of the dictionary; two numbers: of the source and of the target",
    )  # fmt: skip
    parser.add_argument(
        "--lengths", nargs=2, type=int, default=[30, 30], metavar=("SOURCE", "TARGET"),
        help="mean lengths of sentences in tokens, the end of the sentence counted",
    )  # fmt: skip
    parser.add_argument(
        "--longest", type=int, metavar="N",
        help="tokens of the longest sentences, for which the memory must suffice (otherwise 256, "
        "or the longer mean length)",
    )  # fmt: skip


def _add_batch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--batch-tokens", type=int, default=25000, metavar="N",
        help="words an update on all GPUs, of the longer side and with padding: "
        "GPUs x --max-tokens x --update-freq",
    )  # fmt: skip
    parser.add_argument(
        "--max-tokens", type=int, default=0, metavar="N",
        help="words at a time on one GPU; 0: the most that fit and divide the batch",
    )  # fmt: skip
    parser.add_argument(
        "--updates", type=int, default=100000, metavar="N", help="of the whole training"
    )


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gpu", required=True, metavar="TYPE",
        help=f"{', '.join(GPUS)}, or custom with the next three",
    )  # fmt: skip
    parser.add_argument("--flops", type=float, metavar="TFLOPS", help="peak of matrix products")
    parser.add_argument("--memory", type=float, metavar="GB", help="memory of one device")
    parser.add_argument("--bandwidth", type=float, metavar="GB/S", help="of the device's memory")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="GPUs of a node")
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="nodes")
    parser.add_argument(
        "--network", type=float, default=12.5, metavar="GB/S", help="of a node, one direction"
    )
    parser.add_argument(
        "--precision", choices=PRECISIONS, default="fp16", help="fp16 and bf16 as fairseq's flags"
    )
    parser.add_argument(
        "--memory-efficient", action="store_true",
        help="fairseq's --memory-efficient-fp16 or -bf16: no fp32 copies",
    )  # fmt: skip


def _add_assumptions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--matmul-efficiency", type=float, default=MATMUL, metavar="SHARE",
        help="of the peak that matrix products reach",
    )  # fmt: skip
    parser.add_argument(
        "--bandwidth-efficiency", type=float, default=BANDWIDTH, metavar="SHARE",
        help="of the bandwidths that are reached",
    )  # fmt: skip
    parser.add_argument(
        "--overhead", type=float, default=OVERHEAD, metavar="US",
        help="microseconds that an operation takes at least",
    )  # fmt: skip
    parser.add_argument(
        "--mfu", type=float, default=0.0, metavar="SHARE",
        help="predict the time of a step by FLOPs alone, at this share of the peak; 0: not so",
    )  # fmt: skip
    parser.add_argument(
        "--reserve", type=float, default=0.1, metavar="SHARE",
        help="of the memory, left for the CUDA context, libraries and fragmentation",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Make the plan and print it."""
    setup = setup_of(args)
    plan = make_plan(setup)
    print(report(setup, plan))
    if args.json:
        Path(args.json).write_text(json.dumps(as_json(setup, plan), indent=1) + "\n")
    return 0


def setup_of(args: argparse.Namespace) -> Setup:
    """What the options ask for.

    Raises:
        ConfigError: they cannot be used
    """
    check(args)
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


def _too_large(args: argparse.Namespace) -> Iterator[str]:
    """Numbers for which nothing could be computed in seconds, or that are none."""
    for name, most in LARGEST.items():
        given = getattr(args, name)
        numbers = given if isinstance(given, list) else [given]
        for number in numbers:
            if number is not None and not number <= most:  # also where it is nan
                flag = "--" + name.replace("_", "-")
                yield f"{flag} {number}: expected at most {most:.12g}"
                break


def check(args: argparse.Namespace) -> None:
    """Raise ConfigError, naming everything that is wrong with the numbers."""
    found: list[str] = []
    positive: dict[str, float] = {
        "--batch-tokens": args.batch_tokens,
        "--updates": args.updates,
        "--gpus": args.gpus,
        "--nodes": args.nodes,
        "--network": args.network,
        "--overhead": args.overhead,
        "--lengths": min(args.lengths),
    }
    found += [f"{flag} {x}: expected more than 0" for flag, x in positive.items() if not x > 0]
    found += _too_large(args)
    if args.max_tokens < 0:
        found.append(f"--max-tokens {args.max_tokens}: expected 0 or more")
    shares = {
        "--matmul-efficiency": args.matmul_efficiency,
        "--bandwidth-efficiency": args.bandwidth_efficiency,
    }
    rule = "expected more than 0 and at most 1"
    found += [f"{flag} {x}: {rule}" for flag, x in shares.items() if not 0 < x <= 1]
    if not 0 <= args.mfu <= 1:
        found.append(f"--mfu {args.mfu}: expected 0 to 1")
    if not 0 <= args.reserve < 1:
        found.append(f"--reserve {args.reserve}: expected 0 to below 1")
    if len(args.vocabulary) > 2 or min(args.vocabulary) < 10:
        found.append(f"--vocabulary {args.vocabulary}: expected one or two numbers from 10 on")
    if args.longest is not None and args.longest < max(args.lengths):
        found.append(
            f"--longest {args.longest} is less than the mean lengths {args.lengths}; give more"
        )
    if args.precision == "fp32" and args.memory_efficient:
        found.append(
            "--memory-efficient goes with --precision fp16 or bf16; "
            "choose one of them, or leave it out"
        )
    if found:
        raise ConfigError("the plan's options cannot be used:\n- " + "\n- ".join(found))
