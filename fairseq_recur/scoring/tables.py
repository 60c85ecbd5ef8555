"""Tables for a terminal, or in Markdown."""

import math
import re
from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], names: int) -> list[str]:
    """Pad cells so that columns are aligned, with a rule below the header.

    Args:
        rows: of equal length, the header first.
        names: number of left-aligned columns; the remaining ones, numbers, are right-aligned.

    Returns:
        One line per row, and the rule.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if column < names else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]
    lines.insert(1, "-" * max(map(len, lines)))
    return lines


def markdown(rows: Sequence[Sequence[str]], names: int) -> list[str]:
    """Return the lines of a table in Markdown; arguments as for `aligned`.

    A `|` in a cell, which would end it there, is escaped unless it is already.
    """
    rule = ["---"] * names + ["---:"] * (len(rows[0]) - names)
    table = ([re.sub(r"(?<!\\)\|", r"\|", cell) for cell in cells] for cells in rows)
    head, *rest = (" | ".join(cells) for cells in table)
    return [f"| {line} |" for line in (head, " | ".join(rule), *rest)]


def p_value(p: float) -> str:
    """Format a p-value: three decimals, or as many as a smaller one needs to show a digit."""
    decimals = max(3, -math.floor(math.log10(p))) if p > 0 else 3
    return f"{p:.{decimals}f}"
