"""The settings of an experiment, and of its flags the command lines."""

import json
import os
import re
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Optional

from sacrebleu.metrics.base import Metric

from fairseq_recur.experiments.machine import gpus_for
from fairseq_recur.experiments.schema import setting
from fairseq_recur.scoring.comet import DEFAULT_MODEL
from fairseq_recur.scoring.generation import read_lines
from fairseq_recur.scoring.mean_metric import MeanMetric
from fairseq_recur.scoring.metrics import METRICS, TOKENIZERS, build_metric

Flags = dict[str, Any]

MISREAD = (os.pathsep, "${")
"""What fairseq reads in the name of a checkpoint or of data as something else."""

LIKE_A_FLAG = re.compile(r"-(?!\d+$|\d*\.\d+$)\S+")
"""A value that argparse takes for a flag: it begins like one, and is no plain number."""

INTERVAL = 5
"""Updates between two lines of the log from which speed is read."""


@dataclass
class System:
    """One row of the table.

    Attributes:
        flags: flags of fairseq-train; they take precedence over those of all systems
        start_from: system whose trained model with the same seed initialises this one
        start: checkpoint that initialises this one, in place of the experiment's
        published: metric -> published value, shown next to the measured one
        compare_with: a row with which this one is compared besides the baseline
        name: of the row and of its folder
    """

    flags: Flags = setting(expected="flags of fairseq-train and their values")
    start_from: Optional[str] = setting(None, "the name of a system")  # noqa: UP045 (OmegaConf 2.0)
    start: Optional[str] = setting(None, "a checkpoint")  # noqa: UP045 (OmegaConf 2.0)
    published: dict[str, float] = setting({}, "metrics and their published values")
    compare_with: Optional[str] = setting(None, "the name of a system")  # noqa: UP045 (OmegaConf 2.0)
    name: str = field(init=False, default="")


@dataclass
class Scoring:
    """How translations are scored: see ``fairseq-recur score`` and ``compare``.

    Attributes:
        lowercase: whether BLEU and chrF ignore case
        samples: number of samples of the paired tests
        source: translated file, which COMET reads
        outputs: other texts to score, such as the unchanged source: name -> file
    """

    reference: list[str] = setting(expected="a file, or a list of files")
    metrics: list[str] = setting(
        ["bleu", "chrf"], f"a list of {', '.join(METRICS)}", choices=METRICS
    )
    tokenize: str = setting("13a", choices=TOKENIZERS)
    lowercase: bool = setting(False, "true or false")
    samples: int = setting(1000, least=1)
    source: Optional[str] = setting(None, "a file")  # noqa: UP045 (OmegaConf 2.0)
    comet_model: str = setting(DEFAULT_MODEL, "a model of COMET")
    outputs: dict[str, str] = setting({}, "names and files of other texts to score")

    def __post_init__(self) -> None:
        """A metric that is named twice counts once."""
        self.metrics = list(dict.fromkeys(self.metrics))

    @cached_property
    def built(self) -> list[Metric | MeanMetric]:
        """The metrics; built once, for the model of one may be large.

        Raises:
            ConfigError: a metric is not available in this environment
        """
        return [self.build(name) for name in self.metrics]

    def build(self, name: str) -> Metric | MeanMetric:
        """Build a metric.

        Raises:
            ConfigError: it is not available in this environment
        """
        source = read_lines(self.source) if name == "comet" and self.source is not None else None
        return build_metric(
            name, self.tokenize, self.lowercase, source=source, comet_model=self.comet_model,
            gpus=gpus_for([name]),
        )  # fmt: skip


@dataclass
class Speed:
    """How speed is measured: alternating between systems, `repeats` times.

    Attributes:
        updates: measured updates of each training
        warmup: updates before them, which do not count
        repeats: rounds over all systems
    """

    updates: int = setting(40, least=INTERVAL)
    warmup: int = setting(10, least=0)
    repeats: int = setting(3, least=1)


@dataclass
class Experiment:
    """A table.

    Attributes:
        data: folder of fairseq's binary data
        baseline: name of the system that the tests compare the other systems with
        train: flags of fairseq-train for all systems
        score: scoring of the test set
        systems: the rows by name
        seeds: each system is trained once per seed
        generate: flags of fairseq-generate for all systems
        checkpoint: which model is decoded: the average of this many last checkpoints, "best"
            or "last"
        start: checkpoint that initialises every system with neither start_from nor its own start;
            None for none
        speed: how speed is measured; None for not at all
        user_dir: folder of another plug-in that the systems need; None for none
    """

    title: str = setting(expected="a text")
    data: str = setting(expected="a folder made by fairseq-recur preprocess")
    source: str = setting(expected="a language code")
    target: str = setting(expected="a language code")
    baseline: str = setting(expected="the name of a system")
    train: Flags = setting(expected="flags of fairseq-train and their values")
    score: Scoring = setting(expected="at least `reference: FILE`")
    systems: dict[str, System] = setting(expected="a name and flags for each row")
    seeds: list[int] = setting([1], "a list of different whole numbers, at least 0", least=0)
    generate: Flags = setting({}, "flags of fairseq-generate and their values")
    checkpoint: Any = setting(5, "a number of checkpoints to average, best or last")
    start: Optional[str] = setting(None, "a checkpoint")  # noqa: UP045 (OmegaConf 2.0)
    speed: Optional[Speed] = setting(None, "updates, warmup, repeats")  # noqa: UP045 (OmegaConf 2.0)
    user_dir: Optional[str] = setting(None, "a folder")  # noqa: UP045 (OmegaConf 2.0)

    def as_record(self) -> dict[str, Any]:
        """Return what results.json stores: systems as a list, in the order of the table."""
        return {**asdict(self), "systems": [asdict(system) for system in self.systems.values()]}


def misread(name: str) -> str | None:
    """Return what fairseq reads in a name as something else, or None."""
    return next((mark for mark in MISREAD if mark in name), None)


def normal(flags: Flags) -> Flags:
    """Return flags with their names spelled as on a command line."""
    return {name.replace("_", "-"): value for name, value in flags.items()}


def arguments(flags: Flags) -> list[str]:
    """Convert flags such as ``{"max-tokens": 4096, "cpu": True}`` to a command line.

    True is a flag without a value; False and None leave the flag out; a list is several values;
    a dictionary is written as JSON, which is how fairseq reads one. A value that argparse would
    take for a flag, such as -1e-05, is written as ``--name=value``.
    """
    words: list[str] = []
    for name, value in normal(flags).items():
        if value is None or value is False:
            continue
        if value is True:
            words.append(f"--{name}")
        elif isinstance(value, list):
            words += [f"--{name}", *map(str, value)]
        else:
            text = json.dumps(value) if isinstance(value, dict) else str(value)
            words += [f"--{name}={text}"] if LIKE_A_FLAG.fullmatch(text) else [f"--{name}", text]
    return words
