"""One benchmark with the package of two commits, in turns.

    python benchmarks/compare.py BEFORE AFTER [--rounds N] [--output FILE] -- training.py --arch NAME ...

Each round runs the benchmark (as it is here) once with each package, a process each time; so what has
slowed the machine meanwhile has slowed both. What comes out is AFTER divided by BEFORE, round by
round, for every number that was measured: below one is faster for times, above one for speeds.
AFTER may be "." for the files as they are.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measuring import middle, ratios, record, turns

HERE = Path(__file__).resolve().parent
PACKAGE = "fairseq_recur"


def unpack(commit: str, folder: Path) -> Path:
    """The package of a commit, in a folder; "." is the one beside this file."""
    if commit == ".":
        return HERE.parent
    folder.mkdir()
    made = subprocess.run(
        ["git", "-C", str(HERE.parent), "archive", commit, PACKAGE],
        stdout=subprocess.PIPE,
        check=True,
    )
    subprocess.run(["tar", "-x", "-C", str(folder)], input=made.stdout, check=True)
    return folder


def numbers(row: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[str, float]]:
    """Every measured number of a row, the median of those with repeats, by its name."""
    for key, value in row.items():
        if isinstance(value, dict):
            yield from numbers(value, (*names, key))
        elif isinstance(value, list) and not key.startswith("of_"):
            yield " ".join((*names, key)), statistics.median(value)
        elif isinstance(value, float):
            yield " ".join((*names, key)), value


def measured(package: Path, words: list[str], output: Path) -> dict[str, float]:
    """Run the benchmark once with a package."""
    environment = {**os.environ, "PYTHONPATH": str(package)}
    command = [sys.executable, str(HERE / words[0]), *words[1:], "--output", str(output)]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    found = {}
    for row in json.loads(output.read_text(encoding="utf-8"))["rows"]:
        name = " ".join(str(v) for v in row.values() if isinstance(v, (str, int)))
        found.update({f"{name}: {what}": value for what, value in numbers(row)})
    return found


def main() -> None:
    """Run both in turns, print and write the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", help="a commit")
    parser.add_argument("after", help='a commit, or "."')
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    parser.add_argument(
        "benchmark", nargs="+", help="a file of this folder and its options, after --"
    )
    args = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {"before": [], "after": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        packages = {
            when: unpack(getattr(args, when), folder / when) for when in ("before", "after")
        }
        for when in turns(args.rounds, list(packages)):
            found[when].append(measured(packages[when], args.benchmark, folder / "result.json"))
    rows = []
    for what in found["before"][0]:
        both = [[one[what] for one in found[when]] for when in ("before", "after")]
        rows.append(
            {"what": what, "before": both[0], "after": both[1], "ratio": ratios(both[1], both[0])}
        )
        print(f"{what:70}{middle(rows[-1]['ratio'], 3)}", flush=True)
    if args.output:
        record(args.output, rows, before=args.before, after=args.after)


if __name__ == "__main__":
    main()
