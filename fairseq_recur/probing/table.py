"""Accuracies as a table, like table 5 of Hao et al. 2019: a row per system, a column per task."""

from collections.abc import Callable, Sequence

from fairseq_recur.probing.report import Row
from fairseq_recur.probing.tasks import TASKS
from fairseq_recur.scoring.aligned import aligned


def table(rows: Sequence[Row], runs: int, form: Callable[..., list[str]] = aligned) -> str:
    """Format accuracies, with *form* one of `aligned` and `markdown`; describe the numbers."""
    spread = f", mean ± standard deviation over {runs} seeds of the classifier" if runs > 1 else ""
    caption = f"accuracy on the test split in %{spread}"
    return "\n".join([*form(table_cells(rows), names=2), "", caption])


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
