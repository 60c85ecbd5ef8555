"""``--series-columns``: which variables of a file are read."""

from pathlib import Path

import pytest

from fairseq_recur.errors import ConfigError
from fairseq_recur.tasks.series_data import columns_of, read_series
from tests.series import write_series


def test_a_column_is_named_once(tmp_path: Path) -> None:
    path = str(write_series(tmp_path / "x.csv", 20))
    assert read_series(path, columns_of("temperature,load")).names == ["temperature", "load"]
    with pytest.raises(ConfigError, match=r"--series-columns 'a\\nb': expected one line"):
        columns_of("a\nb")
    with pytest.raises(ConfigError, match="--series-columns names load twice; give each name once"):
        read_series(path, columns_of("load, temperature, load"))


@pytest.mark.parametrize(("table", "names"), [
    ('date, "a", "b, c"\n2016-07-01, 1, 2\n', ["a", "b, c"]),
    ("date;a, u, v, w, x, y, z;b\n2016-07-01;1;2\n", ["a, u, v, w, x, y, z", "b"]),
    ("date\ta, in x\tb, in y\n2016-07-01\t1\t2\n", ["a, in x", "b, in y"]),
    ('"date";"a;b";"c"\n2016-07-01;1;2\n', ["a;b", "c"]),
])  # fmt: skip
def test_names_with_blanks_and_separators(table: str, names: list[str], tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    days = "".join(table.splitlines(True)[1].replace("01", f"{day:02}") for day in range(1, 9))
    path.write_text(table.splitlines(True)[0] + days)
    assert read_series(str(path)).names == names
