"""Logs of fairseq's trainings."""

import json
import math
import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq_recur.errors import ConfigError

# "2026-01-31 12:00:00 | INFO | valid | " in front of a line; --log-file writes none.
PREFIX = re.compile(r"^.*? \| [A-Z]+ \| (?P<tag>[\w.]+) \| (?P<rest>.*)$")
# --log-format simple and tqdm: the end of an epoch or of a validation ...
SUMMARY = re.compile(
    r"^epoch (?P<epoch>\d+) \|(?: valid on '(?P<subset>[^']+)' subset \|)? (?P<stats>.+)$"
)
# ... and a step within an epoch.
STEP = re.compile(r"^epoch (?P<epoch>\d+):\s+(?P<done>\d+) / (?P<size>\d+) (?P<stats>.+)$")
# Metrics that the parts of a model report for each layer: train_gate_encoder_0, ...
PER_LAYER = re.compile(
    r"train_(?P<family>.+)_(?P<side>encoder|decoder|cross|recurrence)_(?P<index>\d+)"
)

Stats = dict[str, float]
Places = dict[int, tuple[float, float | None]]
"""Updates done -> (epochs, seconds), see `TrainingLog.timeline`."""


@dataclass
class TrainingLog:
    """One training run.

    Attributes:
        steps: updates done -> averages over the last --log-interval updates
        epochs: updates done -> averages over an epoch
        valid: validation subset -> updates done -> results
        timeline: (updates, epochs, seconds), sorted; epochs are fractional, and seconds are
            None where the log does not have them
    """

    steps: dict[int, Stats] = field(default_factory=dict)
    epochs: dict[int, Stats] = field(default_factory=dict)
    valid: dict[str, dict[int, Stats]] = field(default_factory=dict)
    timeline: list[tuple[int, float, float | None]] = field(default_factory=list)

    def metrics(self) -> list[str]:
        """Return the names of the curves, spelled as in --log-format json."""
        train = {name for stats in (*self.steps.values(), *self.epochs.values()) for name in stats}
        names = {f"train_{name}" for name in train}
        for subset, results in self.valid.items():
            names |= {f"{subset}_{name}" for stats in results.values() for name in stats}
        return sorted(names)

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """Return (updates, value) of a metric such as train_loss or valid_bleu.

        Training metrics are per step if the log has the metric for at least two steps, and per
        epoch otherwise. The log of an interrupted training has some updates twice. The later
        line counts, because the model continued from there.
        """
        for subset, results in self.valid.items():
            name = metric[len(subset) + 1 :]
            if metric.startswith(subset + "_") and any(name in stats for stats in results.values()):
                return _points(results, name)
        if not metric.startswith("train_"):
            return []
        name = metric[len("train_") :]
        by_step = _points(self.steps, name)
        return by_step if len(by_step) > 1 else _points(self.epochs, name) or by_step

    def of_layers(self) -> dict[str, list[tuple[int, float]]]:
        """Return (updates, value of an epoch) of what the parts report, as of gate_encoder_0."""
        names = [m.removeprefix("train_") for m in self.metrics() if PER_LAYER.fullmatch(m)]
        return {name: points for name in names if (points := _points(self.epochs, name))}

    def position(self, updates: int, unit: str) -> float | None:
        """Return the position of an update in "updates", "epoch" or "seconds".

        Validation lines have only the updates, so positions between two training lines are
        interpolated. None if the log does not have the unit, or not up to there.
        """
        if unit == "updates":
            return float(updates)
        column = 1 if unit == "epoch" else 2
        known = [(p[0], float(at)) for p in self.timeline if (at := p[column]) is not None]
        if not known:
            return None
        place = bisect_left(known, (updates, float("-inf")))
        if place == len(known):  # after the last line of training, and before a line without it
            return known[-1][1] if known[-1][0] == self.timeline[-1][0] else None
        right_updates, right = known[place]
        left_updates, left = known[place - 1] if place else (0, 0.0)
        if right_updates == left_updates:
            return right
        share = (updates - left_updates) / (right_updates - left_updates)
        return left + share * (right - left)


def read_log(path: str | Path) -> TrainingLog:
    """Read what fairseq's training wrote to stdout or to --log-file.

    With --log-format none, fairseq writes no line of training or validation.

    Raises:
        ConfigError: the file is missing, or has no line of training or validation
    """
    path = Path(path)
    if not path.exists() or path.is_dir():  # a pipe, as of <(zcat train.log.gz), is read once
        raise ConfigError(f"no such log: {path}; give the output of a training")
    log, clock = TrainingLog(), _Clock()
    steps: Places = {}
    ends: Places = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        _read_line(line, log, steps, ends, clock)
    if not (log.steps or log.epochs or log.valid):
        raise ConfigError(
            f"{path} has no line of training or validation; expected what fairseq's training "
            "prints (`fairseq-recur train ... 2>&1 | tee FILE`, or --log-file FILE)"
        )
    where = {**_reached(ends, steps), **steps}
    log.timeline = [(updates, *where[updates]) for updates in sorted(where)]
    return log


def log_in(folder: Path) -> TrainingLog:
    """Return the log of an experiment's training, empty if there is none yet."""
    try:
        return read_log(folder / "train.log")
    except ConfigError:
        return TrainingLog()


class _Clock:
    """Makes one time of fairseq's "wall", which begins anew when a training is resumed.

    Resumed within an epoch, fairseq's clock stands at 0 until the process ends. What that process
    took is not known, so later times are not, either.
    """

    def __init__(self) -> None:
        self.before, self.last, self.stood = 0.0, 0.0, False

    def read(self, wall: float | None) -> float | None:
        """Return the seconds since the first start at a line's "wall"; None if it has none."""
        if wall is None:
            return None
        self.stood |= self.before > 0 and wall == self.last == 0
        if wall < self.last:
            self.before += self.last
        self.last = wall
        unknown = self.stood or (self.before > 0 and wall == 0)
        return None if unknown else self.before + wall


def _reached(ends: Places, steps: Places) -> Places:
    """Return the summaries of epochs with the epochs that were really done.

    A training that stops within an epoch writes a summary, too, with the number of that epoch. Two
    steps before it say how far it came. With fewer, a later step that is less far says that it did
    not come to the end, so the summary is left out.
    """
    known = sorted(steps.items())
    found: Places = {}
    for updates, (epoch, seconds) in ends.items():
        place = bisect_left(known, (updates,))
        if place >= 2:
            (first, (begin, _)), (last, (end, _)) = known[place - 2 : place]
            of_update = (end - begin) / (last - first)
            done = end + (updates - last) * of_update
            # Fractions are rounded, so that a whole epoch has another last digit.
            if 0 < of_update and done < epoch - of_update / 2:
                epoch = done
        if place == len(known) or epoch <= known[place][1][0]:
            found[updates] = epoch, seconds
    return found


def _read_line(line: str, log: TrainingLog, steps: Places, ends: Places, clock: _Clock) -> None:
    """Add the results of one line; lines without results are skipped."""
    match = PREFIX.match(line)
    text = match["rest"] if match else line
    try:
        parsed = _parse(text.strip())
    except (TypeError, ValueError, ZeroDivisionError):  # only similar to a line of fairseq
        return
    if parsed is None:
        return
    subset, epoch, stats = parsed
    updates = int(stats.pop("num_updates"))
    if subset in ("train_inner", "train"):
        within = subset == "train_inner"
        (log.steps if within else log.epochs)[updates] = stats
        (steps if within else ends)[updates] = epoch, clock.read(stats.get("wall"))
    else:
        log.valid.setdefault(subset, {})[updates] = stats


def _parse(text: str) -> tuple[str, float, Stats] | None:
    """Split a line into ("train_inner", "train" or the subset; epochs done; results)."""
    if text.startswith("{"):
        return _parse_json(text)
    match = STEP.match(text)
    if match:
        stats = dict(item.split("=", 1) for item in match["stats"].split(", ") if "=" in item)
        epoch = int(match["epoch"]) - 1 + int(match["done"]) / int(match["size"])
        return _numbers("train_inner", epoch, stats)
    match = SUMMARY.match(text)
    if match:
        pairs = (item.strip().rsplit(" ", 1) for item in match["stats"].split(" | "))
        stats = dict(pair for pair in pairs if len(pair) == 2)
        return _numbers(match["subset"] or "train", float(match["epoch"]), stats)
    return None


def _parse_json(text: str) -> tuple[str, float, Stats] | None:
    """Split a line of --log-format json, where the subset is a prefix of the keys."""
    try:
        values = json.loads(text)
    except ValueError:
        return None
    if "num_updates" in values:
        epoch = values.get("update", values.get("epoch", 0))
        return _numbers("train_inner", float(epoch), values)
    for key in values:
        if key.endswith("_num_updates"):
            subset = key[: -len("num_updates")]
            stats = {k[len(subset) :]: v for k, v in values.items() if k.startswith(subset)}
            return _numbers(subset[:-1], float(values.get("epoch", 0)), stats)
    return None


def _numbers(
    subset: str, epoch: float, values: Mapping[str, Any]
) -> tuple[str, float, Stats] | None:
    """Keep the values that are numbers; a line without the number of updates has no results."""
    stats = {}
    for name, value in values.items():
        try:
            stats[name] = float(value)
        except (TypeError, ValueError):
            continue
    return (subset, epoch, stats) if math.isfinite(stats.get("num_updates", math.nan)) else None


def _points(lines: dict[int, Stats], name: str) -> list[tuple[int, float]]:
    """Return (updates, value) of the lines that have the metric, sorted by updates."""
    return [(updates, lines[updates][name]) for updates in sorted(lines) if name in lines[updates]]
