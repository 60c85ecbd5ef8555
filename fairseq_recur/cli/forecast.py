"""Forecast a split of a time series with a trained forecaster, and write a CSV file.

Each line has the number of the window, a date, the forecast of each variable, and its actual
value under "NAME actual", in the units of the series. The windows are a horizon apart, so no
date is forecast twice; a remainder shorter than a horizon is left out.
"""

import argparse
import csv
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fairseq_recur.errors import ConfigError
from fairseq_recur.files import check_outputs, write_text
from fairseq_recur.loading.folder import find_checkpoints
from fairseq_recur.loading.models import Loaded, load
from fairseq_recur.tasks.series_splits import SPLITS
from fairseq_recur.tasks.time_series import TimeSeriesTask, WindowDataset, windows_of_batch

BATCH = 32
"""Windows per batch, unless the model has a memory."""

LARGEST_BATCH = 1024

DIGITS = 6
"""Digits of a forecast below the standard deviation of its variable."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `forecast`."""
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", help="of a training on time_series_forecasting")
    add("--output", required=True, metavar="FILE", help="CSV file to write")
    add("--series-file", metavar="FILE", help="series, if it is not where it was in training")
    add(
        "--series-columns",
        metavar="NAMES",
        help="variables of the training, in its order, with commas between, if the series has "
        "others or another order",
    )
    add("--split", choices=SPLITS, default="test", help="what to forecast")
    add(
        "--batch-size",
        type=int,
        metavar="N",
        help="windows per batch; for a model with a memory, also the rows that it remembers "
        f"(default: {BATCH}, and with a memory that of the training)",
    )
    add("--cpu", action="store_true", help="do not use a GPU")


def run(args: argparse.Namespace) -> int:
    """Forecast every window, then write the file."""
    if args.batch_size is not None and not 1 <= args.batch_size <= LARGEST_BATCH:
        raise ConfigError(f"--batch-size {args.batch_size}: expected 1 to {LARGEST_BATCH}")
    check_outputs(args.output, inputs=[args.checkpoint, args.series_file])
    _, (file,) = find_checkpoints(args.checkpoint, None)
    check_outputs(args.output, inputs=[file])
    given = {"series_file": args.series_file, "series_columns": args.series_columns}
    changes = {name: value for name, value in given.items() if value is not None}
    found = load(file, kinds=(TimeSeriesTask,), changes=changes)
    task: Any = found.task
    check_outputs(args.output, inputs=[task.cfg.series_file])
    names = task.series.names
    columns = [*names, *(f"{name} actual" for name in names)]
    twice = [name for name in names if columns.count(name) > 1]
    if twice:
        raise ConfigError(
            f"{', '.join(twice)}: the file would have two columns of that name, one of them with "
            "actual values; rename the variable in the series, and name the new one with "
            "--series-columns"
        )
    task.load_dataset(args.split)
    model: Any = found.models[0].eval()
    remembers = model.encoder.memory is not None
    size = args.batch_size or (remembered(found, task.dataset(args.split)) if remembers else BATCH)
    problem = task.memory_problem(size, 1) if remembers else ""
    if problem:
        raise ConfigError(problem)
    device = "cuda" if torch.cuda.is_available() and not args.cpu else "cpu"
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["window", "date", *columns])
    # A memory needs all windows, in their order.
    step = 1 if remembers else task.cfg.horizon
    lines.writerows(forecasts(model.to(device), task, args.split, step, size))
    write_text(Path(args.output), text.getvalue())
    print(args.output)
    return 0


def remembered(found: Loaded, windows: WindowDataset) -> int:
    """Return how many rows a memory held in training: the windows of a batch, of all processes.

    Args:
        found: the model and its training's configuration
        windows: of a split
    """
    data, processes = found.cfg.dataset, found.cfg.distributed_training.distributed_world_size
    limits = data.batch_size, data.max_tokens, data.required_batch_size_multiple
    return int(windows_of_batch(windows, *limits) * processes)


@torch.no_grad()
def forecasts(model: Any, task: Any, split: str, step: int, size: int) -> Iterator[list[Any]]:
    """Yield the lines of the file.

    Args:
        model: on its device
        task: whose split is loaded
        split: to forecast
        step: from window to window that the model reads; a horizon is a multiple of it
        size: windows per batch
    """
    windows, device = task.dataset(split), next(model.parameters()).device
    places = [DIGITS - math.floor(math.log10(deviation)) for deviation in task.deviation]
    starts = list(range(0, len(windows), step))
    for first in range(0, len(starts), size):
        chosen = starts[first : first + size]
        inputs = windows.collater(chosen)["net_input"]
        out = model(**{name: x.to(device) for name, x in inputs.items()})
        values = (out.double().cpu().numpy() * task.deviation + task.mean).tolist()
        for start, forecast in zip(chosen, values):
            number, between = divmod(start, task.cfg.horizon)
            if between:
                continue
            for row, found in enumerate(forecast, windows.first + start):
                actual = task.series.values[row].tolist()
                yield [number, task.series.dates[row], *map(round, found, places), *actual]
