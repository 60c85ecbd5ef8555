"""Accuracies as a table, like table 5 of Hao et al. 2019: a row per system, a column per task."""

from collections.abc import Sequence

from fairseq_recur.probing.report import Row
from fairseq_recur.probing.tasks import TASKS
from fairseq_recur.scoring.aligned import aligned


def text_table(rows: Sequence[Row], runs: int) -> str:
    """Format accuracies for a terminal."""
    return "\n".join([*aligned(table_cells(rows), names=2), "", caption(runs)])


def markdown_table(rows: Sequence[Row], runs: int) -> str:
    """Format accuracies as Markdown."""
    cells = table_cells(rows)
    cells.insert(1, ["---", "---", *["---:"] * (len(cells[0]) - 2)])
    return "\n".join(["| " + " | ".join(row) + " |" for row in cells] + ["", caption(runs)])


def caption(runs: int) -> str:
    """Describe the numbers."""
    spread = f", mean ± standard deviation over {runs} seeds of the classifier" if runs > 1 else ""
    return f"accuracy on the test split in %{spread}"


def table_cells(rows: Sequence[Row]) -> list[list[str]]:
    """Return the cells: a header, then one row per system."""
    tasks = [name for name in TASKS if any(row.task == name for row in rows)]
    found = {(row.system, row.task): row for row in rows}
    cells = [["system", "encoders", *(TASKS[name].short for name in tasks)]]
    for system in dict.fromkeys(row.system for row in rows):
        of_system = [found.get((system, name)) for name in tasks]
        combine = next(row.combine for row in of_system if row is not None)
        cells.append([system, combine, *(cell(row) for row in of_system if row is not None)])
    return cells


def cell(row: Row) -> str:
    """Format mean and standard deviation."""
    return f"{row.mean:.2f}" + ("" if row.spread is None else f" ± {row.spread:.2f}")
