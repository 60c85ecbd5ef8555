"""A small series by the hour, and flags of a short training of a forecaster."""

import math
import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

SIZES: list[str] = (
    "--encoder-embed-dim 16 --encoder-ffn-embed-dim 24 --encoder-layers 2 "
    "--encoder-attention-heads 2 --decoder-attention-heads 2"
).split()
"""Flags that make a forecaster small."""

WINDOWS: list[str] = "--input-length 12 --label-length 6 --horizon 4".split()
"""Of a task whose windows are short."""

SPLIT: list[str] = "--split-fractions 0.6,0.2,0.2".split()
"""Of the small series."""

TRAIN: list[str] = (
    "--criterion forecast_error --optimizer adam --lr 0.003 --lr-scheduler fixed --batch-size 16 "
    "--cpu --seed 1 --log-format simple --log-interval 1 --num-workers 0 --no-epoch-checkpoints"
).split()
"""Flags of a short training."""


def write_series(path: Path, rows: int = 200, american: bool = False) -> Path:
    """Two daily cycles with noise, from 2016-07-01 on; the dates as in ETT, or in Weather."""
    rng = random.Random(1)
    lines = ["date,load,temperature"]
    for row in range(rows):
        time = datetime(2016, 7, 1) + timedelta(hours=row)
        date = f"{time:%m/%d/%Y} {time.hour}:{time:%M}" if american else str(time)
        angle = 2 * math.pi * row / 24
        values = (10 + 3 * math.sin(angle), 5 * math.cos(angle))
        lines.append(",".join([date, *(f"{v + rng.gauss(0, 0.3):.4f}" for v in values)]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_values(path: Path, values: list[float]) -> Path:
    """A series of one variable by the hour."""
    times = (datetime(2016, 7, 1) + timedelta(hours=row) for row in range(len(values)))
    rows = (f"{time},{value:.4f}\n" for time, value in zip(times, values))
    path.write_text("date,load\n" + "".join(rows), encoding="utf-8")
    return path


def levels(rows: int) -> list[float]:
    """Noise around a level of 1 or -1, which is drawn anew every 48 rows."""
    rng, found = random.Random(1), []
    for row in range(rows):
        if row % 48 == 0:
            level = rng.choice((-1, 1))
        found.append(level + rng.gauss(0, 1))
    return found


def seasons(rows: int, season: int = 6) -> list[float]:
    """Values that continue the one *season* rows before, with a correlation of 0.9."""
    rng, found = random.Random(1), []
    for row in range(rows):
        before = found[-season] if row >= season else rng.gauss(0, 1)
        found.append(0.9 * before + rng.gauss(0, 0.19**0.5))
    return found


def flags(path: Path, *more: Any) -> list[str]:
    """Of a short training on the series at *path*."""
    task = ["--task", "time_series_forecasting", "--series-file", str(path), *SPLIT, *WINDOWS]
    return [*task, *SIZES, *TRAIN, *map(str, more)]
