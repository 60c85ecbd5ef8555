"""Tables for a terminal."""

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], names: int) -> list[str]:
    """Pad cells, so that columns stand below each other, with a rule below the head.

    Args:
        rows: the head first, all of the same length
        names: how many of the first columns are to the left; the others, numbers, to the right

    Returns:
        a line for each row, and the rule
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
