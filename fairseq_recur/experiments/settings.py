"""The settings of an experiment: YAML files, merged by OmegaConf and checked as a whole."""

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Optional

import yaml
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from sacrebleu.metrics.base import Metric

from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.machine import gpus_for
from fairseq_recur.experiments.schema import fill, in_file, setting
from fairseq_recur.files import inside, read_yaml
from fairseq_recur.scoring.comet import DEFAULT_MODEL
from fairseq_recur.scoring.generation import read_lines
from fairseq_recur.scoring.mean_metric import MeanMetric
from fairseq_recur.scoring.metrics import METRICS, TOKENIZERS, build_metric

Flags = dict[str, Any]

# The experiment passes these to fairseq's commands itself.
TRAIN_FLAGS = {"save-dir", "seed", "log-file", "user-dir", "restore-file", "finetune-from-model"}
GENERATE_FLAGS = {"path", "user-dir", "results-path"}

# The experiment writes these into its folder, beside the folders of the systems.
RESERVED = {
    "lock", "command.json", "results.json", "table.md", "run.log", "other_sets", "speed.json",
    "speed.log", "speed.out",
}  # fmt: skip

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


def read_experiment(paths: Sequence[str | Path], changes: Sequence[str] = ()) -> Experiment:
    """Read YAML files that form one experiment together, such as a table and a corpus.

    Args:
        paths: the files; a path inside a file is relative to the file's folder, unless it begins
            with ${...}; where two files have the same key, the later file counts
        changes: overrides such as "train.max-update=500"; the value is YAML

    Raises:
        ConfigError: lists everything that is wrong, one line each
    """
    named = " and ".join(map(str, paths))
    try:
        merged = OmegaConf.merge(*(_load(Path(path)) for path in paths), _overrides(changes))
        content: Any = OmegaConf.to_container(merged, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(
            f"{named}: {' '.join(str(error).split())}; correct it there or in --set"
        ) from error
    except RecursionError:
        raise ConfigError(
            f"{named}: a value contains itself, or is nested too deeply; correct it there or in "
            "--set"
        ) from None
    if isinstance(score := content.get("score"), dict) and isinstance(score.get("reference"), str):
        score["reference"] = [score["reference"]]
    problems = _relative_paths(content)
    experiment = fill(Experiment, content, problems)
    if experiment is not None:
        for name, system in experiment.systems.items():
            system.name = name
        problems += _problems(experiment)
    if experiment is None or problems:
        raise ConfigError(f"{named}: not an experiment:\n- " + "\n- ".join(problems))
    return experiment


def _load(path: Path) -> DictConfig:
    """Read one file and make the paths inside it absolute."""
    if not path.is_file():
        raise ConfigError(f"no such file: {path}; expected an experiment in YAML")
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected keys and values such as `title: ...`")
    folder = path.absolute().parent
    if "${" in str(folder):
        raise ConfigError(f"{path}: ${{...}} in its path stands for a setting; rename the folder")
    _place(content, partial(_below, folder))
    return OmegaConf.create(content)


def _place(content: dict[Any, Any], place: Callable[[str], str]) -> None:
    """Replace the paths in settings by what *place* makes of them.

    A path that begins with ${...} stays: it is complete only after the merge with other settings.
    """
    for section, keys in _PATHS.items():
        values: Any = content.get(section) if section else content
        for key in values if isinstance(values, dict) else ():
            if str(key).replace("_", "-") in keys:
                values[key] = _each(place, values[key])
    systems = content.get("systems")
    for system in systems.values() if isinstance(systems, dict) else ():
        if isinstance(system, dict) and "start" in system:
            system["start"] = _each(place, system["start"])


def _relative_paths(content: dict[Any, Any]) -> list[str]:
    """Return a problem for each path that ${...} has not made absolute."""
    found: list[str] = []

    def note(path: str) -> str:
        if not os.path.isabs(path):
            found.append(
                f"the path {path} is relative after ${{...}} was replaced; begin it with ./ in the "
                "file, or with an absolute folder"
            )
        return path

    _place(content, note)
    return found


# The files of subwords are those of fairseq's encoders.
_PATHS = {
    "": ("data", "start"),
    "score": ("reference", "source", "outputs"),
    "generate": (
        "sentencepiece-model", "bpe-codes", "gpt2-encoder-json", "gpt2-vocab-bpe", "bpe-merges",
        "bpe-vocab", "bpe-vocab-file",
    ),
}  # fmt: skip


def _each(place: Callable[[str], str], value: Any) -> Any:
    """Replace a path, or each path of a list or dictionary."""
    if isinstance(value, str):
        stays = value.startswith("${") or value == MISSING or "://" in value
        return value if stays else place(value)
    if isinstance(value, list):
        return [_each(place, item) for item in value]
    if isinstance(value, dict):
        return {name: _each(place, item) for name, item in value.items()}
    return value


def _below(folder: Path, path: str) -> str:
    """Return a path that begins in a folder, unless it is absolute."""
    return str(folder / path)


def _overrides(changes: Sequence[str]) -> Any:
    """Parse ``KEY.KEY=VALUE`` words."""
    found: Any = OmegaConf.create({})
    for change in from_here(changes):
        found = OmegaConf.merge(found, _override(change))
    return found


def _override(change: str) -> DictConfig:
    """Parse a ``KEY.KEY=VALUE`` word."""
    if not change.partition("=")[0] or "=" not in change:
        raise ConfigError(f"--set {change!r}: expected KEY=VALUE, such as train.max-update=500")
    try:
        return OmegaConf.from_dotlist([change])
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, TypeError) as error:
        raise ConfigError(
            f"--set {change!r}: not a key and a YAML value; put the value in quotation marks"
        ) from error


def from_here(changes: Sequence[str], folder: Path | None = None) -> list[str]:
    """Return ``KEY.KEY=VALUE`` words with absolute paths: relative ones begin in a folder.

    Words with ${...} stay as they are, for only the files complete them.

    Args:
        changes: the words
        folder: an absolute path; None for the current folder

    Raises:
        ConfigError: a word cannot be parsed
    """
    place = partial(_below, folder or Path.cwd())
    return [change if "${" in change else _changed(change, place) for change in changes]


def stored(files: Sequence[str], changes: Sequence[str], work: Path) -> dict[str, list[str]]:
    """Return what an experiment stores of its files and changes, for `stored_experiment`.

    Its next start may come from another folder, so paths are absolute, or relative to the
    experiment's own folder *work* if they are in it: that may be moved or copied.
    """
    place = partial(inside, folder=str(work.absolute()))
    return {
        "files": [place(str(Path(file).absolute())) for file in files],
        "set": [c if "${" in c else _changed(c, place) for c in from_here(changes)],
    }


def stored_experiment(about: dict[str, Any], work: Path) -> Experiment:
    """Read the experiment of a folder again, from what `stored` has returned.

    Raises:
        ConfigError: a file is missing now, or is not an experiment
    """
    work = work.absolute()
    return read_experiment([work / file for file in about["files"]], from_here(about["set"], work))


def _changed(change: str, place: Callable[[str], str]) -> str:
    """Replace the paths in a ``KEY.KEY=VALUE`` word."""
    given = _override(change)
    content: Any = OmegaConf.to_container(given)
    _place(content, place)
    if content == OmegaConf.to_container(given):
        return change
    key = change.partition("=")[0]
    value = OmegaConf.select(OmegaConf.create(content), key)
    plain = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
    return f"{key}={json.dumps(plain, ensure_ascii=False)}"


def _problems(experiment: Experiment) -> Iterator[str]:
    """Yield what the types and ranges of single settings cannot tell."""
    seeds, checkpoint, score = experiment.seeds, experiment.checkpoint, experiment.score
    if len(set(seeds)) < len(seeds):
        yield in_file("seeds", seeds, "a list of different whole numbers, at least 0")
    if checkpoint not in ("best", "last") and not (type(checkpoint) is int and checkpoint > 0):
        yield in_file("checkpoint", checkpoint, "a number above 0, best or last")
    if not all(score.reference):
        yield in_file("score.reference", score.reference, "a file, or a list of files")
    if "comet" in score.metrics and score.source is None:
        yield "score.source is missing: expected the translated file, which comet reads"
    if normal(experiment.generate).get("quiet"):
        yield in_file("generate.quiet", True, "false, for the output has the translations")
    systems = experiment.systems
    if experiment.baseline not in systems:
        known = ", ".join(map(str, systems))
        yield f"baseline: there is no system {experiment.baseline}; choose one of {known}"
    for name, system in systems.items():
        yield from _misnamed(name)
        yield from _owned(f"systems.{name}.flags", system.flags, TRAIN_FLAGS)
        if {**normal(experiment.train), **normal(system.flags)}.get("log-format") == "none":
            yield (
                f"systems.{name}: log-format none; expected json, simple or tqdm, for progress and "
                "results are read from the log"
            )
        control = system.compare_with
        if control is not None and (control == name or control not in systems):
            yield f"systems.{name}.compare_with: {control} is not another system; choose another"
        if system.start is not None and system.start_from is not None:
            yield f"systems.{name} has both start and start_from; remove one of them"
        seen, other = [name], system.start_from
        while other is not None:
            if other in seen or other not in systems:
                why = "itself" if other in seen else "not a system of this experiment"
                yield f"systems.{name}.start_from leads to {other}, which is {why}; name another"
                break
            seen.append(other)
            other = systems[other].start_from
    starts = {f"systems.{name}.start": system.start for name, system in systems.items()}
    for where, path in {"data": experiment.data, "start": experiment.start, **starts}.items():
        if path is not None and (mark := misread(path)):
            yield f"{where}: fairseq misreads {mark!r} in {path}; rename the file or folder"
    yield from _owned("train", experiment.train, TRAIN_FLAGS)
    yield from _owned("generate", experiment.generate, GENERATE_FLAGS)


def _misnamed(name: Any) -> Iterator[str]:
    """Yield why a system, and its folder, cannot have a name."""
    if not isinstance(name, str):
        yield f"systems: {name!r} is not a text; put the name in quotes"
    elif not name or "/" in name or name.startswith("."):
        yield f"systems: {name!r} cannot be the name of a folder; choose another name"
    elif name in RESERVED:
        yield f"systems: {name} is a name that the experiment itself uses; choose another name"
    elif mark := misread(name):
        yield f"systems: fairseq misreads {mark!r} in {name}; choose another name"


def _owned(where: str, flags: Flags, owned: Collection[str]) -> Iterator[str]:
    """Yield the flags that the experiment sets itself."""
    for name in flags:
        if name.replace("_", "-") in owned:
            yield f"{where}.{name} is set by the experiment itself; remove it"
