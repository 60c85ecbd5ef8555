"""Combine scores and measurements into a Markdown table and a JSON file.

    python table.py WORK NAME --seeds SEED [SEED ...] [--settings NAME=VALUE ...]

Reads `WORK/seedN/NAME.json` (ROUGE) and `WORK/NAME-measured.json`; writes `WORK/NAME.md` and
`WORK/NAME.json`, and prints the table.
"""

import argparse
import json
import platform
from importlib.metadata import version
from pathlib import Path
from statistics import mean, median
from typing import Any

METRICS = {"rouge1": "R-1", "rouge2": "R-2", "rougeL": "R-L", "rougeLsum": "R-Lsum"}
COLUMNS = [
    "system", "segment size", *METRICS.values(), "step (ms)", "texts/s", "memory (MB)", "parameters"
]  # fmt: skip


def read(file: Path) -> Any:
    """Read a JSON file."""
    return json.loads(file.read_text(encoding="utf-8"))


def collect(work: Path, name: str, seeds: list[str]) -> dict[str, Any]:
    """Collect the scores of all seeds and the measurements, by system."""
    scores = [read(work / f"seed{seed}" / f"{name}.json") for seed in seeds]
    systems: dict[str, dict[str, Any]] = {system: {} for system in scores[0]["systems"]}
    signatures = set()
    for system, row in systems.items():
        for metric in METRICS:
            of_seeds = [
                score
                for report in scores
                for score in report["systems"][system]["scores"]
                if score["metric"] == metric
            ]
            row[metric] = [round(score["score"], 2) for score in of_seeds]
            signatures |= {score["signature"] for score in of_seeds}
    for system, measured in read(work / f"{name}-measured.json").items():
        systems[system].update(measured)
    return {"texts": scores[0]["sentences"], "rouge": sorted(signatures), "systems": systems}


def spread(values: list[float], digits: int) -> str:
    """Format the median and range of repeats."""
    low, high = min(values), max(values)
    return f"{median(values):.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def cells(system: str, row: dict[str, Any]) -> list[str]:
    """Format one row of the table; cells without a measurement stay empty."""
    kind, size, threshold = (system.split("_") + ["", ""])[:3]
    measured = "step_ms" in row
    if threshold:
        kind += f", threshold {threshold}"
    return [
        kind,
        size or ("whole" if measured else ""),
        *(f"{mean(row[metric]):.2f}" for metric in METRICS),
        spread(row["step_ms"], 1) if measured else "",
        spread(row["texts_per_second"], 1) if measured else "",
        f"{row['peak_mb']:.0f}" if measured else "",
        f"{row['parameters']:,}" if measured else "",
    ]


def table(systems: dict[str, dict[str, Any]]) -> str:
    """Format the table in Markdown."""
    rule = ["---"] + ["---:"] * (len(COLUMNS) - 1)
    lines = [COLUMNS, rule, *(cells(system, row) for system, row in systems.items())]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    """Read the inputs, print the table, write both files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("name")
    parser.add_argument("--seeds", nargs="+", required=True)
    parser.add_argument("--settings", nargs="*", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    found = collect(args.work, args.name, args.seeds)
    report = {
        "seeds": args.seeds,
        "settings": dict(setting.split("=", 1) for setting in args.settings),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "versions": {name: version(name) for name in ("torch", "rouge-score")},
        **found,
    }
    text = table(found["systems"])
    (args.work / f"{args.name}.md").write_text(text, encoding="utf-8")
    (args.work / f"{args.name}.json").write_text(json.dumps(report, indent=1) + "\n")
    print(text, end="")


if __name__ == "__main__":
    main()
