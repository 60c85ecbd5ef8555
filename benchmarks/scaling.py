"""How training speed scales with the source length and with the number of processes.

    python benchmarks/scaling.py length [--lengths N ...] [--arch NAME ...] [--output FILE]
    python benchmarks/scaling.py processes [--processes N ...] [--arch NAME ...] [--output FILE]

"length" is `training.py` at each length, with two sentences per batch. "processes" runs
`fairseq-recur train` under torchrun: the batch size per process and the number of batches per
update stay the same (--update-freq), and the processes share the cores. Words per second are those
of fairseq's log, without the first updates.
"""

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

import training
from measuring import Report, command_line, ratios, refuse_unused, rounded, turns
from systems import FLAGS, add_models, parse_name, prepared

from fairseq_recur.experiments.training_log import read_log

WARM_UP = 3
"""Updates that are not counted."""


def lengths(args: argparse.Namespace, report: Report) -> None:
    """Measure every system at every length."""
    for length in args.lengths:
        longest = f"--max-source-positions {length + 1} --max-target-positions {length}"
        own = argparse.Namespace(**vars(args))
        own.max_tokens = 2 * (length + 1)  # two sources with their end-of-sentence tokens
        own.flags = f"{args.flags} {longest}"
        with prepared(own, str(length)) as data:
            training.measure(own, data, report, source=length)


def words_per_second(name: str, count: int, data: Path, args: argparse.Namespace) -> float:
    """Train with some number of processes; return the median over the counted updates."""
    arch, own, _ = parse_name(name)
    log = data.parent / "log"
    log.unlink(missing_ok=True)
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    train = [
        "-m", "fairseq_recur", "train", str(data), "--arch", arch, *FLAGS, *args.flags.split(),
        *own, "--max-tokens", str(args.max_tokens),
        "--update-freq", str(max(args.processes) // count),
        "--max-update", str(WARM_UP + args.updates), "--no-save", "--disable-validation",
        "--log-format", "json", "--log-interval", "1", "--log-file", str(log),
    ]  # fmt: skip
    if args.device == "cpu":
        train.append("--cpu")
    threads = str(max(1, (os.cpu_count() or 1) // count))
    command = [sys.executable, *run, *train] if count > 1 else [sys.executable, *train]
    subprocess.run(
        command, check=True, env={**os.environ, "OMP_NUM_THREADS": threads},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    steps = read_log(log).steps
    return statistics.median(s["wps"] for update, s in steps.items() if update > WARM_UP)


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
        one = found[f"{arch} {args.processes[0]}"]
        report.add({
            "system": arch, "processes": int(count), "tokens_per_second": rounded(found[name]),
            "of_one": rounded(ratios(found[name], one)),
        })  # fmt: skip


def main() -> None:
    """Run the benchmark."""
    parser = command_line(__doc__, rounds=5)
    parser.add_argument("what", choices=["length", "processes"])
    add_models(parser, ["transformer", "srformer"], max_tokens=1024)
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--updates", type=int, default=1, help="per round")
    args = parser.parse_args()
    unused = ("processes", "max-tokens") if args.what == "length" else ("lengths",)
    refuse_unused(parser, args, unused, f"for {args.what}")
    if args.what == "processes" and any(parse_name(name).fused for name in args.arch):
        parser.error("+fused: not available for processes, which run fairseq-recur train; remove")
    report = Report(args.output)
    lengths(args, report) if args.what == "length" else processes(args, report)


if __name__ == "__main__":
    main()
