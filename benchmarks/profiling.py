"""Where the time of an update goes: python benchmarks/profiling.py [--arch NAME ...] [--output FILE].

Every model makes one update that is not looked at, and then one under torch's profiler, with the same
batch. A row is an operation of torch, with the milliseconds that it took itself and its calls, by model;
what is not among the first stands in the last row together.
"""

import argparse
import logging
import tempfile
from pathlib import Path
from typing import Any

from measuring import add_device, record, synchronise
from systems import System, add_models, prepare
from torch.profiler import profile

Times = dict[str, tuple[float, int]]


def times(system: System, batch: dict[str, Any]) -> Times:
    """Milliseconds and calls of every operation of an update."""
    system.update(batch)
    with profile() as measured:
        system.update(batch)
        synchronise(system.device)
    cpu = system.device == "cpu"
    return {
        event.key: (
            (event.self_cpu_time_total if cpu else event.self_device_time_total) / 1e3, event.count
        )
        for event in measured.key_averages()
    }  # fmt: skip


def table(found: dict[str, Times], count: int) -> list[dict[str, Any]]:
    """The operations that took most, of any model, and the rest."""
    keys = {
        key: max(t.get(key, (0.0, 0))[0] for t in found.values())
        for t in found.values()
        for key in t
    }
    first = sorted(keys, key=lambda key: -keys[key])[:count]
    rows: list[dict[str, Any]] = []
    for key in [*first, None]:
        row: dict[str, Any] = {"op": key or "all others"}
        for name, of in found.items():
            some = [of.get(key, (0.0, 0))] if key else [t for k, t in of.items() if k not in first]
            row[name] = {
                "ms": round(sum(ms for ms, _ in some), 1),
                "share": round(sum(ms for ms, _ in some) / sum(ms for ms, _ in of.values()), 4),
                "calls": sum(calls for _, calls in some),
            }
        rows.append(row)
    return rows


def main() -> None:
    """Prepare, profile, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_device(parser)
    add_models(parser, ["transformer", "transformer_biarn"])
    parser.add_argument("--text", default="sentences", help="sentences, or pieces of a source")
    parser.add_argument("--max-tokens", type=int, default=1024, help="of a batch")
    parser.add_argument("--rows", type=int, default=10)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    logging.disable(logging.INFO)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        data = prepare(args.text, args.pieces, args.vocabulary, Path(folder))
        for name in args.arch:
            system = System(name, data, args.flags.split(), args.device)
            found[name] = times(system, system.batches("train", args.max_tokens, 1)[0])
    rows = table(found, args.rows)
    for row in rows:
        cells = [
            f"{row[n]['ms']:>10.1f} ms {row[n]['share']:>6.1%} x{row[n]['calls']:>6}" for n in found
        ]
        print(f"{row['op'][:48]:50}" + "".join(f"{cell:>32}" for cell in cells))
    if args.output:
        record(args.output, rows)


if __name__ == "__main__":
    main()
