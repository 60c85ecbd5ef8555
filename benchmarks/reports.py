"""Reports of measurements: printed, and written with their provenance."""

import argparse
import json
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from measuring import Run, Times, in_turns
from tables import Row, spread

from fairseq_recur.experiments import machine
from fairseq_recur.files import write_text

KERNELS = "FAIRSEQ_RECUR_TRITON"
"""The variable that, set to 0, turns Triton's kernels off."""

THREADS = "OMP_NUM_THREADS"
"""The variable that sets the number of torch's threads."""


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
