"""The cells of the paper's Table 1: data, lengths, heads, and the command of each training."""

import argparse
import hashlib
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fairseq_recur.errors import ConfigError, refuse
from fairseq_recur.experiments.grid import GridRun
from fairseq_recur.experiments.progress import training_log
from fairseq_recur.experiments.schema import setting
from fairseq_recur.experiments.variables import (
    as_variables,
    read_variables,
    unwanted,
    without_effect,
)

HERE = Path(__file__).resolve().parent

SERIES = "--series-file"
OF_CELL = (
    SERIES, "--split-months", "--split-fractions", "--input-length", "--label-length", "--horizon"
)  # fmt: skip
OF_HEADS = ("--rsa-heads", "--rsa-dilations")
FILES = {"ETTh1": "ETTh1.csv", "ETTh2": "ETTh2.csv", "ETTm1": "ETTm1.csv", "Weather": "WTH.csv"}
MONTHS = {"Weather": "28,10,10"}
SYSTEMS = "informer rsa_informer log_sparse rsa_log_sparse xl_forecaster rsa_xl_forecaster"
TRAINING = (
    "--task time_series_forecasting --criterion forecast_error --optimizer adam "
    "--lr-scheduler fixed --batch-size 32 --required-batch-size-multiple 1 "
    "--valid-subset valid,test --patience 3 --num-workers 0 --no-epoch-checkpoints "
    "--log-format json --log-interval 100"
)
LEARNING_RATE = 1e-4


@dataclass(frozen=True)
class Cell:
    """Lengths of a window, and what differs from Informer's defaults, in its scripts.

    Attributes:
        data: a key of `FILES`, or the name of another file
        lengths: of input, label part and forecast
        deep: three encoder layers and two decoder layers in place of two and one
        factor: of ProbSparse
        fractions: split of another file
    """

    data: str
    lengths: tuple[int, int, int]
    deep: bool = False
    factor: int = 5
    fractions: str = ""

    @property
    def name(self) -> str:
        """Name as in the variable CELLS."""
        lengths = self.lengths[2:] if self.data in FILES else self.lengths
        return "/".join([self.data, *map(str, lengths)])

    @property
    def file(self) -> str:
        """Name of the file."""
        return FILES.get(self.data, self.data)

    @property
    def months(self) -> str:
        """Months of training, validation and test."""
        return MONTHS.get(self.data, "12,4,4")

    @property
    def cost(self) -> int:
        """Rows that the layers read in an epoch, by which the cells are ordered."""
        rows = {"ETTm1": 34560, "Weather": 20160}.get(self.data, 8640)
        read, label, horizon = self.lengths
        return rows * ((2 + self.deep) * read + (1 + self.deep) * (label + horizon))

    def flags(self) -> list[str]:
        """Flags of the task and of the depth."""
        read, label, horizon = map(str, self.lengths)
        split = ["--split-months", self.months]
        if self.fractions:
            split = ["--split-fractions", self.fractions]
        return [
            *split, "--input-length", read, "--label-length", label, "--horizon", horizon,
            *("--encoder-layers 3 --decoder-layers 2".split() if self.deep else []),
        ]  # fmt: skip


CELLS = sorted(
    (
        Cell("ETTh1", (48, 48, 24), factor=3),
        Cell("ETTh1", (96, 48, 48)),
        Cell("ETTh1", (168, 168, 168)),
        Cell("ETTh1", (168, 168, 336)),
        Cell("ETTh2", (48, 48, 24)),
        Cell("ETTh2", (96, 96, 48)),
        Cell("ETTh2", (336, 336, 168), deep=True),
        Cell("ETTh2", (336, 168, 336), deep=True),
        Cell("ETTm1", (672, 96, 24)),
        Cell("ETTm1", (96, 48, 48)),
        Cell("ETTm1", (384, 384, 96)),
        Cell("ETTm1", (672, 288, 288)),
        Cell("Weather", (168, 168, 24), deep=True),
        Cell("Weather", (96, 96, 48)),
        Cell("Weather", (336, 168, 168), deep=True),
        Cell("Weather", (720, 168, 336), deep=True),
    ),
    key=lambda cell: cell.cost,
)

# Table 5 of the paper: numbers of heads of each kind, and dilations.
EVERY_DAY = "4,0,0,4,0,0 24,24,24,24"
CYCLES = "0,2,2,0,2,2 24,24,24,24"
QUARTERS = "0,2,2,0,2,2 96,96,96,96"
TWO_DAYS = "0,2,2,0,2,2 48,24,48,24"
MANY = "0,1,1,2,2,2 48,24,48,96,48,96"
HEADS = {
    "rsa_informer": {
        "ETTh1/24": CYCLES,
        "ETTh1/48": "0,2,2,2,1,1 24,24,24,24",
        "ETTh1/168": "0,2,2,2,1,1 24,24,24,24",
        "ETTh1/336": EVERY_DAY,
        "ETTh2/24": "4,2,2,0,0,0",
        "ETTh2/48": CYCLES,
        "ETTh2/168": "4,2,2,0,0,0",
        "ETTh2/336": CYCLES,
        "ETTm1/24": "0,0,0,0,4,4 2,3,6,24,2,3,6,24",
        "ETTm1/48": QUARTERS,
        "ETTm1/96": QUARTERS,
        "ETTm1/288": QUARTERS,
        "Weather/24": "0,0,0,0,4,4 3,5,7,24,3,5,7,24",
        "Weather/48": CYCLES,
        "Weather/168": CYCLES,
        "Weather/336": CYCLES,
    },
    "rsa_log_sparse": {
        **{cell.name: EVERY_DAY for cell in CELLS},
        **{c.name: "4,0,0,4,0,0 96,96,96,96" for c in CELLS if c.data == "ETTm1"},
        "ETTh1/336": TWO_DAYS,
        "ETTh2/48": "8,0,0,0,0,0",
        "Weather/336": "8,0,0,0,0,0",
    },
    "rsa_xl_forecaster": {
        "ETTh1/24": EVERY_DAY,
        "ETTh1/48": EVERY_DAY,
        "ETTh1/168": TWO_DAYS,
        "ETTh1/336": "1,2,2,1,1,1 48,24,24",
        "ETTh2/24": EVERY_DAY,
        "ETTh2/48": TWO_DAYS,
        "ETTh2/168": EVERY_DAY,
        "ETTh2/336": EVERY_DAY,
        "ETTm1/24": "0,1,1,0,3,3 48,24,24,48,24,24",
        "ETTm1/48": MANY,
        "ETTm1/96": MANY,
        "ETTm1/288": MANY,
        "Weather/24": CYCLES,
        "Weather/48": TWO_DAYS,
        "Weather/168": "1,2,2,1,1,1 48,24,24",
        "Weather/336": TWO_DAYS,
    },
}


def names() -> list[str]:
    """The cells' names, in the order of their cost."""
    return [cell.name for cell in CELLS]


@dataclass
class Settings:
    """The environment variables, in capitals there; README.md explains them."""

    cells: list[str] = setting(names())
    systems: list[str] = setting(SYSTEMS.split(), f"some of: {SYSTEMS}", choices=SYSTEMS.split())
    seeds: list[int] = setting([1], "whole numbers, at least 1", least=1)
    epochs: int = setting(6, least=1)
    rate: float = setting(LEARNING_RATE, "a number above 0", least=1e-12)
    data: str = setting(str(HERE / "data"))
    device: str = setting("cpu", choices=("cpu", "cuda"))
    options: str = setting("")
    split: str = setting("0.7,0.1,0.2")
    heads: str = setting("4,0,0,4,0,0")
    dilations: str = setting("24")
    jobs: int = setting(2, least=1)

    def as_dict(self, ablation: str = "") -> dict[str, str]:
        """Return the variables that determine the results, and their values."""
        return as_variables(self, ["jobs", "data", *map(str.lower, unused(self, ablation))])

    def chosen(self) -> list[Cell]:
        """The cells, in the order of their cost.

        Raises:
            ConfigError: there is no such cell
        """
        cells = [find_cell(name, self.split) for name in dict.fromkeys(self.cells)]
        return sorted(cells, key=lambda cell: cell.cost)


def find_cell(name: str, fractions: str) -> Cell:
    """Return a cell of the table, or of another file: FILE.csv/INPUT/LABEL/HORIZON.

    Raises:
        ConfigError: the name is neither
    """
    for cell in CELLS:
        if cell.name == name:
            return cell
    file, *lengths = name.rsplit("/", 3)
    numbers = [int(length) for length in lengths if length.isdecimal()]
    if not file.endswith(".csv") or len(numbers) != 3 or not (numbers[0] and numbers[2]):
        blanks = "" if ".csv" in name.lower() else "; blanks separate cells, so its name has none"
        raise ConfigError(
            f"CELLS: {name}; expected some of {' '.join(names())}, or FILE.csv/INPUT/LABEL/HORIZON "
            "with the lengths of a window, INPUT and HORIZON at least 1; a file's name ends in .csv"
            f"{blanks}"
        )
    if Path(file).is_absolute() or ".." in Path(file).parts:
        raise ConfigError(
            f"CELLS: {name}; expected the name of a file in the folder DATA, for it also names the "
            "folder of the results; set DATA to the file's folder"
        )
    read, label, horizon = numbers
    return Cell(file, (read, label, horizon), fractions=fractions)


def columns_in(words: str) -> str:
    """Return the value of --series-columns in OPTIONS; empty for all columns."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--series-columns", default="")
    known, _ = parser.parse_known_args(shlex.split(words))
    return str(known.series_columns)


def read_settings() -> Settings:
    """Read the settings from the environment.

    Raises:
        ConfigError: lists all variables that are wrong
    """
    why = "it belongs to the cell; choose a cell with CELLS, and its split with SPLIT"
    matrices = "the cells have the paper's; for a FILE.csv, choose them with HEADS and DILATIONS"
    refused = {**dict.fromkeys(OF_CELL, why), **dict.fromkeys(OF_HEADS, matrices)}
    return read_variables(Settings, ["cells", "systems", "seeds"], refused)


def unused(settings: Settings, ablation: str) -> dict[str, str]:
    """Return the variables that have no effect on what is asked for, and on what they have none.

    Args:
        settings: that were read
        ablation: its name, or nothing for the table
    """
    if ablation:
        found = dict.fromkeys(
            ("SYSTEMS", "SPLIT", "HEADS", "DILATIONS"), f"on the ablation {ablation}"
        )
        if ablation == "gates":
            found["CELLS"] = "on the ablation gates, which has the cell ETTh1/24"
        return found
    if not any(cell.fractions for cell in settings.chosen()):
        why = (
            "on the cells of the table, which have the paper's; they are for CELLS with a FILE.csv"
        )
        return dict.fromkeys(("SPLIT", "HEADS", "DILATIONS"), why)
    if not any(system in HEADS for system in settings.systems):
        return dict.fromkeys(("HEADS", "DILATIONS"), "on systems without RSA")
    return {}


def refuse_unused(settings: Settings, ablation: str) -> None:
    """Refuse variables that are set and have no effect on what is asked for, or spoil it.

    Args:
        settings: that were read
        ablation: its name, or nothing for the table

    Raises:
        ConfigError: names them, and where they have an effect
    """
    problems = without_effect(unused(settings, ablation))
    if ablation == "gates":
        why = "it is what the trainings of gates differ in; leave it out"
        problems += unwanted(shlex.split(settings.options), {"--rsa-gate-init": why})
    refuse("variables that cannot be used", problems)


def check_files(cells: Iterable[Cell], folder: str) -> None:
    """Refuse a folder without the data.

    Raises:
        ConfigError: names the files that are missing
    """
    missing = sorted(file for file in {c.file for c in cells} if not Path(folder, file).is_file())
    if missing:
        raise ConfigError(
            f"DATA={folder}: expected a folder with {', '.join(missing)}; README.md says "
            "where to get them, and CELLS chooses others, also a file of your own"
        )


@cache
def checksum(file: Path) -> str:
    """Return the SHA-256 of a file, which is read once."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def by_content(words: Sequence[str], present: Path) -> list[str]:
    """Return the words of a key with the name and checksum of the file in place of its path.

    Earlier keys have the path, or nothing if the file was in the folder of the trainings. Where
    there is no such file any more, it may have been moved: the present one of that name counts.

    Args:
        words: with `SERIES`
        present: the file
    """
    place = words.index(SERIES) + 1
    word, rest = words[place], words[place + 1 :]
    if word.startswith("--"):
        word, rest = str(present), words[place:]
    file = Path(word)
    if file.is_absolute():
        if not file.is_file() and file.name == present.name:
            file = present
        word = f"{file.name} {checksum(file) if file.is_file() else 'unknown'}"
    return [*words[:place], word, *rest]


@dataclass(frozen=True)
class SeriesRun(GridRun):
    """The training of a system on a cell; without a better validation it ends earlier.

    Attributes:
        rate: the learning rate of the first epochs
    """

    rate: float

    def learning_rate(self, epoch: int) -> float:
        """Return the rate of an epoch: Informer's code halves it after each but the first."""
        return self.rate * 0.5 ** max(0, epoch - 1)

    def done(self, step: str) -> bool:
        """Return whether the training has ended with these flags, and was validated."""
        return super().done(step) and bool(training_log(self).curve("valid_mse"))

    @property
    def file(self) -> Path:
        """The file of the series."""
        return Path(self.flags[self.flags.index(SERIES) + 1])

    def key(self, step: str) -> list[str]:
        """Return the arguments, but for the folders: a file may be moved."""
        words = by_content(self.argv(step), self.file)
        return [word for word in words if str(self.work) not in word]

    def state_in(self, folder: Path) -> dict[str, Any]:
        """Return what is known of a training; its key has the file by its content."""
        state = super().state_in(folder)
        for entry in state.values():
            entry["key"] = by_content(entry["key"], self.file)
        return state

    def errors(self) -> dict[str, float]:
        """MSE and MAE on the test part after the epoch with the best validation."""
        log = training_log(self)
        best, _ = min(log.curve("valid_mse"), key=lambda point: point[1])
        return {name: dict(log.curve(f"test_{name}"))[best] for name in ("mse", "mae")}


def series_run(
    settings: Settings, work: Path, cell: Cell, arch: str, system: str, heads: str, seed: int
) -> SeriesRun:
    """Return a training.

    Args:
        settings: of all trainings
        work: folder of all trainings
        cell: data and lengths
        arch: --arch
        system: name in the table
        heads: numbers of heads of each kind, dilations, and further flags, with blanks between;
            empty without matrices
        seed: of the training
    """
    file = str(Path(settings.data, cell.file).resolve())
    flags = ["--arch", arch, SERIES, file, *cell.flags()]
    if "informer" in arch:
        flags += ["--prob-sparse-factor", str(cell.factor)]
    if heads:
        counts, *more = heads.split()
        flags += ["--rsa-heads", counts]
        flags += ["--rsa-dilations", more[0], *more[1:]] if more else []
    flags += [*TRAINING.split(), "--seed", str(seed)]
    flags += ["--cpu"] if settings.device == "cpu" else []
    flags += shlex.split(settings.options)
    return SeriesRun(work, cell.name, system, seed, tuple(flags), settings.epochs, settings.rate)


def series_runs(settings: Settings, work: Path) -> Iterator[SeriesRun]:
    """Yield the trainings seed by seed and from the cheapest cell on."""
    other = f"{settings.heads} {settings.dilations}"
    for seed in settings.seeds:
        for cell in settings.chosen():
            for system in settings.systems:
                heads = HEADS[system].get(cell.name, other) if system in HEADS else ""
                yield series_run(settings, work, cell, system, system, heads, seed)
