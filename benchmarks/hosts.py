"""Time of an update of each model with RSA, relative to its host without.

    python benchmarks/hosts.py [--hosts NAME ...] [--horizons N ...] [--output FILE]

As figure 9 of Huang et al. (ICLR 2023), which shows forecasts of its Weather data; also for CodeT5.
streams.py measures language models. Host and RSA form train in one process, in turns, on the same
batches. Their content is random, because it does not matter for the time. The lengths, heads and
dilations of the forecasters are those of examples/time_series. The aim is a ratio of 1.05 or less.
"""

import argparse
import importlib
import logging
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from command_lines import command_line
from fairseq.data import Dictionary
from measuring import in_turns, milliseconds, ratios, rounded
from reports import Report
from systems import EXAMPLES, System

from fairseq_recur.experiments.other_sets import write_binary

FORECASTERS = ("informer", "log_sparse", "xl_forecaster")
CODET5 = "codet5_small"
HOSTS = (*FORECASTERS, CODET5)
AIM = 1.05

ROWS, VARIABLES = 48 * 30 * 24, 12
"""Of Weather."""
PIECES = 32096
"""Of CodeT5, without fairseq's own four symbols."""
SHARED = "--optimizer adam --lr 0.0001 --num-workers 0 --no-progress-bar".split()

Pair = dict[str, list[str]]
"""Arguments of fairseq-train for a host and its RSA form, beside --cpu, by architecture."""


def names_of(host: str) -> list[str]:
    """Return the architectures of a host and of its RSA form."""
    return [host, f"rsa_{host}"]


def write_series(file: Path) -> None:
    """Write a series with the shape of Weather."""
    rng, start = random.Random(1), datetime(2010, 1, 1)
    with open(file, "w", encoding="utf-8") as lines:
        lines.write(",".join(["date", *(f"v{n}" for n in range(VARIABLES))]) + "\n")
        for row in range(ROWS):
            values = (f"{rng.gauss(0, 1):.3f}" for _ in range(VARIABLES))
            lines.write(",".join([str(start + timedelta(hours=row)), *values]) + "\n")


def words_of(count: int) -> Dictionary:
    """Return a dictionary with so many words, besides fairseq's own."""
    words = Dictionary()
    for number in range(count):
        words.add_symbol(f"w{number}")
    return words


def random_lines(words: int, lengths: Sequence[int]) -> Iterator[str]:
    """Yield lines of random words."""
    rng = random.Random(1)
    for length in lengths:
        yield " ".join(f"w{rng.randrange(words)}" for _ in range(length))


def forecasters(host: str, args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Pair]]:
    """Yield each of Weather's settings of a forecaster, in the order of their cost."""
    sys.path.insert(0, str(EXAMPLES / "time_series"))
    cells: Any = importlib.import_module("cells")
    sys.path.remove(str(EXAMPLES / "time_series"))
    write_series(folder / cells.FILES["Weather"])
    settings = cells.Settings(data=str(folder), device=args.device)
    for cell in cells.CELLS:
        if cell.data == "Weather" and cell.lengths[2] in args.horizons:
            pair = {}
            for arch in names_of(host):
                heads = cells.HEADS[arch][cell.name] if arch in cells.HEADS else ""
                run = cells.series_run(settings, folder, cell, arch, arch, heads, 1)
                pair[arch] = [*run.flags, *SHARED]
            yield cell.name, pair


def codet5(host: str, args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Pair]]:
    """Yield the setting of CodeT5: functions, and answers of three pieces."""
    words = words_of(PIECES)
    for side, length in (("source", args.tokens), ("target", 3)):
        words.save(str(folder / f"dict.{side}.txt"))
        lines = random_lines(PIECES, [length - 1] * args.batch * (args.rounds + 2) * args.updates)
        write_binary(lines, words, folder / f"train.source-target.{side}")
    flags = [
        "--task", "translation", "-s", "source", "-t", "target", "--batch-size", str(args.batch),
        "--criterion", "label_smoothed_cross_entropy", *SHARED,
    ]  # fmt: skip
    yield (
        f"{args.batch} x {args.tokens}",
        {arch: [str(folder), *flags] for arch in names_of(host)},
    )


def measure(pair: Pair, args: argparse.Namespace) -> dict[str, Any]:
    """Measure a host and its RSA form in turns, each with the same consecutive batches.

    Returns:
        their ``parameters`` and ``ms`` for an update, by name, and the ratio of these, ``of_host``
    """
    more = args.flags.split()
    systems = {name: System(name, [*words, *more], args.device) for name, words in pair.items()}
    runs = {}
    for name, system in systems.items():
        batches = iter(system.following((args.rounds + 1) * args.updates))
        runs[name] = partial(update, system, batches, args.updates)
    times = in_turns(runs, args.rounds, args.device)
    host, rsa = (times[name] for name in pair)
    return {
        "parameters": {name: system.parameters for name, system in systems.items()},
        "ms": {name: milliseconds([t / args.updates for t in times[name]]) for name in pair},
        "of_host": rounded(ratios(rsa, host)),
    }


def update(system: System, batches: Iterator[Any], count: int) -> None:
    """Make updates with the next batches."""
    for _ in range(count):
        system.update(next(batches))


def main() -> None:
    """Run the benchmark."""
    parser = command_line(__doc__, rounds=5)
    parser.add_argument("--hosts", nargs="+", choices=HOSTS, default=HOSTS)
    parser.add_argument("--updates", type=int, default=2, help="per system and round")
    parser.add_argument(
        "--horizons", type=int, nargs="+", choices=(24, 48, 168, 336), default=[24, 48, 168, 336],
        help="forecasters: which settings of Weather",
    )  # fmt: skip
    parser.add_argument("--batch", type=int, default=2, help="functions of CodeT5")
    parser.add_argument("--tokens", type=int, default=512, help="of a function")
    parser.add_argument("--flags", default="", help="more flags of fairseq-train, in one argument")
    args = parser.parse_args()
    logging.disable(logging.INFO)
    report, within = Report(args.output), []
    for host in args.hosts:
        with tempfile.TemporaryDirectory() as folder:
            settings = codet5 if host == CODET5 else forecasters
            for setting, pair in settings(host, args, Path(folder)):
                found = measure(pair, args)
                report.add({"host": host, "setting": setting, **found})
                within.append(statistics.median(found["of_host"]) <= AIM)
    print(f"At most {AIM}: {sum(within)} of {len(within)}")


if __name__ == "__main__":
    main()
