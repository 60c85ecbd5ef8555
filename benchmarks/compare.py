"""Run one benchmark with the package of two commits, in turns.

    python benchmarks/compare.py BEFORE AFTER [--output FILE] -- training.py [--arch NAME ...]

Each round runs the benchmark of this checkout once with each package, in a new process. A temporary
slowdown of the machine therefore affects both. The result is AFTER divided by BEFORE, round by
round, for every measured number: below one is better for times, above one for speeds. AFTER may be
"." for the files of this checkout. The file has what is known after each round. Numbers that a run
of either package lacks are left out, and named at the end.
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

from command_lines import command_line
from measuring import ratios, turns
from reports import Report
from tables import Row

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
    output.unlink(missing_ok=True)
    done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"error: {words[0]} failed with the package in {package}; its message is above")
    if not output.is_file():
        sys.exit(f"error: {words[0]} {' '.join(words[1:])} wrote no results to compare")
    return by_name(json.loads(output.read_text(encoding="utf-8")), words[0])


def by_name(result: Any, benchmark: str) -> dict[str, float]:
    """Return all measured numbers of a benchmark's results.

    Raises:
        SystemExit: the results are not rows with such numbers
    """
    rows = result.get("rows")
    found: dict[str, float] = {}
    for row in rows if isinstance(rows, list) else ():
        name = " ".join(str(v) for v in row.values() if isinstance(v, (str, int)))
        found.update({f"{name}: {what}": value for what, value in numbers(row)})
    if not found:
        sys.exit(
            f"error: the results of {benchmark} have no rows of measured numbers, so they cannot "
            "be compared; choose another benchmark"
        )
    return found


def compared(found: dict[str, list[dict[str, float]]]) -> tuple[list[Row], list[str]]:
    """Compare the rounds that both packages have.

    Args:
        found: for "before" and "after" the numbers of each round

    Returns:
        a row for each number that all of these rounds have, and the names of the others
    """
    count = min(map(len, found.values()))
    rounds = {when: of_one[:count] for when, of_one in found.items()}
    every = [one for of_one in rounds.values() for one in of_one]
    names = list(dict.fromkeys(name for one in every for name in one))
    common = [name for name in names if all(name in one for one in every)]
    rows = []
    for what in common:
        before, after = ([one[what] for one in rounds[when]] for when in ("before", "after"))
        rows.append(
            {"what": what, "before": before, "after": after, "ratio": ratios(after, before)}
        )
    return rows, [name for name in names if name not in common]


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
    report = Report(args.output, before=args.before, after=args.after)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        packages = {when: unpack(getattr(args, when), folder / when) for when in found}
        for when in turns(args.rounds, list(packages)):
            found[when].append(measured(packages[when], args.benchmark, folder / "result.json"))
            if len(found["before"]) == len(found["after"]):
                report.write(compared(found)[0])
    rows, others = compared(found)
    for row in rows:
        report.add(row)
    if others:
        print("not in every run, so not compared:", *others, sep="\n    ", file=sys.stderr)
    if not rows:
        sys.exit(
            "error: no number is in the results of both packages; choose packages that measure "
            "the same"
        )


if __name__ == "__main__":
    main()
