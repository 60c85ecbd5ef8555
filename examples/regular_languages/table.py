"""Our accuracies next to those of the paper: text for a terminal, Markdown for a page."""

import json
from pathlib import Path
from statistics import mean
from typing import Any

from fairseq_recur.scoring import tables

HERE = Path(__file__).resolve().parent
BINS = ("bin0", "bin1")
NAMES = {
    "d_2": "D_2",
    "d_4": "D_4",
    "parity": "Parity",
    "tomita_3": "Tomita 3",
    "tomita_5": "Tomita 5",
    "tomita_6": "Tomita 6",
}
COLUMNS = [f"bin {part[-1]}: {name}" for part in BINS for name in ("paper", "max", "last")]
HEADER = ["language", "system", *COLUMNS, "seeds"]
TOLERANCE = 0.1
"""How far below the paper a cell of RSA may be without being listed."""

Results = dict[str, dict[str, dict[str, dict[str, Any]]]]
"""language -> system -> seed -> {"bin0": {"max": ..., "last": ...}, "bin1": ...}."""


def read_expected() -> dict[str, Any]:
    """Return the paper's table."""
    return json.loads((HERE / "expected.json").read_text(encoding="utf-8"))


def averages(of_seeds: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Average over the seeds: for each bin the best epoch's accuracy and the last one's."""
    return {
        part: {kind: mean(run[part][kind] for run in of_seeds.values()) for kind in ("max", "last")}
        for part in BINS
    }


def rows(results: Results, expected: dict[str, Any]) -> list[list[str]]:
    """Return a row for each language and system with a result, in the paper's order."""
    table = []
    for language, systems in expected["accuracy"].items():
        for system, paper in systems.items():
            of_seeds = results.get(language, {}).get(system)
            if not of_seeds:
                continue
            ours = averages(of_seeds)
            row = [NAMES[language], expected["systems"][system]]
            for part, value in zip(BINS, paper):
                row += [f"{x:.2f}" for x in (value, ours[part]["max"], ours[part]["last"])]
            table.append([*row, str(len(of_seeds))])
    return table


def behind(results: Results, expected: dict[str, Any]) -> list[str]:
    """List the cells of RSA whose best epoch is more than `TOLERANCE` below the paper."""
    found = []
    for language, systems in expected["accuracy"].items():
        for system, paper in systems.items():
            of_seeds = results.get(language, {}).get(system)
            if not of_seeds or not system.startswith("rsa_"):
                continue
            ours = averages(of_seeds)
            for part, value in zip(BINS, paper):
                best = ours[part]["max"]
                if best < value - TOLERANCE:
                    name = f"{NAMES[language]}, {expected['systems'][system]}, bin {part[-1]}"
                    found.append(f"{name}: {best:.2f}, paper {value:.2f}")
    return found


def counts(results: Results, expected: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Count the cells of RSA in each bin, by the best epoch, against the paper's two decimals.

    Returns:
        for each bin: ``cells``; those that ``reach`` the paper's accuracy, and those that reach it
        when they are ``rounded`` to two decimals as the paper's are; and those ``below`` it by more
        than `TOLERANCE`
    """
    found = {part: dict.fromkeys(("cells", "reach", "rounded", "below"), 0) for part in BINS}
    for language, systems in expected["accuracy"].items():
        for system, paper in systems.items():
            of_seeds = results.get(language, {}).get(system)
            if not of_seeds or not system.startswith("rsa_"):
                continue
            for part, value in zip(BINS, paper):
                best = averages(of_seeds)[part]["max"]
                found[part]["cells"] += 1
                found[part]["reach"] += best >= value
                found[part]["rounded"] += float(f"{best:.2f}") >= value
                found[part]["below"] += best < value - TOLERANCE
    return found


def summary(results: Results, markdown: bool = False) -> str:
    """Return the table, and below it the cells that do not reach the paper; or nothing."""
    expected = read_expected()
    table = rows(results, expected)
    if not table:
        return ""
    late = behind(results, expected)
    mark = "- " if markdown else "  "
    shape = tables.markdown if markdown else tables.aligned
    lines = [*shape([HEADER, *table], names=2), ""]
    lines.append(
        "Accuracy of whole strings, averaged over the seeds; max: the best epoch of each bin, as "
        "in the paper; last: the last epoch."
    )
    for part, of_bin in counts(results, expected).items():
        lines += [
            "",
            f"Bin {part[-1]}: {of_bin['reach']} of {of_bin['cells']} cells of RSA reach the "
            f"paper's accuracy, {of_bin['rounded']} when rounded to two decimals as the paper's "
            "are.",
        ]
    if late:
        lines += ["", f"More than {TOLERANCE} below the paper's RSA:", ""]
        lines += [mark + cell for cell in late]
    else:
        lines += ["", f"No cell of RSA is more than {TOLERANCE} below the paper's."]
    return "\n".join(lines)
