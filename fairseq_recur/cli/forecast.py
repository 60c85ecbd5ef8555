"""Forecast a split of a time series with a trained forecaster, and write a CSV file.

Each line has the number of the window, a date, the forecast of each variable, and its actual
value under "NAME actual", in the units of the series. The windows are a horizon apart, so no
date is forecast twice; a remainder shorter than a horizon is left out.
"""

import argparse
import csv
import io
from pathlib import Path
from typing import Any

import torch

from fairseq_recur.errors import ConfigError
from fairseq_recur.files import check_outputs, write_text
from fairseq_recur.loading.models import load
from fairseq_recur.tasks.series_data import SPLITS
from fairseq_recur.tasks.time_series import TimeSeriesTask

LARGEST_BATCH = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `forecast`."""
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", help="of a training on time_series_forecasting")
    add("--output", required=True, metavar="FILE", help="CSV file to write")
    add("--series-file", metavar="FILE", help="series, if it is not where it was in training")
    add("--split", choices=SPLITS, default="test", help="what to forecast")
    add("--batch-size", type=int, default=32, metavar="N", help="windows per batch")
    add("--cpu", action="store_true", help="do not use a GPU")


def run(args: argparse.Namespace) -> int:
    """Forecast every window, then write the file."""
    if not 1 <= args.batch_size <= LARGEST_BATCH:
        raise ConfigError(f"--batch-size {args.batch_size}: expected 1 to {LARGEST_BATCH}")
    check_outputs(args.output)
    changes = {"series_file": args.series_file} if args.series_file is not None else {}
    found = load(args.checkpoint, kinds=(TimeSeriesTask,), changes=changes)
    task: Any = found.task
    task.load_dataset(args.split)
    windows = task.dataset(args.split)
    device = "cuda" if torch.cuda.is_available() and not args.cpu else "cpu"
    model: Any = found.models[0].to(device).eval()
    remembers = model.encoder.memory is not None
    if remembers and len(windows) > args.batch_size:
        problem = task.memory_problem(args.batch_size, 1)
        if problem:
            raise ConfigError(problem)
    # A memory needs all windows, in their order.
    step = 1 if remembers else task.cfg.horizon
    starts = list(range(0, len(windows), step))
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    names = task.series.names
    lines.writerow(["window", "date", *names, *(f"{name} actual" for name in names)])
    for first in range(0, len(starts), args.batch_size):
        chosen = starts[first : first + args.batch_size]
        inputs = windows.collater(chosen)["net_input"]
        with torch.no_grad():
            out = model(**{name: x.to(device) for name, x in inputs.items()})
        forecasts = out.double().cpu().numpy() * task.deviation + task.mean
        for start, forecast in zip(chosen, forecasts):
            number, between = divmod(start, task.cfg.horizon)
            if between:
                continue
            for row, values in enumerate(forecast, windows.first + start):
                actual = map(str, task.series.values[row].tolist())
                shown = (f"{value:.6g}" for value in values)
                lines.writerow([number, task.series.dates[row], *shown, *actual])
    write_text(Path(args.output), text.getvalue())
    print(args.output)
    return 0
