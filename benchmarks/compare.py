"""Run one benchmark with the package of two commits, in turns.

    python benchmarks/compare.py BEFORE AFTER [--output FILE] -- training.py [--arch NAME ...]

Each round runs the benchmark of this checkout once with each package, in a new process. A temporary
slowdown of the machine therefore affects both. The result is AFTER divided by BEFORE, round by
round, for every measured number: below one is better for times, above one for speeds. AFTER may be
"." for the files of this checkout.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measuring import Report, command_line, ratios, turns

HERE = Path(__file__).resolve().parent
PACKAGE = "fairseq_recur"


def unpack(commit: str, folder: Path) -> Path:
    """Extract the package of a commit into a folder; "." is the package of this checkout."""
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
    """Yield the name and value of every measurement in a row; of repeated ones, the median."""
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
    """Run both packages in turns, then print and write the ratios."""
    parser = command_line(__doc__, rounds=5, device=False)
    parser.add_argument("before", help="a commit")
    parser.add_argument("after", help='a commit, or "."')
    parser.add_argument(
        "benchmark", nargs="+", help="after --: a file of this folder and its options"
    )
    args = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {"before": [], "after": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        packages = {when: unpack(getattr(args, when), folder / when) for when in found}
        for when in turns(args.rounds, list(packages)):
            found[when].append(measured(packages[when], args.benchmark, folder / "result.json"))
    report = Report(args.output, before=args.before, after=args.after)
    for what in found["before"][0]:
        before, after = ([one[what] for one in found[when]] for when in ("before", "after"))
        report.add({"what": what, "before": before, "after": after, "ratio": ratios(after, before)})


if __name__ == "__main__":
    main()
