"""What all benchmarks share: turns, clocks, memory, and where figures come from."""

import argparse
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile

from fairseq_recur.experiments import machine

Run = Callable[[], object]


def synchronise(device: str) -> None:
    """Wait until the device has done its work."""
    if device != "cpu":
        torch.cuda.synchronize(device)


def seconds(run: Run, device: str = "cpu") -> float:
    """Time one call, to the end of its work on the device."""
    synchronise(device)
    start = time.perf_counter()
    run()
    synchronise(device)
    return time.perf_counter() - start


def turns(rounds: int, names: Sequence[str]) -> Iterator[str]:
    """Every name in every round, each time beginning with another one."""
    names = list(names)
    for number in range(rounds):
        shift = number % len(names)
        yield from names[shift:] + names[:shift]


def in_turns(
    runs: dict[str, Run], rounds: int, device: str = "cpu", inner: int = 1
) -> dict[str, list[float]]:
    """Seconds of every run in every round, after one round that is not counted.

    What slows the machine for a while slows them all; so the numbers of one round may be divided
    by each other.

    Args:
        runs: by name
        rounds: counted ones
        device: where they work
        inner: calls of which a round takes the fastest

    Returns:
        a list with an entry for each round, by name
    """
    for run in runs.values():
        run()
    found: dict[str, list[float]] = {name: [] for name in runs}
    for name in turns(rounds, list(runs)):
        found[name].append(min(seconds(runs[name], device) for _ in range(inner)))
    return found


def ratios(of: Sequence[float], to: Sequence[float]) -> list[float]:
    """Round by round."""
    return [a / b for a, b in zip(of, to)]


def middle(values: Sequence[float], digits: int) -> str:
    """Median, and range in brackets."""
    shown = (statistics.median(values), min(values), max(values))
    return "{:.{d}f} ({:.{d}f}–{:.{d}f})".format(*shown, d=digits)


def peak_mib(run: Run, device: str = "cpu") -> float:
    """MiB that torch has allocated at most while it ran, beyond what was there before."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        seconds(run, device)
        return (torch.cuda.max_memory_allocated(device) - before) / 2**20
    with profile(profile_memory=True) as measured:
        run()
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "trace.json")
        measured.export_chrome_trace(trace)
        events = json.loads(Path(trace).read_text(encoding="utf-8"))["traceEvents"]
    events = sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: e["ts"])
    if not events:
        return 0.0
    before = events[0]["args"]["Total Allocated"] - events[0]["args"]["Bytes"]
    return (max(e["args"]["Total Allocated"] for e in events) - before) / 2**20


def rounded(values: Sequence[float], digits: int = 4) -> list[float]:
    """To so many significant digits: more of a time is noise."""
    return [float(f"{value:.{digits}g}") for value in values]


def provenance() -> dict[str, Any]:
    """Where figures come from: the command, commit, versions and machine."""
    script = Path(sys.argv[0])
    return {
        "command": shlex.join(["python", f"{script.parent.name}/{script.name}", *sys.argv[1:]]),
        "commit": machine.commit(),
        "versions": machine.versions(),
        "threads": torch.get_num_threads(),
        "machine": machine.machine(),
    }


def record(output: Path, rows: Any, **more: Any) -> None:
    """Write a result with its provenance."""
    content = {**provenance(), **more, "rows": rows}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def refuse_unused(
    parser: argparse.ArgumentParser, args: argparse.Namespace, names: Sequence[str], why: str
) -> None:
    """End with an error if options are given that change nothing."""
    dests = {name: name.replace("-", "_") for name in names}
    given = [f"--{n}" for n, d in dests.items() if getattr(args, d) != parser.get_default(d)]
    if given:
        parser.error(f"{', '.join(given)}: not used {why}; leave out")


def add_device(parser: argparse.ArgumentParser) -> None:
    """The option that all benchmarks have."""
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
