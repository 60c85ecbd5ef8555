"""How speed scales with the source length, and training with the number of processes.

    python benchmarks/scaling.py length [--lengths N ...] [--arch NAME ...] [--output FILE]
    python benchmarks/scaling.py decoding [--lengths N ...] [--arch NAME ...] [--output FILE]
    python benchmarks/scaling.py processes [--processes N ...] [--arch NAME ...] [--output FILE]

"length" is `training.py` at each length, with two sentences per batch. "decoding" is `decoding.py`
at each length, with one such batch, random weights and outputs of a sixteenth of the source, as
long as the targets in training. "processes" runs `fairseq-recur train` under torchrun: the batch
size per process and the number of batches per update stay the same (--update-freq), and the
processes share the cores. So each number of processes has to divide the largest. Words per second
are those of fairseq's log, without the first updates, and are compared with one process.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import decoding
import training
from command_lines import command_line, refuse_unused
from measuring import ratios, rounded, turns
from reports import Report
from systems import TARGET_SHARE, add_models, flags_of, parse_name, prepared, train_by_command

UNUSED = {
    "length": ("processes", "max-tokens", "beam"),
    "decoding": ("processes", "max-tokens", "updates"),
    "processes": ("lengths", "beam"),
}


def at_lengths(args: argparse.Namespace) -> Iterator[tuple[int, argparse.Namespace, Path]]:
    """Yield every length, with the options and the data for batches of two such sources."""
    for length in args.lengths:
        longest = f"--max-source-positions {length + 1} --max-target-positions {length}"
        own = argparse.Namespace(**vars(args))
        own.max_tokens = 2 * (length + 1)  # two sources with their end-of-sentence tokens
        own.flags = f"{args.flags} {longest}"
        with prepared(own, str(length)) as data:
            yield length, own, data


def lengths(args: argparse.Namespace, report: Report) -> None:
    """Measure the training of every system at every length."""
    for length, own, data in at_lengths(args):
        training.measure(own, data, report, source=length)


def decoding_lengths(args: argparse.Namespace, report: Report) -> None:
    """Measure beam search with every system at every length."""
    for length, own, data in at_lengths(args):
        own.checkpoints, own.batches, own.length = None, 1, length // TARGET_SHARE
        systems = list(decoding.decoders(own, data, report))
        if systems:
            decoding.measure(own, systems, args.beam, report)


def words_per_second(name: str, count: int, data: Path, args: argparse.Namespace) -> float:
    """Train with some number of processes; return the median over the counted updates."""
    arch, own, _ = parse_name(name)
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(count), "-m"]
    flags = [
        "--arch", arch, *flags_of(args), *own, "--max-tokens", str(args.max_tokens),
        "--update-freq", str(max(args.processes) // count),
        *(["--cpu"] if args.device == "cpu" else []),
        *(["--distributed-world-size", "1"] if count == 1 else []),  # not all GPUs
    ]  # fmt: skip
    module = [*(launcher if count > 1 else []), "fairseq_recur", "train"]
    threads = max(1, (os.cpu_count() or 1) // count)
    return train_by_command(module, data, flags, args.updates, threads)["wps"]


def processes(args: argparse.Namespace, report: Report) -> None:
    """Measure every system with every number of processes, in turns."""
    found: dict[str, list[float]] = {}
    names = [f"{arch} {count}" for arch in args.arch for count in args.processes]
    with prepared(args, "sentences") as data:
        for name in turns(args.rounds, names):
            arch, count = name.split()
            speed = words_per_second(arch, int(count), data, args)
            found.setdefault(name, []).append(speed)
            print(f"{name}: {speed:.0f} words per second", flush=True)
    for name in names:
        arch, count = name.split()
        one = found[f"{arch} 1"]
        report.add({
            "system": arch, "processes": int(count), "tokens_per_second": rounded(found[name]),
            "of_one": rounded(ratios(found[name], one)),
        })  # fmt: skip


def check_processes(parser: argparse.ArgumentParser, counts: list[int]) -> None:
    """Exit with an error if the updates would have different numbers of batches."""
    given = f"--processes {' '.join(map(str, counts))}"
    if 1 not in counts:
        parser.error(f"{given}: expected 1 among them, with which the others are compared")
    uneven = [n for n in counts if n < 1 or max(counts) % n]
    if uneven:
        parser.error(
            f"{given}: {', '.join(map(str, uneven))} does not divide {max(counts)}, so its updates "
            "would have another number of batches; choose divisors of the largest number"
        )


def main() -> int:
    """Run the benchmark; return 1 if a system failed."""
    parser = command_line(__doc__, rounds=5)
    parser.add_argument("what", choices=["length", "decoding", "processes"])
    add_models(parser, ["transformer", "srformer"], max_tokens=1024)
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--updates", type=int, default=1, help="per round")
    parser.add_argument("--beam", type=int, default=4, help="beam size of decoding")
    args = parser.parse_args()
    refuse_unused(parser, args, UNUSED[args.what], f"for {args.what}")
    if args.what == "processes" and any(parse_name(name).fused for name in args.arch):
        parser.error(
            "+fused: not available for processes, which run fairseq-recur train; remove it"
        )
    if args.what == "processes":
        check_processes(parser, args.processes)
    report = Report(args.output)
    {"length": lengths, "decoding": decoding_lengths, "processes": processes}[args.what](
        args, report
    )
    return int(report.errors > 0)


if __name__ == "__main__":
    sys.exit(main())
