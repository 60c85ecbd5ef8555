"""Our errors next to the paper's: stored with all that made them, as text and as a page."""

import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

from cells import HERE, SeriesRun, Settings, checksum, columns_in
from linear import linear_errors

from fairseq_recur.experiments.records import provenance
from fairseq_recur.experiments.table import spread
from fairseq_recur.files import read_json, write_json, write_text
from fairseq_recur.scoring import tables

COMMAND = "bash examples/time_series/run.sh"
HEADER = ["cell", "system", "MSE", "paper", "MAE", "paper", "seeds"]
DEVIATIONS = "± is the standard deviation over the seeds; in the paper's columns, over its five."

Results = dict[str, dict[str, dict[str, dict[str, Any]]]]
"""cell -> system -> seed -> {"mse": ..., "mae": ..., "seconds": ...}."""


def read_expected(what: str = "errors") -> dict[str, Any]:
    """Return the paper's "errors" or their "deviations": {cell: {system: [MSE, MAE]}}.

    Or "heads", the rows of Table 6: {cell: [[MSE, ...], ...]}.
    """
    found: dict[str, Any] = json.loads((HERE / "expected.json").read_text())[what]
    return found


def of_run(run: SeriesRun) -> dict[str, Any]:
    """Return the errors of a finished training, its time and its commit."""
    state = run.state()["train"]
    return {**run.errors(), "seconds": round(state["seconds"]), "commit": state["commit"]}


def averages(of_seeds: dict[str, dict[str, Any]]) -> tuple[float, float]:
    """MSE and MAE over the seeds."""
    return tuple(mean(run[name] for run in of_seeds.values()) for name in ("mse", "mae"))  # type: ignore[return-value]


def spreads(of_seeds: dict[str, dict[str, Any]]) -> list[str]:
    """MSE and MAE as mean ± standard deviation over the seeds; of one seed, its errors."""
    return [spread([run[name] for run in of_seeds.values()], 3) for name in ("mse", "mae")]


def rows(results: Results, linear: dict[str, Any]) -> list[list[str]]:
    """A row for each cell and system with a result; the linear baselines below."""
    table, expected, deviations = [], read_expected(), read_expected("deviations")
    for cell in dict.fromkeys([*expected, *results, *linear]):
        for system, of_seeds in results.get(cell, {}).items():
            theirs = ["", ""]
            if cell in expected:
                pairs = zip(expected[cell][system], deviations[cell][system])
                theirs = [f"{error:.3f} ± {deviation:.3f}" for error, deviation in pairs]
            errors = chain(*zip(spreads(of_seeds), theirs))
            table.append([cell, system, *errors, str(len(of_seeds))])
        for name, found in linear.get(cell, {}).items():
            row = [f"{found['mse']:.3f}", "", f"{found['mae']:.3f}", ""]
            table.append([cell, name, *row, ""])
    return table


def wins(results: Results) -> list[str]:
    """How often RSA has the lower error, of all cells and measures with both results."""
    lines = []
    for host in ("informer", "log_sparse", "xl_forecaster"):
        ours, theirs, of = 0, 0, 0
        for cell, paper in read_expected().items():
            pair = [results.get(cell, {}).get(name) for name in (host, f"rsa_{host}")]
            common = (pair[0] or {}).keys() & (pair[1] or {}).keys()
            if common:  # the seeds that both have
                before, after = (averages({s: of_one[s] for s in common}) for of_one in pair)
                ours += sum(a < b for a, b in zip(after, before))
                theirs += sum(a < b for a, b in zip(paper[f"rsa_{host}"], paper[host]))
                of += 2
        if of:
            lines.append(
                f"rsa_{host} is better than {host} in {ours} of {of} comparisons; in the paper, in "
                f"{theirs} of the same comparisons."
            )
    return lines


def weak(results: Results) -> list[str]:
    """The models without matrices whose MSE is above the paper's by more than its deviation."""
    lines, deviations = [], read_expected("deviations")
    for cell, paper in read_expected().items():
        for system, (theirs, _) in paper.items():
            of_seeds, deviation = results.get(cell, {}).get(system), deviations[cell][system][0]
            if of_seeds and not system.startswith("rsa_"):
                ours, _ = averages(of_seeds)
                if ours > theirs + deviation:
                    lines.append(
                        f"{system} on {cell}: MSE {ours:.3f}, the paper's {theirs:.3f} ± "
                        f"{deviation:.3f}."
                    )
    return lines


def missing(report: dict[str, Any]) -> list[str]:
    """What was chosen and has no result yet, one line."""
    runs, settings = report["runs"], report["settings"]
    systems, lacking = settings["SYSTEMS"].split(), []
    for cell in settings["CELLS"].split() if runs else []:
        absent = [system for system in systems if system not in runs.get(cell, {})]
        if absent:
            lacking.append(cell if absent == systems else f"{cell} ({', '.join(absent)})")
    return [f"Without a result: {', '.join(lacking)}."] if lacking else []


def summary(report: dict[str, Any], markdown: bool = False) -> str:
    """The table and the wins; or nothing."""
    table = rows(report["runs"], report["linear"])
    if not table:
        return ""
    shape = tables.markdown if markdown else tables.aligned
    lines = shape([HEADER, *table], names=2)
    remarks = [DEVIATIONS] if any("±" in line for line in lines) else []
    remarks += [*missing(report), *wins(report["runs"])]
    found = weak(report["runs"])
    if found:
        remarks += ["Models without matrices that are weaker than the paper's:", *found]
    return "\n".join([*lines, *(line for remark in remarks for line in ("", remark))])


def write(
    runs: Sequence[SeriesRun], settings: Settings, work: Path, every_cell: bool = False
) -> dict[str, Any]:
    """Write results.json and results.md; return the content of the first.

    The linear forecasts are those of the cells with a result, or of every cell. Without a result
    only those of every cell are written.
    """
    results: Results = {}
    linear = {}
    for run in runs:
        if run.finished():
            of_system = results.setdefault(run.row, {}).setdefault(run.system, {})
            of_system[str(run.seed)] = of_run(run)
    if not results and not every_cell:
        return {"linear": {}, "runs": {}}
    earlier, sums = read_json(work / "results.json") or {}, {}
    before, columns = earlier.get("settings", {}), columns_in(settings.options)
    for cell in settings.chosen():
        if cell.data not in sums:
            sums[cell.data] = checksum(Path(settings.data, cell.file))
        found = earlier.get("linear", {}).get(cell.name)
        if every_cell or cell.name in results or found:
            kept = (
                found
                and earlier.get("data", {}).get(cell.data) == sums[cell.data]
                and before.get("SPLIT") == settings.as_dict().get("SPLIT")
                and columns_in(before.get("OPTIONS", "")) == columns
            )
            linear[cell.name] = found if kept else linear_errors(cell, settings.data, columns)
    words = [*COMMAND.split(), *(["linear"] if every_cell else [])]
    report = {
        **provenance(settings.as_dict(), words, runs),
        "data": sums,
        "wins": wins(results),
        "weak": weak(results),
        "linear": linear,
        "runs": results,
    }
    write_json(work / "results.json", report)
    write_text(work / "results.md", summary(report, markdown=True) + "\n")
    return report
