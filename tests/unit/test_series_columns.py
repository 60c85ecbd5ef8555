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
