"""What error messages are made of."""

from fairseq_recur.errors import SHOWN, first_items, first_lines


def test_the_first_items_are_named_and_the_rest_is_counted() -> None:
    names = list("abcdefgh")
    assert first_items(names, 3) == "a, b, c and 5 more"
    assert first_items(names, 7) == "a, b, c, d, e, f, g and 1 more"
    assert first_items(names, 8) == "a, b, c, d, e, f, g, h"
    assert first_items(names) == f"{', '.join(names[:SHOWN])} and {8 - SHOWN} more"
    assert first_items([0, 1], 2, count=10**9) == "0, 1 and 999999998 more"
    assert first_items([0], 2, count=1) == "0"


def test_further_lines_become_one() -> None:
    lines = ["x is wrong", "y is wrong", "z is wrong"]
    assert first_lines(lines, 1) == ["x is wrong", "and 2 more"]
    assert first_lines(lines, 3) == first_lines(lines) == lines
