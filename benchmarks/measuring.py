"""Time and memory of calls, and what is computed from them."""

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch.profiler import profile

Run = Callable[[], object]
Times = dict[str, list[float]]


def synchronise(device: str) -> None:
    """Wait until the device has finished its work."""
    if device != "cpu":
        torch.cuda.synchronize(device)


def seconds(run: Run, device: str = "cpu") -> float:
    """Time one call, until the device has finished."""
    synchronise(device)
    start = time.perf_counter()
    run()
    synchronise(device)
    return time.perf_counter() - start


def turns(rounds: int, names: Sequence[str]) -> Iterator[str]:
    """Yield every name once per round; each round starts with a different name."""
    names = list(names)
    for number in range(rounds):
        shift = number % len(names)
        yield from names[shift:] + names[:shift]


def in_turns(
    runs: dict[str, Run],
    rounds: int,
    device: str = "cpu",
    inner: int = 1,
    failed: Callable[[str, Exception], object] | None = None,
    after_round: Callable[[Times], object] = lambda times: None,
) -> Times:
    """Time all runs in every round, after one warm-up call of each.

    A temporary slowdown of the machine affects all runs, so times of the same round may be divided
    by each other.

    Args:
        runs: by name
        rounds: measurements per run, without the warm-up
        device: where they compute
        inner: calls per measurement, of which the fastest counts
        failed: is told which run's warm-up has failed and why, and the run is left out; without
            it, the error is raised
        after_round: is told the times so far

    Returns:
        the seconds of every round, by name
    """
    found: Times = {}
    for name, run in runs.items():
        try:
            seconds(run, device)
        except Exception as error:
            if failed is None:
                raise
            failed(name, error)
        else:
            found[name] = []
    for name in turns(rounds, list(found)) if found else ():
        found[name].append(min(seconds(runs[name], device) for _ in range(inner)))
        if len({*map(len, found.values())}) == 1:
            after_round(found)
    return found


def peak_mib(run: Run, device: str = "cpu") -> float:
    """Return the peak of the memory that torch allocates during a call, in MiB."""
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


def ratios(of: Sequence[float], to: Sequence[float]) -> list[float]:
    """Divide round by round."""
    return [a / b for a, b in zip(of, to)]


def rounded(values: Sequence[float]) -> list[float]:
    """Round to four significant digits: the rest of a time is noise."""
    return [float(f"{value:.4g}") for value in values]


def milliseconds(times: Sequence[float]) -> list[float]:
    """Convert seconds, for a report."""
    return rounded([1e3 * t for t in times])
