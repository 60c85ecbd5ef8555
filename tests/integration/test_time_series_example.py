"""The example of the forecasters: its runner with a program in place of fairseq-recur."""

import importlib
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from fairseq import options

from fairseq_recur.cli import training_check
from fairseq_recur.experiments import runner
from tests.configuring import group_config
from tests.series import write_series

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "time_series"
MODULES = ("run", "ablations", "cells", "errors", "linear")

SETTINGS = ("SEEDS", "EPOCHS", "RATE", "DEVICE", "OPTIONS")
OF_OWN_SERIES = ("SPLIT", "HEADS", "DILATIONS")

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
        gates = {{f"gate_{{part}}_0": 0.6 + epoch / 100 for part in ("cross", "encoder") if rsa}}
        print(json.dumps({{"epoch": epoch, **gates, "num_updates": 7 * epoch}}), file=log)
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


@pytest.fixture
def set_up(
    modules: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Callable[[list[str]], int]]:
    """Set variables and the program; give the main of run.py."""

    def given(**variables: Any) -> Callable[[list[str]], int]:
        program = tmp_path / "program"
        program.write_text(PROGRAM.format(python=sys.executable))
        program.chmod(0o755)
        monkeypatch.setattr(runner, "PROGRAM", [str(program)])
        monkeypatch.setattr(runner, "POLL", 0.02)
        for name, value in {"WORK": tmp_path / "work", **variables}.items():
            monkeypatch.setenv(name, str(value))
        main: Callable[[list[str]], int] = modules("run").main
        return main

    return given


def calls(work: Path) -> list[dict[str, str]]:
    """The flags of every training with the words after them."""
    lines = [line for file in sorted(work.rglob("calls")) for line in file.read_text().splitlines()]
    return [dict(zip(words, words[1:])) for words in map(json.loads, lines)]


def test_dry_run(
    data: Path, modules: Any, set_up: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Everything is trained once; the table has the paper's errors, the wins, linear baselines."""
    cells = "ETTh1/48 ETTh1/24"
    set_up(DATA=data, CELLS=cells, SEEDS="1 2", SYSTEMS="informer rsa_informer")
    run = modules("run")
    assert run.main([]) == 0
    printed = capsys.readouterr().out
    assert "8 of 8 runs done" in printed
    for row in (
        "informer 0.800 ± 0.000 0.762 ± 0.144 0.400 ± 0.000 0.632 ± 0.076 2",
        "rsa_informer 0.500 ± 0.000 0.414 ± 0.014 0.250 ± 0.000 0.450 ± 0.012 2",
    ):
        assert f"\nETTh1/24 {row}\n" in re.sub(" +", " ", printed)
    assert re.search(r"ETTh1/48 +linear +0\.\d{3} +0\.\d{3}", printed)
    assert "better than informer in 4 of 4 comparisons; in the paper, in 4 of the" in printed
    assert "Without a result" not in printed
    assert printed.index("ETTh1/24 informer seed 1") < printed.index("ETTh1/48 informer seed 1")
    assert len(calls(tmp_path / "work")) == 8
    assert run.main([]) == 0 and "8 of them already done" in capsys.readouterr().out
    assert len(calls(tmp_path / "work")) == 8
    record = json.loads((tmp_path / "work" / "results.json").read_text())
    assert record["runs"]["ETTh1/24"]["rsa_informer"]["2"]["mse"] == pytest.approx(0.5)
    assert record["settings"].keys() == {"CELLS", "SYSTEMS", *SETTINGS}, "no split, no heads"
    monkeypatch.setenv("RATE", "0.1")
    assert run.main(["table"]) == 0 and "Nothing is finished with" in capsys.readouterr().out
    assert json.loads((tmp_path / "work" / "results.json").read_text()) == record
    monkeypatch.delenv("RATE")
    with monkeypatch.context() as more:
        more.setenv("CELLS", "ETTh1/24 ETTh1/168")
        more.setenv("SYSTEMS", "informer log_sparse")
        assert run.main(["table"]) == 0
    assert "\nWithout a result: ETTh1/24 (log_sparse), ETTh1/168.\n" in capsys.readouterr().out
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
    for wrong in (["tables"], ["heads", "linear"], ["linear", "table"]):
        assert (
            run.main(wrong) == 2 and "[table | linear | heads | gates]" in capsys.readouterr().err
        )
    monkeypatch.setenv("CELLS", "ETTh2/24")
    assert run.main([]) == 2 and "a folder with ETTh2.csv" in capsys.readouterr().err
    monkeypatch.setenv("CELLS", "ETTh1/25")
    assert run.main([]) == 2 and "CELLS" in capsys.readouterr().err


def test_a_moved_file_is_the_same(
    data: Path, set_up: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A training belongs to the content of its file; what other content replaces is kept."""
    first, moved, other = (tmp_path / name for name in ("first", "moved", "other"))
    shutil.copytree(data, first)
    main = set_up(DATA=first, CELLS="ETTh1/24", SYSTEMS="informer")
    assert main([]) == 0
    state = tmp_path / "work/ETTh1/24/informer/seed1/state.json"
    record = json.loads(state.read_text())
    assert str(tmp_path) not in json.dumps(record)
    key = record["train"]["key"]
    place = key.index("--series-file") + 1

    def done(folder: Path, path: list[str]) -> bool:
        """Whether a training whose key has this path counts as one of the folder's file."""
        record["train"]["key"] = [*key[:place], *path, *key[place + 1 :]]
        state.write_text(json.dumps(record))
        monkeypatch.setenv("DATA", str(folder))
        (tmp_path / "work/results.json").unlink()
        assert main(["table"]) == 0
        written = (tmp_path / "work/results.json").is_file()
        if not written:  # as nothing counts
            (tmp_path / "work/results.json").write_text("{}")
        return written

    first.rename(moved)
    former = str(first / "ETTh1.csv")
    assert done(moved, [key[place]]) and done(moved, [former]) and done(moved, [])
    assert not done(moved, [str(first / "ETTh2.csv")])
    other.mkdir()
    text = (data / "ETTh1.csv").read_text().rstrip()
    (other / "ETTh1.csv").write_text(f"{text}1\n")  # another last number
    assert not done(other, [key[place]]) and not done(other, [str(moved / "ETTh1.csv")])
    assert done(moved, [key[place]])

    monkeypatch.setenv("DATA", str(other))
    capsys.readouterr()
    assert main([]) == 0
    aside = state.parents[1] / "seed1_before1"
    assert f"the earlier training is kept in {aside}" in capsys.readouterr().out
    kept = {path.name for path in state.parent.iterdir()} - {"lock"}
    assert kept == {path.name for path in aside.iterdir()} and "calls" in kept
    assert json.loads((aside / "state.json").read_text())["train"]["key"] == key


def test_another_series(
    data: Path, set_up: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Its cells have no figures of the paper; split, heads and dilations are settings."""
    folder = tmp_path / "own"
    folder.mkdir()
    lines = write_series(folder / "load1.csv", 900).read_text().splitlines()
    lines = [lines[0] + ",constant", *(f"{line},7" for line in lines[1:])]
    (folder / "load1.csv").write_text("\n".join(lines))
    settings = {"DATA": folder, "CELLS": "load1.csv/24/12/6", "SPLIT": "0.6,0.2,0.2"}
    main = set_up(**settings, SYSTEMS="log_sparse rsa_log_sparse", DILATIONS="12")
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"load1.csv/24/12/6 +rsa_log_sparse +0\.500 +0\.250 +1\n", printed)
    assert "±" not in printed, "of one seed, and nothing of the paper"
    assert re.search(r"load1.csv/24/12/6 +dlinear +0\.\d{3} +0\.\d{3}\n", printed)
    assert "Without a result" not in printed
    results = json.loads((tmp_path / "work/results.json").read_text())
    assert results["settings"].keys() == {"CELLS", "SYSTEMS", *SETTINGS, *OF_OWN_SERIES}
    monkeypatch.setenv("SPLIT", "0.5,0.25,0.25")
    assert main(["linear"]) == 0
    capsys.readouterr()
    split_anew = json.loads((tmp_path / "work/results.json").read_text())
    assert split_anew["linear"].keys() == results["linear"].keys()
    assert split_anew["linear"] != results["linear"], "of the earlier split"
    monkeypatch.setenv("SPLIT", settings["SPLIT"])
    plain, rsa = calls(tmp_path / "work")
    assert plain["--split-fractions"] == "0.6,0.2,0.2" and "--split-months" not in plain
    assert plain["--input-length"] == "24" and plain["--horizon"] == "6"
    assert "--rsa-heads" not in plain and rsa["--rsa-heads"] == "4,0,0,4,0,0"
    assert rsa["--rsa-dilations"] == "12"
    for flag in ("--horizon 6", "--split-fractions=0.6,0.2,0.2"):
        monkeypatch.setenv("OPTIONS", flag)
        assert main([]) == 2
        assert f"OPTIONS has {flag[:9]}" in capsys.readouterr().err
    monkeypatch.setenv("OPTIONS", "--series-columns load")
    assert main(["linear"]) == 0
    capsys.readouterr()
    of_one = json.loads((tmp_path / "work/results.json").read_text())["linear"]
    assert of_one != results["linear"], "of all columns"
    (of_cell,) = of_one.values()
    assert of_cell["linear"] == pytest.approx(of_cell["dlinear"]), "of a single variable"
    monkeypatch.setenv("OPTIONS", "--dropout '0.1")
    assert main([]) == 2
    assert "OPTIONS=--dropout '0.1: No closing quotation; expected" in capsys.readouterr().err
    monkeypatch.delenv("OPTIONS")
    for wrong in ("load1.csv/24/12", "load1.csv/24/12/0.5", "load1/24/12/6", "other.csv/24/12/6"):
        monkeypatch.setenv("CELLS", wrong)
        assert main([]) == 2
        said = "a folder with other.csv" if "other" in wrong else f"CELLS: {wrong}; expected some"
        assert said in capsys.readouterr().err


def test_kinds_of_heads(
    data: Path, set_up: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Table 6 has twelve selections of eight heads; dilations only where heads have them."""
    main = set_up(DATA=data, CELLS="ETTh1/24", EPOCHS="2")
    assert main(["heads", "table"]) == 0
    assert "Nothing is finished with these settings; give" in capsys.readouterr().out
    assert not (tmp_path / "work").exists()
    assert main(["heads"]) == 0
    printed = capsys.readouterr().out
    rows = re.findall(r"^([\d,]{11}) +(0\.500) +([\d.]+)$", printed, re.M)
    assert rows[0] == ("8,0,0,0,0,0", "0.500", "0.997")
    assert rows[4] == ("2,1,1,4,0,0", "0.500", "0.472")
    assert rows[11] == ("0,2,2,0,2,2", "0.500", "0.422") and len(rows) == 12
    for words in calls(tmp_path / "work" / "heads"):
        counts = [int(n) for n in words["--rsa-heads"].split(",")]
        assert sum(counts) == 8 and counts[1] == counts[2] and counts[4] == counts[5]
        assert words.get("--rsa-dilations") == ("24" if any(counts[3:]) else None)
    written = (tmp_path / "work/heads/results.json").read_text()
    assert json.loads(written)["settings"].keys() == {"CELLS", *SETTINGS}
    monkeypatch.setenv("RATE", "0.1")
    assert main(["heads", "table"]) == 0
    assert (tmp_path / "work/heads/results.json").read_text() == written, "of other settings"
    monkeypatch.delenv("RATE")
    for cells in ("ETTm1/24", "ETTh1/24 ETTm1/24"):
        monkeypatch.setenv("CELLS", cells)
        assert main(["heads"]) == 2 and "this ablation is about ETTh1" in capsys.readouterr().err


OWN, TABLE = "load1.csv/24/12/6", "ETTh1/24"


@pytest.mark.parametrize(
    "arguments, variables, said",
    [
        ([], {"HEADS": "8,0,0,0,0,0"}, "HEADS=8,0,0,0,0,0: has no effect on the cells of the tabl"),
        ([], {"SPLIT": "0.6,0.2,0.2", "CELLS": TABLE}, "SPLIT=0.6,0.2,0.2: has no effect on the c"),
        ([], {"DILATIONS": "", "CELLS": OWN, "SYSTEMS": "informer"}, "systems without RSA; unset"),
        (["heads"], {"DILATIONS": "12"}, "DILATIONS=12: has no effect on the ablation heads"),
        (["gates"], {"CELLS": TABLE}, "CELLS=ETTh1/24: has no effect on the ablation gates"),
        (["heads"], {"OPTIONS": "--rsa-heads 8,0,0,0,0,0"}, "OPTIONS has --rsa-heads: the cells"),
        (["gates"], {"OPTIONS": "--rsa-gate-init=1"}, "OPTIONS has --rsa-gate-init: it is what"),
        (["gates", "table"], {"SYSTEMS": "informer"}, "SYSTEMS=informer: has no effect on the abl"),
    ],
)
def test_variables_without_an_effect_are_refused(
    arguments: list[str], variables: dict[str, str], said: str, data: Path, set_up: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert set_up(DATA=data, **variables)(arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("file", ["/etc/load.csv", "../load.csv", "a/../../load.csv"])
def test_a_cell_is_a_file_in_the_folder_of_the_data(
    file: str, data: Path, set_up: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name of a cell is a folder of the results, which must not be elsewhere."""
    assert set_up(DATA=data, CELLS=f"{file}/24/12/6")([]) == 2
    assert "expected the name of a file in the folder DATA" in capsys.readouterr().err


@pytest.mark.parametrize(
    "rows, said",
    [
        (60, "the split valid has 6 rows, too few for --input-length 24 and --horizon 12"),
        (0, "expected a line of names and at least two lines"),
    ],
)
def test_a_series_that_cannot_be_forecast_is_one_message(
    rows: int, said: str, set_up: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_series(tmp_path / "load1.csv", rows)
    assert set_up(DATA=tmp_path, CELLS="load1.csv/24/12/12")(["linear"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ") and said in printed


def test_what_trainings_would_fail_with_is_found_before_the_first_one(
    data: Path, set_up: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Of every cell and system, and each problem once."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "ETTh1.csv").symlink_to(data / "ETTh1.csv")
    good = write_series(folder / "load1.csv", 900).read_text()
    (folder / "text.csv").write_text(good.replace(",", ",x", 40))
    cells = f"{TABLE} {OWN} load1.csv/24/12/800 load1.csv/24/30/6 text.csv/24/12/6"
    main = set_up(DATA=folder, CELLS=cells, HEADS="8,0", SEEDS="1 2")
    assert main([]) == 2
    said = capsys.readouterr().err
    for part in (
        "no training was started; change the variables",
        "- load1.csv/24/12/6 rsa_informer: the model's options cannot be used",
        "--rsa-heads 8,0: six numbers are needed",
        "- load1.csv/24/12/800 informer: the split train has",
        "- load1.csv/24/30/6 informer: task time_series_forecasting",
        "--label-length 30: expected at most --input-length 24",
        "- text.csv/24/12/6 informer: ",
    ):
        assert said.count(part) == 1 or "six numbers" in part, (part, said)
    assert TABLE not in said and not (tmp_path / "work").exists()
    monkeypatch.setenv("CELLS", TABLE)
    monkeypatch.delenv("HEADS")
    for given, wrong in {
        "--no-such-flag 1": "unknown argument '--no-such-flag'",
        "--help": "a flag ends the command; remove it",
        "--encoder-attention-heads 0": "- ETTh1/24 informer: the model's options cannot be used",
        "--no-save --valid-subset valid": "OPTIONS has --valid-subset: the table is read from what",
    }.items():
        monkeypatch.setenv("OPTIONS", given)
        assert main([]) == 2
        printed = capsys.readouterr()
        assert printed.err.count(wrong) == 1, printed.err
        assert len(printed.out.splitlines()) <= 1, "not fairseq's help"
    monkeypatch.delenv("OPTIONS")
    assert main(["table"]) == 0, "what is finished can be read"


def test_a_batch_beyond_the_memory_is_found_before_the_first_training(
    data: Path, set_up: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    main = set_up(DATA=data, CELLS="ETTh1.csv/24/12/12", SYSTEMS="informer xl_forecaster")
    assert main([]) == 2
    said = capsys.readouterr().err
    assert "- ETTh1.csv/24/12/12 xl_forecaster: --encoder-memory xl has no effect" in said
    assert "give a smaller --batch-size" in said and "informer:" not in said
    assert not (tmp_path / "work").exists()
    monkeypatch.setenv("OPTIONS", "--batch-size 16")
    assert main([]) == 0


def test_blanks_separate_the_cells(
    data: Path, set_up: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set_up(DATA=data, CELLS="my load.csv/24/12/12")([]) == 2
    said = capsys.readouterr().err
    assert "CELLS: my; expected some" in said and "blanks separate cells" in said
    for wrong in ("LOAD.CSV/24/12/12", "load.csv/0/12/12", "load.csv/24/12/0"):
        assert set_up(DATA=data, CELLS=wrong)([]) == 2
        said = capsys.readouterr().err
        assert f"CELLS: {wrong}; expected some" in said and "INPUT and HORIZON at least 1" in said
        assert "blanks separate cells" not in said


def test_a_linear_forecast_of_too_few_rows_names_the_cell(
    data: Path, set_up: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set_up(DATA=data, CELLS="ETTh1.csv/24/12/12 ETTh1.csv/24/12/9000")(["linear"]) == 2
    said = capsys.readouterr().err
    assert "error: ETTh1.csv/24/12/9000: the split valid has" in said, said


def test_checking_can_be_stopped(
    data: Path, set_up: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(training_check.tasks, "setup_task", interrupted)
    assert set_up(DATA=data, CELLS=TABLE)([]) == 130
    assert "stopped by SIGINT; the same command continues from here" in capsys.readouterr().err


@pytest.mark.slow
def test_gates_during_training(
    data: Path, set_up: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = set_up(DATA=data, SEEDS="1 2", EPOCHS="2")
    assert main(["gates"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"initial mu +MSE +MAE +cross_0 +encoder_0 +seeds", printed)
    errors = r"0\.500 ± 0\.000 +0\.250 ± 0\.000"
    assert re.search(rf"^-1 +{errors} +0\.620 +0\.620 +2$", printed, re.M)
    found = calls(tmp_path / "work" / "gates")
    assert {words["--horizon"] for words in found} == {"24"} and len(found) == 6
    record = json.loads((tmp_path / "work/gates/results.json").read_text())
    curves = record["runs"]["ETTh1/24"]["1"]["2"]["gates"]
    assert curves["cross_0"] == [[0, pytest.approx(0.7311, abs=1e-4)], [7, 0.61], [14, 0.62]]
    assert (tmp_path / "work/gates/figure.png").stat().st_size > 10_000


def test_weak_baselines_are_named(modules: Any) -> None:
    """Those above the paper's mean by more than its deviation, 0.144 for Informer on ETTh1/24."""
    weak = modules("errors").weak

    def found(system: str, mse: float) -> list[str]:
        return weak({"ETTh1/24": {system: {"1": {"mse": mse, "mae": 1.0}}}, "x.csv/1/1/1": {}})

    assert found("informer", 0.905) == found("rsa_informer", 9.0) == []
    assert found("informer", 0.907) == [
        "informer on ETTh1/24: MSE 0.907, the paper's 0.762 ± 0.144."
    ]


def of_seeds(*errors: float) -> dict[str, dict[str, float]]:
    """The results of seeds 1, 2 and so on; the MAE is half the MSE."""
    return {str(n): {"mse": mse, "mae": mse / 2} for n, mse in enumerate(errors, 1)}


def test_deviations_stand_beside_the_means(modules: Any) -> None:
    """Of two seeds at least, in all tables; the paper's are always there."""
    errors, ablations = modules("errors"), modules("ablations")
    results = {"ETTh1/24": {"informer": of_seeds(0.8, 0.9), "rsa_informer": of_seeds(0.5)}}
    several = ["0.850 ± 0.071", "0.762 ± 0.144", "0.425 ± 0.035", "0.632 ± 0.076", "2"]
    one = ["0.500", "0.414 ± 0.014", "0.250", "0.450 ± 0.012", "1"]
    found = errors.rows(results, {})
    assert found == [["ETTh1/24", "informer", *several], ["ETTh1/24", "rsa_informer", *one]]
    report = {"runs": results, "linear": {}, "settings": {"SYSTEMS": "informer", "CELLS": ""}}
    assert "\n± is the standard deviation over the seeds" in errors.summary(report)
    heads = {"ETTh1/24": {"8,0,0,0,0,0": of_seeds(0.8, 0.9), "6,1,1,0,0,0": of_seeds(0.5)}}
    shown = [row[1] for row in ablations.heads_rows(heads)[1:3]]
    assert shown == ["0.850 ± 0.071", "0.500 (1)"]


def test_the_readme_has_the_table_of_its_record(modules: Any) -> None:
    """The rows that `table` writes of the recorded trainings with three seeds."""
    record = json.loads((EXAMPLE / "results" / "etth1_24.json").read_text())
    lines = modules("errors").summary(record, markdown=True).splitlines()
    table = "\n".join(line for line in lines if line.startswith("|"))
    assert "0.830 ± 0.041" in table and f"\n{table}\n" in (EXAMPLE / "README.md").read_text()


def test_cells_may_have_different_numbers_of_seeds(
    data: Path, set_up: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The commands of README.md: one seed of all, three of some, one table."""
    main = set_up(DATA=data, CELLS="ETTh1/24 ETTh1/168", SYSTEMS="informer")
    assert main([]) == 0
    with monkeypatch.context() as more:
        more.setenv("SEEDS", "1 2 3")
        more.setenv("CELLS", "ETTh1/24")
        assert main([]) == 0
    monkeypatch.setenv("SEEDS", "1 2 3")
    capsys.readouterr()
    assert main(["table"]) == 0
    printed = re.sub(" +", " ", capsys.readouterr().out)
    assert "ETTh1/24 informer 0.800 ± 0.000 0.762 ± 0.144" in printed
    assert re.search(r"^ETTh1/168 informer 0.800 1.141 ± 0.022 .* 1$", printed, re.M)
    assert [words["--seed"] for words in calls(tmp_path / "work")].count("1") == 2


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


def test_wins_compare_the_seeds_that_both_have(modules: Any) -> None:
    """A second seed of the host alone, which would turn the comparison round, does not count."""
    errors = {
        "informer": {"1": 0.8, "2": 0.1},
        "rsa_informer": {"1": 0.5},
        "log_sparse": {"1": 0.5},
    }
    of_cell = {
        system: {seed: {"mse": error, "mae": error} for seed, error in of_seeds.items()}
        for system, of_seeds in errors.items()
    }
    (line,) = modules("errors").wins({"ETTh1/24": of_cell})
    assert line.startswith("rsa_informer is better than informer in 2 of 2 comparisons")
    del of_cell["informer"]["1"]
    assert modules("errors").wins({"ETTh1/24": of_cell}) == []
