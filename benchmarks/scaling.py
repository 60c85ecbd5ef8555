"""How training grows: with the length of the source, and with processes.

    python benchmarks/scaling.py length [--lengths N ...] [--arch NAME ...] [--output FILE]
    python benchmarks/scaling.py processes [--processes N ...] [--arch NAME ...] [--output FILE]

Over lengths it is `training.py`, text by text, with two sentences a batch. With processes it is
fairseq-recur train under torchrun: every process has as many tokens a batch as another, the same
number of them makes an update whatever the processes are (--update-freq), and the cores are shared out.
Words a second are those of fairseq's log, without its first updates.
"""

import argparse
import logging
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import training
from measuring import add_device, middle, ratios, record, refuse_unused, rounded, turns
from systems import FLAGS, add_models, parse_name, prepare

from fairseq_recur.experiments.training_log import read_log

WARM_UP = 3
"""Updates that are not counted."""


def lengths(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Every system at every length."""
    rows = []
    for length in args.lengths:
        args.max_tokens = 2 * (length + 1)  # two sources and their ends
        longest = f"--max-source-positions {length + 1} --max-target-positions {length}"
        with tempfile.TemporaryDirectory() as folder:
            data = prepare(str(length), args.pieces, args.vocabulary, Path(folder))
            again = argparse.Namespace(**{**vars(args), "flags": f"{args.flags} {longest}"})
            print(f"sources of {length}", flush=True)
            rows += [{"source": length, **row} for row in training.measure(again, data)]
    return rows


def words_a_second(name: str, count: int, data: Path, args: argparse.Namespace) -> list[float]:
    """Those of the updates of one training."""
    arch, own, _ = parse_name(name)
    log = data.parent / "log"
    log.unlink(missing_ok=True)
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    train = [
        "-m", "fairseq_recur", "train", str(data), "--arch", arch, *FLAGS, *args.flags.split(), *own,
        "--max-tokens", str(args.max_tokens), "--update-freq", str(max(args.processes) // count),
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
    return [stats["wps"] for update, stats in sorted(steps.items()) if update > WARM_UP]


def processes(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Every system with every number of processes, in turns."""
    found: dict[str, list[float]] = {}
    names = [f"{arch} {count}" for arch in args.arch for count in args.processes]
    with tempfile.TemporaryDirectory() as folder:
        data = prepare("sentences", args.pieces, args.vocabulary, Path(folder))
        for name in turns(args.rounds, names):
            arch, count = name.split()
            speed = statistics.median(words_a_second(arch, int(count), data, args))
            found.setdefault(name, []).append(speed)
            print(f"{name}: {speed:.0f} words a second", flush=True)
    rows = []
    for name in names:
        arch, count = name.split()
        one = found[f"{arch} {args.processes[0]}"]
        rows.append({
            "system": arch, "processes": int(count), "tokens_per_second": rounded(found[name]),
            "of_one": rounded(ratios(found[name], one)),
        })  # fmt: skip
        print(f"{name:32}{middle(found[name], 0):>24}{middle(rows[-1]['of_one'], 2):>22}")
    return rows


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["length", "processes"])
    add_device(parser)
    add_models(parser, ["transformer", "srformer"])
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--max-tokens", type=int, default=1024, help="of a batch, for processes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=1, help="in a round")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    unused = ("processes", "max-tokens") if args.what == "length" else ("lengths",)
    refuse_unused(parser, args, unused, f"for {args.what}")
    if args.what == "processes" and any(parse_name(name).fused for name in args.arch):
        parser.error(
            "+fused: the processes run fairseq-recur train, which has no such model; leave it out"
        )
    logging.disable(logging.INFO)
    rows = lengths(args) if args.what == "length" else processes(args)
    if args.output:
        record(args.output, rows)


if __name__ == "__main__":
    main()
