"""Where the time of an update goes: python benchmarks/profiling.py [--arch NAME ...].

Each model makes one warm-up update, then one under torch's profiler, with the same batch. A row is
an operation of torch, with its own milliseconds and its calls, per model. The last row sums up the
operations that are not listed.
"""

from typing import Any

from command_lines import command_line
from measuring import synchronise
from reports import Report
from systems import FLAGS, System, add_models, add_text, flags_of, prepared
from tables import Row
from torch.profiler import profile

Times = dict[str, tuple[float, int]]


def times(system: System, batch: dict[str, Any]) -> Times:
    """Return milliseconds and calls of every operation of an update."""
    system.update(batch)
    with profile() as measured:
        system.update(batch)
        synchronise(system.device)
    kind = "self_cpu_time_total" if system.device == "cpu" else "self_device_time_total"
    return {e.key: (getattr(e, kind) / 1e3, e.count) for e in measured.key_averages()}


def table(found: dict[str, Times], count: int) -> list[Row]:
    """Return a row for each of the most expensive operations, and one for all others."""
    keys = {
        key: max(t.get(key, (0.0, 0))[0] for t in found.values())
        for t in found.values()
        for key in t
    }
    first = sorted(keys, key=lambda key: -keys[key])[:count]
    rows = []
    for key in [*first, None]:
        row: Row = {"op": key or "all others"}
        for name, of in found.items():
            some = [of.get(key, (0.0, 0))] if key else [t for k, t in of.items() if k not in first]
            spent = sum(ms for ms, _ in some)
            row[name] = {
                "ms": round(spent, 1),
                "share": round(spent / sum(ms for ms, _ in of.values()), 4),
                "calls": sum(calls for _, calls in some),
            }
        rows.append(row)
    return rows


def main() -> None:
    """Run the benchmark."""
    parser = command_line(__doc__)
    add_models(parser, ["transformer", "transformer_biarn"], max_tokens=1024)
    add_text(parser)
    parser.add_argument("--rows", type=int, default=10, help="operations to list")
    args = parser.parse_args()
    found = {}
    with prepared(args, args.text) as data:
        for name in args.arch:
            system = System(name, [str(data), *FLAGS, *flags_of(args)], args.device)
            found[name] = times(system, system.batches("train", args.max_tokens, 1)[0])
    report = Report(args.output)
    for row in table(found, args.rows):
        report.add(row)


if __name__ == "__main__":
    main()
