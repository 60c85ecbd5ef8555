"""The task time_series_forecasting: reading, splits, features, windows; and its criterion."""

import csv
import lzma
import re
import shlex
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from fairseq.data import data_utils
from fairseq.logging import metrics
from omegaconf import OmegaConf

from fairseq_recur.cli import main
from fairseq_recur.criterions.forecast_error import ForecastErrorCriterion, forecast_errors
from fairseq_recur.errors import ConfigError
from fairseq_recur.tasks.series_data import as_columns, columns_of, read_series
from fairseq_recur.tasks.series_splits import scale_of, split_rows
from fairseq_recur.tasks.time_series import STATE, TimeSeriesConfig, TimeSeriesTask
from tests.series import write_series


def task(path: Path, **options: Any) -> TimeSeriesTask:
    cfg = {"series_file": str(path), "split_fractions": "0.6,0.2,0.2", "input_length": 12}
    cfg |= {"label_length": 6, "horizon": 4}
    structured = OmegaConf.structured(TimeSeriesConfig(**{**cfg, **options}))
    return TimeSeriesTask.setup_task(structured)


@pytest.mark.parametrize("american", [False, True])
def test_features_of_the_dates(tmp_path: Path, american: bool) -> None:
    """Informer's: hour, weekday, day of the month and of the year, from -0.5 to 0.5."""
    series = read_series(str(write_series(tmp_path / "x.csv", 60, american)))
    assert series.step == timedelta(hours=1)
    # 2016-07-02 05:00, a Saturday, the 184th day of its year
    expected = [5 / 23 - 0.5, 5 / 6 - 0.5, 1 / 30 - 0.5, 183 / 365 - 0.5]
    assert series.features()[29].tolist() == pytest.approx(expected)


def test_minutes_are_a_feature_of_series_by_the_minute(tmp_path: Path) -> None:
    lines = [f"2016-07-01 {r // 4:02}:{r % 4 * 15:02}:00,{r}" for r in range(12)]
    (tmp_path / "x.csv").write_text("\n".join(["date,a", *lines]))
    features = read_series(str(tmp_path / "x.csv")).features()
    assert features.shape == (12, 5) and features[3, 0] == pytest.approx(45 / 59 - 0.5)


FORMS = {
    "%Y-%m-%dT%H:%M": "",
    "%Y/%m/%d %H:%M": "",
    "%d.%m.%Y %H:%M:%S": "",
    "%m/%d/%Y": "days",
    "%Y-%m-%d": "days",
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_dates(tmp_path: Path, form: str) -> None:
    step = timedelta(days=1) if FORMS[form] else timedelta(hours=1)
    times = [datetime(2016, 7, 1) + row * step for row in range(40)]
    lines = [f"{time:{form}},{row}" for row, time in enumerate(times)]
    (tmp_path / "x.csv").write_text("\n".join(["date,a", *lines]))
    series = read_series(str(tmp_path / "x.csv"))
    assert series.times == times and series.step == step


def test_forms_of_tables(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A byte order mark, Windows' line ends, semicolons, an index, blank lines, a date inside."""
    path = tmp_path / "x.csv"
    lines = [f"{row};{row}.5;2016-07-01 {row:02}:00:00;-{row};good" for row in range(9)]
    text = "\r\n".join([";T (K);Date Time;wind;Timestamp", *lines, "", ";;;;", ""])
    path.write_bytes(text.encode("utf-8-sig"))
    with pytest.raises(ConfigError, match="line 2: found 'good' as Timestamp; expected a date"):
        read_series(str(path))
    path.write_bytes(
        text.replace("Timestamp", "state").replace("Date Time", "TIME").encode("utf-8-sig")
    )
    with pytest.raises(ConfigError, match="line 2: found 'good' as state, the first of 9 such"):
        read_series(str(path))
    with pytest.raises(ConfigError, match=r"no column x .* some of T \(K\), wind, state$"):
        read_series(str(path), ["x"])
    series = read_series(str(path), ["wind", "T (K)"])
    assert series.names == ["wind", "T (K)"]
    assert series.values.tolist() == [[-row, row + 0.5] for row in range(9)]
    assert [str(time) for time in series.times[:2]] == ["2016-07-01 00:00:00", series.dates[1]]
    made = task(write_series(path), series_columns=" temperature, load,")
    assert made.series.names == ["temperature", "load"] and made.values.shape == (200, 2)
    assert caplog.text == ""


def test_missing_rows_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The step is the usual one, also where the first rows are further apart."""
    path = write_series(tmp_path / "x.csv", 30)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], *lines[4:10], *lines[11:]]))
    series = read_series(str(path))
    assert series.step == timedelta(hours=1) and len(series.values) == 27
    said = "x.csv: 2 of the 27 rows are not 1:00:00 later than the row before, the first in line 3"
    assert said in caplog.text


def test_months_have_thirty_days(tmp_path: Path) -> None:
    series = read_series(str(write_series(tmp_path / "x.csv", 24 * 30 * 3)))
    assert split_rows(series, "1,1,1", "") == {
        "train": (0, 720), "valid": (720, 1440), "test": (1440, 2160)
    }  # fmt: skip
    assert split_rows(series, "", "0.7,0.1,0.2")["test"] == (1728, 2160)


def test_fractions_of_the_whole_leave_no_row_out(tmp_path: Path) -> None:
    """What rounding leaves belongs to validation, and the test part is at the end."""
    series = read_series(str(write_series(tmp_path / "x.csv", 33)))
    assert split_rows(series, "", "0.7,0.1,0.2") == {
        "train": (0, 23), "valid": (23, 27), "test": (27, 33)
    }  # fmt: skip
    assert split_rows(series, "", "0.5,0.1,0.2") == {
        "train": (0, 16), "valid": (16, 19), "test": (19, 25)
    }  # fmt: skip


def test_windows(tmp_path: Path) -> None:
    """The input ends where the forecast begins, and reaches back into the split before."""
    made = task(write_series(tmp_path / "x.csv"))
    rows = {"train": (12, 120), "valid": (120, 160), "test": (160, 200)}
    train = made.series.values[:120]
    scaled = (made.series.values - train.mean(0)) / train.std(0)
    for split, (first, last) in rows.items():
        made.load_dataset(split)
        windows = made.dataset(split)
        assert len(windows) == last - first - 4 + 1
        batch = windows.collater([0, len(windows) - 1])
        inputs = batch["net_input"]
        for b, row in enumerate((first, last - 4)):
            numpy.testing.assert_allclose(inputs["past"][b], scaled[row - 12 : row], rtol=1e-5)
            numpy.testing.assert_allclose(batch["target"][b], scaled[row : row + 4], rtol=1e-5)
            assert torch.equal(inputs["past_times"][b], made.features[row - 12 : row])
            assert torch.equal(inputs["future_times"][b], made.features[row : row + 4])
    assert batch["ntokens"] == 8 and batch["nsentences"] == 2


def test_no_split_continues_another(tmp_path: Path) -> None:
    """The numbers of the windows, by which a memory knows what came before, are far apart."""
    made, starts = task(write_series(tmp_path / "x.csv")), []
    for split in ("train", "valid", "test"):
        made.load_dataset(split)
        batch = made.dataset(split).collater([0, 1])
        first, second = batch["net_input"]["starts"].tolist()
        assert second == first + 1
        starts.append(first)
    assert all(after - before > 2**16 for before, after in zip(starts, starts[1:]))


@pytest.mark.parametrize("order", ["sequential", "shuffled"])
def test_order_of_the_windows(tmp_path: Path, order: str) -> None:
    """Sequential: the batches follow in time in each epoch. Shuffled: anew in each epoch."""
    made = task(write_series(tmp_path / "x.csv"), window_order=order)
    made.load_dataset("train")
    epochs = []
    for epoch in (1, 2):
        batches = made.get_batch_iterator(made.dataset("train"), max_sentences=8, epoch=epoch)
        epochs.append([i for b in batches.next_epoch_itr() for i in b["id"].tolist()])
    in_time = list(range(len(made.dataset("train"))))
    assert all(sorted(ids) == in_time for ids in epochs)
    assert [ids == in_time for ids in epochs] == [order == "sequential"] * 2
    assert (epochs[0] == epochs[1]) is (order == "sequential")
    made.remembers = True
    refused = pytest.raises(ConfigError, match="--window-order shuffled: no batch continues")
    with nullcontext() if order == "sequential" else refused:
        made.get_batch_iterator(made.dataset("train"), max_sentences=8)


@pytest.mark.parametrize("order", ["sequential", "shuffled"])
def test_an_incomplete_batch_is_dropped(tmp_path: Path, order: str) -> None:
    """Of each split: with 105 and 37 windows, batches of 8 leave out 1 and 5."""
    series = write_series(tmp_path / "x.csv")
    made = task(series, window_order=order, drop_last_batch=True)
    for split, left in (("train", 104), ("valid", 32)):
        made.load_dataset(split)
        windows = made.dataset(split)
        batches = made.get_batch_iterator(windows, max_sentences=8)
        drawn = [batch["id"].tolist() for batch in batches.next_epoch_itr()]
        assert {*map(len, drawn)} == {8} and len({*sum(drawn, [])}) == left
        if order == "sequential" or split == "valid":
            assert sum(drawn, []) == list(range(left))
    # fairseq makes batches of 8 for 12, with its default multiple.
    fresh = task(series, drop_last_batch=True)
    fresh.load_dataset("valid")
    windows = fresh.dataset("valid")
    found = fresh.get_batch_iterator(windows, max_sentences=12, required_batch_size_multiple=8)
    assert [len(batch["id"]) for batch in found.next_epoch_itr()] == [8] * 4
    assert fresh.whole_batch(windows, 39, None, 8) == 32  # of 37 windows: a whole batch is there
    rows = 4 * windows.size(0) + 3
    limits = {"max_tokens": rows, "max_sentences": 16, "disable_iterator_cache": True}
    found = fresh.get_batch_iterator(windows, **limits)
    assert [len(batch["id"]) for batch in found.next_epoch_itr()] == [4] * 9
    with pytest.raises(ConfigError, match="valid has 37 windows, fewer than a batch of 40"):
        made.get_batch_iterator(made.dataset("valid"), max_sentences=40)
    with pytest.raises(ConfigError, match="--drop-last-batch needs --batch-size"):
        made.get_batch_iterator(made.dataset("valid"), max_tokens=400)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"input_length": 0}, "--input-length 0: expected 1 to"),
        ({"label_length": 13}, "--label-length 13: expected at most --input-length 12"),
        ({"series_file": None}, "give a CSV file with --series-file"),
        ({"series_file": "nowhere.csv"}, "--series-file nowhere.csv: no such file"),
        ({"series_columns": "load,x"}, "no column x .*; expected some of load, temperature"),
        ({"split_fractions": "1,2"}, "--split-fractions 1,2: expected three numbers"),
        ({"split_fractions": "0.9,0.9,0.1"}, "they add up to more than 1"),
        ({"split_months": "9,1,1"}, "--split-months 9,1,1 has no effect with --split-fractions"),
        ({"split_fractions": "", "split_months": "9,1,1"}, "has 200; give fewer, or --split-f"),
    ],
)
def test_wrong_options(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        task(write_series(tmp_path / "x.csv"), **options)


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda lines: lines[:2], "at least two lines"),
        (lambda lines: [], "at least two lines"),
        (lambda lines: ["date", *(line.split(",")[0] for line in lines[1:])], "at least two lines"),
        (lambda lines: lines[1:], "begins with the date 2016-07-01 00:00:00; add a line of names"),
        (lambda lines: ["date,a,a", *lines[1:]], "several columns called a; rename them"),
        (lambda lines: [*lines[:3], "yesterday,1,2"], "line 4: found 'yesterday' as date; ex"),
        (lambda lines: [*lines[:3], "31/12/2016 0:00,1,2"], "line 4: found '31/12/2016 0:00' as"),
        (lambda lines: [*lines[:3], "2016-07-01 02:00:00+02:00,1,2"], "line 4: found '2016-07-01"),
        (lambda lines: [*lines[:3], lines[3].rpartition(",")[0]], "line 4: 2 columns; expected 3"),
        (lambda lines: [*lines[:3], lines[3] + "x"], "line 4: found '.*x' as temperature; e"),
        (lambda lines: [*lines[:3], lines[3].rpartition(",")[0] + ",nan"], "line 4: found 'nan' a"),
        (lambda lines: [*lines[:3], lines[3].rpartition(",")[0] + ","], "line 4: found '' as tem"),
        (lambda lines: [*lines[:4], lines[3]], "line 5: its date is not later than that of the"),
    ],
)
def test_wrong_files(tmp_path: Path, change: Any, said: str) -> None:
    path = write_series(tmp_path / "x.csv", 10)
    path.write_text("\n".join(change(path.read_text().splitlines())))
    with pytest.raises(ConfigError, match=said):
        read_series(str(path))


DECIMAL = "expected a finite number; write a decimal point in place of each decimal comma"
THOUSANDS = "expected a finite number; remove the thousands separators"
EITHER = "expected a finite number; remove each comma that separates thousands, and write"


@pytest.mark.parametrize(
    "values, said",
    [
        (["1,234.5"], THOUSANDS),
        (["1.234,5"], THOUSANDS),
        (["1,234,567"], THOUSANDS),
        (["-1.234.567"], THOUSANDS),
        (["1 234.5"], THOUSANDS),
        (["999,5", "1.234,5"], THOUSANDS),
        (["1,234", "1,234.5"], THOUSANDS),
        (["12,5"], DECIMAL),
        (["0,123"], DECIMAL),
        (["1,234", "12,5"], DECIMAL),
        (["1,234"], EITHER),
        (["1,23.4"], "fill in what is missing"),
    ],
)
def test_thousands_separators_are_named(tmp_path: Path, values: list[str], said: str) -> None:
    """A comma before three digits may be one, so the other values tell what it is."""
    rows = [f"2016-07-0{day};{value}" for day, value in enumerate(["1.5", *values, "2"], 1)]
    (tmp_path / "x.csv").write_text("\n".join(["date;load", *rows]))
    with pytest.raises(ConfigError, match=f"line 3: found '{values[0]}' as load.*; {said}"):
        read_series(str(tmp_path / "x.csv"))


def test_other_encodings_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes("date,W/m²\n2016-07-01,1\n2016-07-02,2".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"x.csv is not a CSV file in UTF-8 .*; convert it"):
        read_series(str(tmp_path / "x.csv"))


def test_wrong_splits(tmp_path: Path) -> None:
    made = task(write_series(tmp_path / "x.csv"), input_length=130)
    for split in ("train", "valid"):
        with pytest.raises(ConfigError, match=f"the split {split} has .* rows, too few"):
            made.load_dataset(split)
    with pytest.raises(ConfigError, match="train, valid, test, not 'bin0'"):
        made.load_dataset("bin0")
    with pytest.raises(ConfigError, match="--split-fractions .*: the training part has no rows"):
        task(tmp_path / "x.csv", split_fractions="0.001,0.2,0.2")


def test_errors_are_summed_over_values(tmp_path: Path) -> None:
    forecast, target = torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[0.0, 5.0]]])
    assert [float(x) for x in forecast_errors(forecast, target)] == [10.0, 4.0]
    criterion = ForecastErrorCriterion(task(write_series(tmp_path / "x.csv")))
    sample = {"target": target, "net_input": {"past": forecast}, "nsentences": 1, "ntokens": 1}
    loss, size, log = criterion(lambda past: past, sample)
    assert (float(loss), size, float(log["absolute"])) == (10.0, 2, 4.0)


def test_two_batches_weigh_by_their_values() -> None:
    metrics.reset()
    with metrics.aggregate() as found:
        for total, values in ((8.0, 8), (0.0, 2)):
            sums = {"loss": total, "absolute": total / 2, "sample_size": values}
            ForecastErrorCriterion.reduce_metrics([sums])
    expected = {"loss": 0.8, "mse": 0.8, "mae": 0.4}
    assert found.get_smoothed_values() == pytest.approx(expected)


def test_the_scale_of_a_constant(tmp_path: Path) -> None:
    """It is 1, where numpy's deviation is a rounding error: a later change is not blown up."""
    path = write_series(tmp_path / "x.csv")
    lines = path.read_text().splitlines()
    constant = [f"{line},{0.1 if row < 150 else 0.3}" for row, line in enumerate(lines[1:])]
    path.write_text("\n".join([lines[0] + ",constant", *constant]))
    made = task(path)
    train = made.series.values[:120]
    assert 0 < train[:, 2].std() < 1e-15
    assert made.deviation.tolist() == pytest.approx([*train[:, :2].std(0), 1.0])
    assert made.values[:, 2].tolist() == pytest.approx([0.0] * 150 + [0.2] * 50)
    small = numpy.array([[1e-200], [2e-200]])  # whose squares are 0
    assert scale_of(small)[1].tolist() == [1.0]


@pytest.mark.parametrize("row, value", [(5, 1e200), (5, -1e308), (190, 1e60)])
def test_values_too_large_for_the_scale_are_refused(tmp_path: Path, row: int, value: float) -> None:
    """In the rows of training, or so large later that float32 has no standardised value."""
    path = write_series(tmp_path / "x.csv")
    lines = path.read_text().splitlines()
    lines[row] = f"{lines[row].rsplit(',', 1)[0]},{value}"
    path.write_text("\n".join(lines))
    said = re.escape(f"{path}: the values of temperature reach {value:g}, too large for its mean")
    with pytest.raises(ConfigError, match=said):
        task(path)
    made = task(write_series(path))  # with the scale of a checkpoint
    with pytest.raises(ConfigError, match="the values of load reach .*, too large for its mean"):
        made.set_scale(made.mean, made.deviation * 1e-300)


def test_a_checkpoint_has_the_scale(tmp_path: Path) -> None:
    """Data sets that are loaded already get it, too, and so do later checkpoints."""
    made = task(write_series(tmp_path / "x.csv"))
    torch.save(made.state_dict(), tmp_path / "state.pt")
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    mean, deviation = made.mean.tolist(), made.deviation.tolist()
    series = {"names": ["load", "temperature"], "step": 3600.0}
    assert saved == {STATE: {**series, "mean": mean, "deviation": deviation}}
    longer = write_series(tmp_path / "longer.csv", 300)
    other = task(longer)
    assert other.mean.tolist() != mean
    other.load_dataset("train")
    other.load_state_dict(saved)
    assert other.state_dict() == saved == made.state_dict()
    assert torch.equal(other.values[:200], made.values)
    past = other.dataset("train").collater([0])["net_input"]["past"]
    assert torch.equal(past[0], made.values[:12])
    old = task(longer)
    before = old.values.clone()
    old.load_state_dict({})
    assert torch.equal(old.values, before)


@pytest.mark.parametrize("names", ["temperature,load", "load"])
def test_other_variables_than_in_training_are_refused(tmp_path: Path, names: str) -> None:
    made = task(write_series(tmp_path / "x.csv"))
    other = task(tmp_path / "x.csv", series_columns=names)
    said = (
        f"x.csv: found the variables {names.replace(',', ', ')}, but the model was trained on "
        "load, temperature: .* --series-columns load,temperature$"
    )
    with pytest.raises(ConfigError, match=said):
        other.load_state_dict(made.state_dict())


def test_another_step_than_in_training_is_refused(tmp_path: Path) -> None:
    """A checkpoint from before it was stored has none."""
    made = task(write_series(tmp_path / "x.csv"))
    lines = (tmp_path / "x.csv").read_text().splitlines()
    first = datetime.fromisoformat(lines[1].split(",")[0])
    daily = [f"{first + timedelta(days=n)},{x.split(',', 1)[1]}" for n, x in enumerate(lines[1:])]
    (tmp_path / "daily.csv").write_text("\n".join([lines[0], *daily]) + "\n")
    other, state = task(tmp_path / "daily.csv"), made.state_dict()
    with pytest.raises(ConfigError, match="found a row every 1 day.*trained on a row every 1:00:0"):
        other.load_state_dict(state)
    del state[STATE]["step"]
    other.load_state_dict(state)


Forecast = Callable[..., list[dict[str, str]] | str]


@pytest.fixture
def forecast(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Forecast:
    """Forecast with a frozen model: ``forecast("xl_forecaster", "--batch-size", 12, seed=2)``.

    Options by name are those of its training's data set and processes. The result is the table, or
    the message if the command refuses.
    """
    frozen = Path(__file__).resolve().parents[1] / "frozen"

    def run(name: str, *flags: Any, **options: Any) -> list[dict[str, str]] | str:
        model, table = tmp_path / "model.pt", tmp_path / "table.csv"
        model.write_bytes(lzma.decompress((frozen / f"{name}.pt.xz").read_bytes()))
        state = torch.load(model, weights_only=True)
        for option, value in options.items():
            section = "distributed_training" if "world" in option else "dataset"
            assert option in state["cfg"][section]
            state["cfg"][section][option] = value
        torch.save(state, model)
        table.unlink(missing_ok=True)
        series = [] if "--series-file" in flags else ["--series-file", frozen / "series.csv"]
        command = ["forecast", model, *series, "--cpu", "--output", table, *flags]
        code = main([*map(str, command)])
        assert code == (0 if table.exists() else 2)
        return list(csv.DictReader(table.open())) if not code else capsys.readouterr().err

    return run


@pytest.mark.parametrize("size", [13, 100])
def test_a_batch_that_leaves_a_memory_empty_is_refused(forecast: Forecast, size: int) -> None:
    """In forecast, as in training; a single batch, too. Batches that continue are forecast."""
    assert f"with 1 x {size} windows" in forecast("xl_forecaster", "--batch-size", size)
    assert len(forecast("xl_forecaster", "--batch-size", 12)) == 20


@pytest.mark.parametrize(
    "batch, tokens, multiple, processes",
    [
        (8, None, 8, 1), (8, None, 1, 1), (11, None, 8, 1), (4, None, 8, 2), (2, None, 1, 4),
        (None, 128, 8, 1), (None, 190, 8, 1), (17, 143, 1, 1), (8, 190, 1, 1), (None, 64, 8, 2),
    ],
)  # fmt: skip
def test_a_memory_is_as_long_as_in_training(
    forecast: Forecast, batch: int | None, tokens: int | None, multiple: int, processes: int
) -> None:
    """By default. As many windows, of 16 rows, are in a batch of all processes: here 8."""
    found = forecast(
        "xl_forecaster", batch_size=batch, max_tokens=tokens,
        required_batch_size_multiple=multiple, distributed_world_size=processes,
    )  # fmt: skip
    assert found == forecast("xl_forecaster", "--batch-size", 8)
    assert found != forecast("xl_forecaster", "--batch-size", 12)
    batches = data_utils.batch_by_size(
        numpy.arange(40), lambda _: 16, max_sentences=batch, max_tokens=tokens,
        required_batch_size_multiple=multiple,
    )  # fmt: skip
    assert len(batches[0]) * processes == 8


def test_a_column_of_forecasts_is_not_one_of_actual_values(
    forecast: Forecast, tmp_path: Path
) -> None:
    lines = (Path(__file__).resolve().parents[1] / "frozen/series.csv").read_text().splitlines()
    first, second = lines[0].split(",")[1:3]
    lines[0] = lines[0].replace(second, f"{first} actual")
    (tmp_path / "twice.csv").write_text("\n".join(lines))
    words = ["--series-file", tmp_path / "twice.csv", "--series-columns"]
    said = forecast("log_sparse", *words, ",".join(lines[0].split(",")[1:]))
    assert f"{first} actual: the file would have two columns of that name" in said


def test_forecasts_of_large_values_keep_their_digits(forecast: Forecast, tmp_path: Path) -> None:
    """Six below the deviation, as those of small values, and no more."""
    series = write_series(tmp_path / "x.csv", 100)
    names, *lines = series.read_text().splitlines()
    rows = [line.split(",") for line in lines]
    moved = [f"{date},{1e6 + float(load):.4f},{value}" for date, load, value in rows]
    (tmp_path / "moved.csv").write_text("\n".join([names, *moved]))
    near, far = (
        forecast("log_sparse", "--series-file", tmp_path / name) for name in ("x.csv", "moved.csv")
    )
    assert [float(line["load"]) - 1e6 for line in far] == pytest.approx(
        [float(line["load"]) for line in near], abs=1e-4
    )
    for line in near + far:
        assert re.fullmatch(r"-?\d+\.\d{1,6}", line["load"])


def test_a_forecast_does_not_replace_the_series_of_the_training(
    forecast: Forecast, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint names it, not the command."""
    frozen, series = Path(__file__).resolve().parents[1] / "frozen", tmp_path / "series.csv"
    series.write_bytes((frozen / "series.csv").read_bytes())
    assert len(forecast("log_sparse")) == 20
    model = tmp_path / "model.pt"
    state = torch.load(model, weights_only=True)
    state["cfg"]["task"]["series_file"] = str(series)
    torch.save(state, model)
    assert main(["forecast", str(model), "--cpu", "--output", str(series)]) == 2
    assert f"cannot write {series}: this command reads it" in capsys.readouterr().err
    assert series.read_bytes() == (frozen / "series.csv").read_bytes()


def test_a_split_of_the_checkpoint_is_not_blamed_on_the_user(tmp_path: Path) -> None:
    series = str(write_series(tmp_path / "x.csv"))
    cfg = TimeSeriesConfig(series_file=series, split_months="1,1,1")
    cfg.split_fractions = "0.6,0.2,0.2"
    said = "--split-months 1,1,1 has no effect with --split-fractions 0.6,0.2,0.2; "
    with pytest.raises(ConfigError, match=f"{said}leave out one of them"):
        TimeSeriesTask.setup_task(cfg)
    with pytest.raises(ConfigError, match=f"{said}the checkpoint has .*, give also --"):
        TimeSeriesTask.setup_task(cfg, from_checkpoint=True)


def test_columns_are_chosen_for_a_forecast(forecast: Forecast, tmp_path: Path) -> None:
    series = write_series(tmp_path / "x.csv", 100)
    found = forecast("log_sparse", "--series-file", series)
    lines = series.read_text().splitlines()[1:]
    turned = [re.sub(",(.*),(.*)", r",\2,\1,1", line) for line in lines]
    (tmp_path / "turned.csv").write_text("\n".join(["date,temperature,load,x", *turned]))
    chosen = ["--series-file", tmp_path / "turned.csv"]
    said = "the checkpoint forecasts 2 variables, but the series has 3: give a --series-file"
    assert said in forecast("log_sparse", *chosen)
    assert forecast("log_sparse", *chosen, "--series-columns", "load,temperature") == found
    names = ["wind, m/s", "T"]
    assert columns_of(shlex.split(as_columns(names))[0]) == names
    assert columns_of(" a,b ,, c") == ["a", "b", "c"] and columns_of("") == []
