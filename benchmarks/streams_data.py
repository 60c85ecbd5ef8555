"""Text and a time series that a random generator draws, and a training's arguments for them."""

import argparse
import math
from contextlib import redirect_stdout
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path

import numpy
from fairseq.models import MODEL_DATACLASS_REGISTRY
from systems import TRAINING, flags_of, parse_name

from fairseq_recur.cli import main as fairseq_recur

LANGUAGE, FORECASTING = "language-models", "forecasters"

VARIABLES = 7
"""Of the series, as many as the Electricity Transformer Temperature data have."""

DAY = 24


def make_text(args: argparse.Namespace, folder: Path) -> Path:
    """Make binary data of words that a random generator draws; return its folder."""
    vocabulary, count = args.vocabulary, args.rows * args.length * (args.updates + 1)
    chances = 1 / numpy.arange(1, vocabulary + 1)
    drawn = numpy.random.default_rng(1).choice(vocabulary, count, p=chances / chances.sum())
    words = [f"w{word}" for word in drawn]
    lines = (" ".join(words[i : i + 1000]) + "\n" for i in range(0, count, 1000))
    (folder / "train").write_text("".join(lines), encoding="utf-8")
    known = "".join(f"w{word} {vocabulary - word}\n" for word in range(vocabulary))
    (folder / "words").write_text(known, encoding="utf-8")
    with redirect_stdout(StringIO()):
        fairseq_recur([
            "preprocess", "--only-source", "--srcdict", str(folder / "words"),
            "--trainpref", str(folder / "train"), "--destdir", str(folder / "bin"),
        ])  # fmt: skip
    return folder / "bin"


def make_series(args: argparse.Namespace, folder: Path) -> Path:
    """Write a series by the hour, half of which has the windows; return the file."""
    count = 2 * (args.length + args.steps + args.rows * (args.updates + 1))
    hours = numpy.arange(count)[:, None]
    cycles = numpy.sin(2 * math.pi * (hours / DAY + numpy.arange(VARIABLES) / VARIABLES))
    values = cycles + numpy.random.default_rng(1).normal(0, 0.1, cycles.shape)
    lines = ["date," + ",".join(f"variable{i}" for i in range(VARIABLES))]
    for hour, row in enumerate(values):
        date = datetime(2016, 7, 1) + timedelta(hours=hour)
        lines.append(",".join([str(date), *(f"{value:.4f}" for value in row)]))
    file = folder / "series.csv"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def words_of(name: str, data: Path, args: argparse.Namespace) -> list[str]:
    """Return the arguments of fairseq-train for a system."""
    more = [*TRAINING, "--batch-size", str(args.rows), "--required-batch-size-multiple", "1"]
    if args.kind == FORECASTING:
        return [
            "--task", "time_series_forecasting", "--series-file", str(data),
            "--criterion", "forecast_error", "--split-fractions", "0.5,0.25,0.25",
            "--input-length", str(args.length), "--label-length", str(args.length // 2),
            "--horizon", str(args.steps), *more, *flags_of(args),
        ]  # fmt: skip
    config = MODEL_DATACLASS_REGISTRY.get(parse_name(name).arch)
    remembers = getattr(config, "decoder_memory", "none") != "none"
    task = "language_modeling_with_memory" if remembers else "language_modeling"
    # fairseq's adaptive loss refuses the default backend, with one process too.
    backend = ["--ddp-backend", "legacy_ddp"] if args.criterion == "adaptive_loss" else []
    return [
        str(data), "--task", task, "--tokens-per-sample", str(args.length),
        "--criterion", args.criterion, *backend, *more, *flags_of(args),
    ]  # fmt: skip
