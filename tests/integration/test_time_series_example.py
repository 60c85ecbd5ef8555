"""The example of the forecasters: its runner with a program in place of fairseq-recur."""

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from fairseq import options

from fairseq_recur.experiments import runner
from tests.configuring import group_config
from tests.series import write_series

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "time_series"
MODULES = ("run", "cells", "errors", "linear")

# Each call validates to the last epoch: rsa_informer's best epoch is the second.
PROGRAM = """#!{python}
import json, pathlib, sys
words = dict(zip(sys.argv, sys.argv[1:]))
folder = pathlib.Path(words["--save-dir"])
with open(folder / "calls", "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + chr(10))
rsa = words["--arch"].startswith("rsa_")
with open(words["--log-file"], "a") as log:
    for epoch in range(1, int(words["--max-epoch"]) + 1):
        for part, better in (("valid", 0.0), ("test", 0.1)):
            mse = 0.9 - 0.3 * rsa - better + 0.01 * abs(epoch - 2)
            stats = {{"mse": str(mse), "mae": str(mse / 2), "num_updates": str(7 * epoch)}}
            stats = {{part + "_" + name: value for name, value in stats.items()}}
            print(json.dumps({{"epoch": epoch, **stats}}), file=log)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty months by the hour, under ETTh1's name."""
    folder = tmp_path_factory.mktemp("data")
    write_series(folder / "ETTh1.csv", 20 * 30 * 24)
    return folder


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    for name in MODULES:
        sys.modules.pop(name, None)
    yield importlib.import_module
    for name in MODULES:
        sys.modules.pop(name, None)


def test_dry_run(
    data: Path, modules: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Everything is trained once; the table has the paper's errors, the wins, linear baselines."""
    program = tmp_path / "program"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setattr(runner, "PROGRAM", [str(program)])
    monkeypatch.setattr(runner, "POLL", 0.02)
    given = {"WORK": tmp_path / "work", "DATA": data, "CELLS": "ETTh1/48 ETTh1/24", "SEEDS": "1 2"}
    given["SYSTEMS"] = "informer rsa_informer"
    for name, value in given.items():
        monkeypatch.setenv(name, str(value))
    run = modules("run")
    assert run.main([]) == 0
    printed = capsys.readouterr().out
    assert "8 of 8 runs done" in printed
    assert re.search(r"ETTh1/24 +informer +0\.800 +0\.762 +0\.400 +0\.632 +2", printed)
    assert re.search(r"ETTh1/24 +rsa_informer +0\.500 +0\.414 +0\.250 +0\.450 +2", printed)
    assert re.search(r"ETTh1/48 +linear +0\.\d{3} +0\.\d{3}", printed)
    assert "better than informer in 4 of 4 comparisons; in the paper in 4 of the" in printed
    assert "Cells without a result: 14 of 16." in printed
    assert printed.index("ETTh1/24 informer seed 1") < printed.index("ETTh1/48 informer seed 1")
    calls = list((tmp_path / "work").rglob("calls"))
    assert len(calls) == 8
    assert run.main([]) == 0 and "8 of them already done" in capsys.readouterr().out
    assert all(len(file.read_text().splitlines()) == 1 for file in calls)
    record = json.loads((tmp_path / "work" / "results.json").read_text())
    assert record["runs"]["ETTh1/24"]["rsa_informer"]["2"]["mse"] == pytest.approx(0.5)
    monkeypatch.setenv("WORK", str(tmp_path / "linear"))
    assert run.main(["linear"]) == 0 and "ETTh1/48  linear" in capsys.readouterr().out
    table = tmp_path / "linear" / "results.json"
    before = json.loads(table.read_text())["linear"]
    (tmp_path / "other").mkdir()
    lines = (data / "ETTh1.csv").read_text().splitlines()
    turned = [lines[0], *(re.sub(r"(,-?[\d.]+)(,-?[\d.]+)$", r"\2\1", line) for line in lines[1:])]
    (tmp_path / "other" / "ETTh1.csv").write_text("\n".join([*turned[:-9], *lines[-9:]]) + "\n")
    monkeypatch.setenv("DATA", str(tmp_path / "other"))
    assert run.main(["linear"]) == 0, "other data: forecast again"
    after = json.loads(table.read_text())["linear"]
    assert before.keys() == after.keys() and all(before[cell] != after[cell] for cell in before)
    assert run.main(["tables"]) == 2 and "[table | linear]" in capsys.readouterr().err
    monkeypatch.setenv("CELLS", "ETTh2/24")
    assert run.main([]) == 2 and "a folder with ETTh2.csv" in capsys.readouterr().err
    monkeypatch.setenv("CELLS", "ETTh1/25")
    assert run.main([]) == 2 and "CELLS" in capsys.readouterr().err


def test_every_command_is_one_of_fairseq(data: Path, modules: Any, tmp_path: Path) -> None:
    """Its flags are known, and each RSA form has heads for every cell."""
    cells = modules("cells")
    settings = cells.Settings(data=str(data))
    runs = list(cells.series_runs(settings, tmp_path))
    assert len(runs) == 16 * 6
    costs = [{cell.name: cell.cost for cell in cells.CELLS}[run.row] for run in runs]
    assert costs == sorted(costs)
    for run in runs[::7]:
        words = run.argv("train")[1:]
        parser = options.get_training_parser()
        model = group_config("model", options.parse_args_and_arch(parser, words))
        heads = [int(n) for n in str(model.rsa_heads).split(",") if n]
        assert sum(heads) == (8 if run.system.startswith("rsa_") else 0)
        assert len(str(model.rsa_dilations).split(",")) == max(1, sum(heads[3:]))


def test_linear_forecasts_of_a_linear_recurrence(modules: Any, tmp_path: Path) -> None:
    """A sine is a linear function of its past: only the noise is left, as for both baselines."""
    linear, cell = modules("linear"), modules("cells").CELLS[0]
    assert cell.name == "ETTh1/24"
    write_series(tmp_path / "ETTh1.csv", 20 * 30 * 24)
    for found in linear.linear_errors(cell, str(tmp_path)).values():
        # The noise has deviation 0.3; the signals 3 and 5, divided by the square root of 2.
        least = numpy.mean([0.09 / (0.09 + a**2 / 2) for a in (3, 5)])
        assert least < found["mse"] < 1.15 * least
        assert found["mae"] == pytest.approx(found["mse"] ** 0.5 * (2 / numpy.pi) ** 0.5, rel=0.1)
