"""Forecasters through the command line: training, resuming, validation, forecasts, figures."""

import csv
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fairseq_recur.cli import main
from fairseq_recur.errors import CheckpointError, ConfigError
from fairseq_recur.experiments.training_log import read_log
from fairseq_recur.tasks.time_series import STATE
from tests.conftest import FORECASTERS
from tests.running import USER_DIR, saved_weights, update_losses
from tests.series import SPLIT, WINDOWS, flags, write_series

Cli = Callable[..., str]


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_series(tmp_path_factory.mktemp("series") / "x.csv")


@pytest.mark.parametrize(
    "arch", [pytest.param(a, marks=() if "rsa_xl" in a else pytest.mark.slow) for a in FORECASTERS]
)
def test_resumes_as_if_never_stopped(arch: str, series: Path, cli: Cli, tmp_path: Path) -> None:
    """In the middle of an epoch, with dropout, sampled keys, and a memory of the batch before."""
    # A batch is smaller than a window, so that a memory continues; an epoch has 14 of them.
    batches = ["--batch-size", 8, "--save-dir"]
    train = ["--user-dir", USER_DIR, "--arch", arch, *flags(series, *batches)]
    at_once = cli("train", *train, tmp_path / "once", "--max-update", 16)
    cli("train", *train, tmp_path / "two", "--max-update", 4)
    resumed = cli("train", *train, tmp_path / "two", "--max-update", 16)
    losses = update_losses(at_once)
    assert list(losses) == list(range(1, 17))
    assert update_losses(resumed) == {n: losses[n] for n in range(5, 17)}
    once, two = (saved_weights(tmp_path / n / "checkpoint_last.pt") for n in ("once", "two"))
    assert once.keys() == two.keys() and all(torch.equal(once[k], two[k]) for k in once)
    # Each date of the test part is forecast once, also where a memory needs all windows.
    checkpoint, table = tmp_path / "once" / "checkpoint_last.pt", tmp_path / "forecasts.csv"
    forecast = ["forecast", str(checkpoint), "--output", str(table), "--cpu", "--batch-size", "8"]
    assert main(forecast) == 0
    lines = list(csv.DictReader(table.open()))
    dates = [row.split(",")[0] for row in series.read_text().splitlines()[161:]]
    assert [line["date"] for line in lines] == dates
    assert [int(line["window"]) for line in lines] == [i // 4 for i in range(40)]


def test_models_of_words_are_refused(series: Path, cli: Cli) -> None:
    words = ["--user-dir", USER_DIR, "--arch", "transformer", *flags(series)]
    with pytest.raises(ConfigError, match="--arch transformer is a model of words, .* choose a"):
        cli("train", *words)


def scale(checkpoint: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = torch.load(checkpoint, weights_only=True)["task_state"][STATE]
    return found


def test_the_scale_belongs_to_a_training(
    series: Path, cli: Cli, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Forecasts, validation and a resume use it, whatever the series; a new training does not."""
    path, last = shutil.copy(series, tmp_path / "x.csv"), tmp_path / "out" / "checkpoint_last.pt"
    train = ["--user-dir", USER_DIR, "--arch", "log_sparse", *flags(path, "--disable-validation")]
    cli("train", *train, "--max-update", 2, "--save-dir", last.parent)
    first = scale(last)
    names, *rows = series.read_text().splitlines()
    # The first row is in the training part, and in no window of the test part.
    changed = [names, re.sub(",.*", ",999,-999", rows[0]), *rows[1:]]
    turned = [re.sub(r",(.*),(.*)", r",\2,\1", line) for line in (names, *rows)]
    wider = [f"{line},{'x' if line == names else 1}" for line in (names, *rows)]
    of_validation = [
        "--user-dir", USER_DIR, "--task", "time_series_forecasting", "--series-file", path, *SPLIT,
        *WINDOWS, "--path", last, "--cpu", "--valid-subset", "test", "--batch-size", 8,
        "--num-workers", 0, "--log-format", "simple",
    ]  # fmt: skip

    def forecast() -> str:
        table = tmp_path / "forecasts.csv"
        assert main(["forecast", str(last), "--output", str(table), "--cpu"]) == 0
        return table.read_text()

    def errors() -> list[str]:
        return re.findall(r"m[as]e [\d.]+", cli("validate", *of_validation))

    found = forecast(), errors()
    path.write_text("\n".join(changed))
    assert (forecast(), errors()) == found and len(found[1]) == 2

    start = ["--finetune-from-model", last, "--save-dir", tmp_path / "tuned"]
    cli("train", *train, "--max-update", 1, *start)
    tuned = scale(tmp_path / "tuned" / "checkpoint_last.pt")
    assert tuned["mean"][0] > first["mean"][0] + 8

    for lines, error, said in (
        (turned, ConfigError, "found the variables temperature, load, but the model was trained"),
        (wider, CheckpointError, "the checkpoint forecasts 2 variables, but the series has 3"),
    ):
        path.write_text("\n".join(lines))
        with pytest.raises(error, match=said):
            cli("train", *train, "--max-update", 3, "--save-dir", last.parent)
        with pytest.raises(ConfigError, match="but the model was trained on load, temperature"):
            cli("validate", *of_validation)
        assert main(["forecast", str(last), "--output", str(tmp_path / "y.csv"), "--cpu"]) == 2
        assert "but the model was trained on load, temperature" in capsys.readouterr().err

    path.write_text("\n".join(changed))
    cli("train", *train, "--max-update", 3, "--save-dir", last.parent)  # within the epoch
    assert scale(last) == first
    anew = ["--restore-file", last, "--reset-dataloader", "--save-dir", tmp_path / "anew"]
    cli("train", *train, "--max-update", 4, *anew)
    assert scale(tmp_path / "anew" / "checkpoint_last.pt") == tuned
    # A checkpoint from before has no scale: it is that of the series.
    state = torch.load(last, weights_only=True)
    torch.save({**state, "task_state": {}}, last)
    cli("train", *train, "--max-update", 4, "--save-dir", last.parent)
    assert scale(last) == tuned


@pytest.mark.slow
def test_learns_and_forecasts(series: Path, cli: Cli, tmp_path: Path) -> None:
    """A daily cycle, to an error well below that of the mean, whose MSE is 1; and its files."""
    train = [
        "--user-dir",
        USER_DIR,
        "--arch",
        "rsa_informer",
        *flags(series),
        "--rsa-heads",
        "1,0,0,1,0,0",
    ]
    more = ["--rsa-dilations", 3, "--valid-subset", "valid,test", "--lr", 0.01, "--max-epoch", 20]
    more += ["--validate-interval", 20, "--save-interval", 20, "--log-file", tmp_path / "log"]
    cli("train", *train, *more, "--save-dir", tmp_path / "out")
    log = read_log(str(tmp_path / "log"))
    ((_, mse),), ((_, mae),) = (log.curve(f"test_{name}") for name in ("mse", "mae"))
    assert mse < 0.2
    again = cli(
        "validate", "--user-dir", USER_DIR, "--task", "time_series_forecasting", "--series-file",
        series, *SPLIT, *WINDOWS, "--path", tmp_path / "out" / "checkpoint_last.pt", "--cpu",
        "--valid-subset", "test", "--batch-size", 5, "--num-workers", 0,
        "--log-format", "simple",
    )  # fmt: skip
    found = re.search(r"valid on 'test' subset .* mse ([\d.]+) \| mae ([\d.]+)", again)
    assert found is not None
    assert [float(x) for x in found.groups()] == pytest.approx([mse, mae], rel=1e-3)
    table, figure = tmp_path / "forecasts.csv", tmp_path / "forecasts.png"
    checkpoint = str(tmp_path / "out" / "checkpoint_last.pt")
    assert main(["forecast", checkpoint, "--output", str(table), "--cpu"]) == 0
    lines = list(csv.DictReader(table.open()))
    given = series.read_text().splitlines()[161:]
    assert [float(line["load actual"]) for line in lines] == [
        float(row.split(",")[1]) for row in given
    ]
    wrong = [float(line["load"]) - float(line["load actual"]) for line in lines]
    assert sum(x * x for x in wrong) / len(wrong) < 0.3 * 3**2 / 2
    plot = ["plot", "forecast", str(table), "--output", str(figure), "--variable", "load"]
    assert main(plot) == 0 and figure.stat().st_size > 5000


@pytest.mark.parametrize(
    "words, said",
    [
        (["--variable", "x"], "--variable x: expected some of a, which"),
        (["--first", "5"], "--first 5 --windows 7: no such windows; .* has 0 to 0"),
        (["--first", "5", "--variable", "x", "y"], "- --variable x.*\n- --variable y.*\n- --first"),
    ],
)
def test_plot_of_what_is_not_there(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "x.csv"
    table.write_text("window,date,a,a actual\n0,1/1/2010 0:00,1,2\n")
    assert main(["plot", "forecast", str(table), "--output", str(tmp_path / "x.png"), *words]) == 2
    assert re.search(said, capsys.readouterr().err)
