"""What the benchmarks share: options, timing, memory, and reports with their provenance."""

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tables import Row, spread
from torch.profiler import profile

from fairseq_recur.experiments import machine
from fairseq_recur.files import write_text

Run = Callable[[], object]
Times = dict[str, list[float]]

KERNELS = "FAIRSEQ_RECUR_TRITON"
"""The variable that, set to 0, turns Triton's kernels off."""

THREADS = "OMP_NUM_THREADS"
"""The variable that sets the number of torch's threads."""


def command_line(
    description: str | None,
    rounds: int | None = None,
    inner: int | None = None,
    device: bool = True,
) -> argparse.ArgumentParser:
    """Make a parser with the options that the benchmarks have in common.

    Args:
        description: docstring of the program, whose first line goes into the help
        rounds: default of --rounds, for programs that time several systems
        inner: default of --inner, for programs that time short operations
        device: whether the program has the option --device
    """
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    if device:
        parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--output", type=Path, help="JSON file for the results")
    if rounds:
        parser.add_argument("--rounds", type=int, default=rounds, help="measurements per system")
    if inner:
        parser.add_argument(
            "--inner", type=int, default=inner, help="calls per measurement; the fastest counts"
        )
    return parser


def refuse_unused(
    parser: argparse.ArgumentParser, args: argparse.Namespace, names: Sequence[str], why: str
) -> None:
    """Exit with an error if options were set that have no effect."""
    dests = {name: name.replace("-", "_") for name in names}
    given = [f"--{n}" for n, d in dests.items() if getattr(args, d) != parser.get_default(d)]
    if given:
        parser.error(f"{', '.join(given)}: not used {why}; remove")


# Time and memory ----------------------------------------------------------------------


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


# Numbers ------------------------------------------------------------------------------


def ratios(of: Sequence[float], to: Sequence[float]) -> list[float]:
    """Divide round by round."""
    return [a / b for a, b in zip(of, to)]


def rounded(values: Sequence[float]) -> list[float]:
    """Round to four significant digits: the rest of a time is noise."""
    return [float(f"{value:.4g}") for value in values]


def milliseconds(times: Sequence[float]) -> list[float]:
    """Convert seconds, for a report."""
    return rounded([1e3 * t for t in times])


# Reports ------------------------------------------------------------------------------


def provenance() -> dict[str, Any]:
    """Return the command, commit, versions and machine of this run."""
    script = Path(sys.argv[0])
    before = [f"{KERNELS}=0"] if os.environ.get(KERNELS) == "0" else []
    if os.environ.get(THREADS):
        before.append(f"{THREADS}={os.environ[THREADS]}")
    words = [*before, "python", f"{script.parent.name}/{script.name}", *sys.argv[1:]]
    return {
        "command": shlex.join(words),
        "commit": machine.commit(),
        "versions": machine.versions(),
        "threads": torch.get_num_threads(),
        "machine": machine.machine(),
    }


def record(output: Path, rows: Any, **more: Any) -> None:
    """Write results with their provenance; the file is never half-written."""
    content = {**provenance(), **more, "rows": rows}
    write_text(output, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


class Report:
    """Rows of results: each is printed when it is added, and all of them are then written.

    Args:
        output: JSON file, or None
        more: what the file contains besides the rows and their provenance
    """

    def __init__(self, output: Path | None, **more: Any) -> None:
        self.output, self.more = output, more
        self.rows: list[Row] = []
        self.errors = 0

    def add(self, row: Row) -> None:
        """Add a row. The file is written at once, so that an interruption loses nothing."""
        self.rows.append(row)
        print("\n".join(lines(row)), flush=True)
        self.write()

    def write(self, unfinished: Sequence[Row] = ()) -> None:
        """Write the file, with further rows whose measurements are not complete."""
        if self.output:
            record(self.output, [*self.rows, *unfinished], **self.more)

    def fail(self, row: Row, error: Exception) -> None:
        """Add a row that has an error in place of measurements."""
        self.errors += 1
        self.add({**row, **failure(error)})

    @contextmanager
    def attempt(self, **row: Any) -> Iterator[None]:
        """Go on after an error in a block; a row has it."""
        try:
            yield
        except Exception as error:
            self.fail(row, error)

    def add_in_turns(
        self,
        runs: dict[str, Run],
        args: argparse.Namespace,
        row: Callable[[str, Times], Row],
        finish: Callable[[str], Row] = lambda name: {},
        **about: Any,
    ) -> list[str]:
        """Time systems in turns and add a row for each; the file has what is known after a round.

        A system whose warm-up fails is left out. Its row says why.

        Args:
            runs: by the name of the system
            args: with the number of rounds and the device
            row: returns the measurements of a system, from the seconds of all
            finish: returns more of them when the rounds are over
            about: what each row begins with

        Returns:
            names of the systems that work
        """

        def rows(times: Times) -> list[Row]:
            return [{**about, "system": name, **row(name, times)} for name in times]

        times = in_turns(
            runs, args.rounds, args.device,
            failed=lambda name, error: self.fail({**about, "system": name}, error),
            after_round=lambda times: self.write(rows(times)),
        )  # fmt: skip
        for found in [{**found, **finish(found["system"])} for found in rows(times)]:
            self.add(found)
        return list(times)


def failure(error: Exception) -> Row:
    """Print an error; return what a row has of it, its kind and first and last line."""
    traceback.print_exception(error)
    said = str(error).strip().splitlines() or [""]
    text = f"{type(error).__name__}: {' ... '.join(dict.fromkeys((said[0], said[-1])))}"
    return {"error": text[:300]}


def lines(row: Row) -> Iterator[str]:
    """Format a row: its values on one line, and each row within it on a separate line."""
    nested = {key: value for key, value in row.items() if isinstance(value, dict)}
    values = [f"{key} {shown(value)}" for key, value in row.items() if key not in nested]
    if values:
        yield "  ".join(values)
    for key, value in nested.items():
        for line in lines(value):
            # A name before a group of rows would say nothing about them.
            group = any(isinstance(inner, dict) for inner in value.values())
            yield f"    {line}" if group else f"    {key:20} {line}"


def shown(value: Any) -> str:
    """Format one value; a list holds the measurements of all rounds."""
    if isinstance(value, list):
        return spread(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
