"""What an experiment is: YAML files, read and checked as a whole."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from sacrebleu.metrics.base import Metric

from fairseq_recur.errors import ConfigError
from fairseq_recur.scoring.comet import DEFAULT_MODEL
from fairseq_recur.scoring.generation import read_lines
from fairseq_recur.scoring.mean import MeanMetric
from fairseq_recur.scoring.metrics import METRICS, TOKENIZERS, build_metric

Flags = dict[str, Any]

# The experiment itself gives these to fairseq's commands.
OWN = {
    "train": {"save-dir", "seed", "log-file", "user-dir", "restore-file", "finetune-from-model"},
    "generate": {"path", "user-dir", "results-path"},
}
OWN["flags"] = OWN["train"]


@dataclass(frozen=True)
class System:
    """One row of the table.

    Attributes:
        name: of the row, and of the folder
        flags: of fairseq-train, before those of all systems
        start_from: the system whose trained model of the same seed this one starts from
        published: metric -> what the paper has, to be shown beside
    """

    name: str
    flags: Flags
    start_from: str | None = None
    published: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Scoring:
    """How translations are scored: see ``fairseq-recur score`` and ``compare``.

    Attributes:
        references: files
        metrics: names of them
        tokenize, lowercase: of BLEU and chrF
        samples: of the paired tests
        source: file that was translated, which COMET reads, or None
        comet_model: for COMET
    """

    references: tuple[str, ...]
    metrics: tuple[str, ...] = ("bleu", "chrf")
    tokenize: str = "13a"
    lowercase: bool = False
    samples: int = 1000
    source: str | None = None
    comet_model: str = DEFAULT_MODEL

    def build(self) -> list[Metric | MeanMetric]:
        """The metrics.

        Raises:
            ConfigError: one that cannot be had here
        """
        source = read_lines(self.source) if self.source is not None else None
        return [
            build_metric(
                name, self.tokenize, self.lowercase, source=source, comet_model=self.comet_model
            )
            for name in self.metrics
        ]


@dataclass(frozen=True)
class Speed:
    """How speed is measured: in turns, *repeats* times, over *updates* after *warmup* others."""

    updates: int = 40
    warmup: int = 10
    repeats: int = 3


@dataclass(frozen=True)
class Experiment:
    """A table.

    Attributes:
        title: of the table
        data: folder of fairseq's binary data
        source, target: languages
        baseline: name of the system that the others are compared with
        seeds: each system is trained once with each
        train, generate: flags of the two commands, for all systems
        checkpoint: what is decoded: a number of last checkpoints to average, "best" or "last"
        scoring: of the test set
        speed: how speed is measured, None for not at all
        systems: the rows
    """

    title: str
    data: str
    source: str
    target: str
    baseline: str
    seeds: tuple[int, ...]
    train: Flags
    generate: Flags
    checkpoint: int | str
    scoring: Scoring
    speed: Speed | None
    systems: tuple[System, ...]

    def system(self, name: str) -> System:
        """The system of that name."""
        return next(s for s in self.systems if s.name == name)


def arguments(flags: Flags) -> list[str]:
    """A command line from {"max-tokens": 4096, "cpu": True, ...}.

    True is a flag without value; False and None are left out; a list is several values; a
    dictionary is written as JSON, which is how fairseq takes one.
    """
    words: list[str] = []
    for name, value in flags.items():
        if value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        if isinstance(value, dict):
            words.append(json.dumps(value))
        elif isinstance(value, list):
            words += map(str, value)
        elif value is not True:
            words.append(str(value))
    return words


def read_experiment(paths: Sequence[str | Path], changes: Sequence[str] = ()) -> Experiment:
    """Read YAML files that make one experiment together, such as a table and a corpus.

    Args:
        paths: of the files; paths in a file are relative to its folder, and where two have the
            same key the later counts
        changes: "train.max-update=500", ... instead of what the files have; the value is YAML

    Raises:
        ConfigError: with everything that is wrong, one line each
    """
    content: dict[str, Any] = {}
    for path in paths:
        content = _merged(content, _load(Path(path)))
    for change in changes:
        _change(content, change)
    problems = list(_problems(content))
    if problems:
        named = " and ".join(map(str, paths))
        raise ConfigError(f"{named}: not an experiment:\n- " + "\n- ".join(problems))
    scoring = content["score"]
    references = scoring["reference"]
    return Experiment(
        title=content["title"],
        data=content["data"],
        source=content["source"],
        target=content["target"],
        baseline=content["baseline"],
        seeds=tuple(content.get("seeds", [1])),
        train=content["train"],
        generate=content.get("generate", {}),
        checkpoint=content.get("checkpoint", 5),
        scoring=Scoring(
            references=tuple([references] if isinstance(references, str) else references),
            **{key: _frozen(value) for key, value in scoring.items() if key != "reference"},
        ),
        speed=Speed(**content["speed"]) if content.get("speed") else None,
        systems=tuple(
            System(
                name,
                row["flags"],
                row.get("start_from"),
                row.get("published", {}),
            )
            for name, row in content["systems"].items()
        ),
    )


def _frozen(value: Any) -> Any:
    """A list as a tuple."""
    return tuple(value) if isinstance(value, list) else value


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Both, the second's values where both have one; dictionaries are merged inside."""
    both = {**first, **second}
    for key in {*first} & {*second}:
        if isinstance(first[key], dict) and isinstance(second[key], dict):
            both[key] = _merged(first[key], second[key])
    return both


def _load(path: Path) -> dict[str, Any]:
    """The file's content, with paths as from here."""
    if not path.is_file():
        raise ConfigError(f"no such file: {path}; expected an experiment in YAML")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} is not YAML: {' '.join(str(error).split())}; correct it there"
        ) from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected keys and values such as `title: ...`")
    _apply(content, lambda value: str(path.parent / value))
    return content


def _apply(content: dict[str, Any], to_path: Callable[[str], str]) -> None:
    """Change the paths in *content*."""
    if isinstance(content.get("data"), str):
        content["data"] = to_path(content["data"])
    score = content.get("score")
    for key in ("reference", "source") if isinstance(score, dict) else ():
        if isinstance(score.get(key), str):
            score[key] = to_path(score[key])
        elif isinstance(score.get(key), list):
            score[key] = [to_path(str(item)) for item in score[key]]


def _change(content: dict[str, Any], change: str) -> None:
    """Carry out one ``KEY.KEY=VALUE``."""
    key, equals, value = change.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {change!r}: expected KEY=VALUE, such as train.max-update=500")
    *outer, last = key.split(".")
    place = content
    for name in outer:
        place = place.setdefault(name, {})
        if not isinstance(place, dict):
            raise ConfigError(f"--set {change!r}: {name} has no keys; name a key that has")
    try:
        place[last] = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"--set {change!r}: the value is not YAML; put it in quotation marks"
        ) from error


SHAPES: dict[str, tuple[Any, str]] = {
    "title": (str, "a text"),
    "data": (str, "a folder made by fairseq-recur preprocess"),
    "source": (str, "a language code"),
    "target": (str, "a language code"),
    "baseline": (str, "the name of a system"),
    "train": (dict, "flags of fairseq-train and their values"),
    "score": (dict, "at least `reference: FILE`"),
    "systems": (dict, "a name and its flags for each row"),
    "seeds": (list, "a list of numbers"),
    "generate": (dict, "flags of fairseq-generate and their values"),
    "checkpoint": ((int, str), "a number of checkpoints to average, best or last"),
    "speed": ((dict, type(None)), "updates, warmup, repeats"),
}
OPTIONAL = {"seeds", "generate", "checkpoint", "speed"}


def _problems(content: dict[str, Any]) -> Iterator[str]:
    """Everything that is wrong."""
    yield from (
        f"unknown key {key}; expected {', '.join(SHAPES)}" for key in {*content} - {*SHAPES}
    )
    wrong = False
    for key, (kind, expected) in SHAPES.items():
        if key not in content and key not in OPTIONAL:
            wrong = True
            yield f"{key} is missing: expected {expected}"
        elif key in content and not isinstance(content[key], kind):
            wrong = True
            yield f"{key}: {content[key]!r}; expected {expected}"
    if wrong:
        return
    yield from _small_problems(content)
    yield from _scoring_problems(content["score"])
    yield from _system_problems(content["systems"], content["baseline"])
    for command in ("train", "generate"):
        yield from _owned(command, content.get(command, {}), OWN[command])


def _small_problems(content: dict[str, Any]) -> Iterator[str]:
    """Seeds, checkpoint and speed."""
    seeds = content.get("seeds", [1])
    if not seeds or len({*map(str, seeds)}) < len(seeds) or not all(type(s) is int for s in seeds):
        yield f"seeds: {seeds!r}; expected a list of different whole numbers"
    checkpoint = content.get("checkpoint", 5)
    if checkpoint not in ("best", "last") and not (type(checkpoint) is int and checkpoint > 0):
        yield f"checkpoint: {checkpoint!r}; expected a number above 0, best or last"
    for key, value in (content.get("speed") or {}).items():
        if key not in Speed.__dataclass_fields__:
            yield f"speed has no {key}; expected {', '.join(Speed.__dataclass_fields__)}"
        elif type(value) is not int or value < (key != "warmup"):
            yield f"speed.{key}: {value!r}; expected a whole number of them"


def _scoring_problems(score: dict[str, Any]) -> Iterator[str]:
    """What ``score`` has."""
    if not score.get("reference"):
        yield "score.reference is missing: expected a file, or several"
    known = {"reference", *Scoring.__dataclass_fields__} - {"references"}
    yield from (
        f"score has no {key}; expected {', '.join(sorted(known))}" for key in {*score} - known
    )
    metrics = score.get("metrics", ["bleu"])
    if not isinstance(metrics, list) or not metrics or {*map(str, metrics)} - {*METRICS}:
        yield f"score.metrics: {metrics!r}; expected a list of {', '.join(METRICS)}"
    if score.get("tokenize", "13a") not in TOKENIZERS:
        yield f"score.tokenize: {score['tokenize']!r}; expected one of {', '.join(TOKENIZERS)}"
    if "comet" in metrics and not isinstance(score.get("source"), str):
        yield "score.source is missing: expected the file that is translated, which comet reads"
    samples = score.get("samples", 1000)
    if type(samples) is not int or samples < 1:
        yield f"score.samples: {samples!r}; expected a number above 0"


def _system_problems(systems: dict[str, Any], baseline: str) -> Iterator[str]:
    """The rows, and how they depend on each other."""
    if baseline not in systems:
        yield f"baseline: there is no system {baseline}; choose of {', '.join(map(str, systems))}"
    for name, row in systems.items():
        if not isinstance(name, str) or not name or "/" in name or name.startswith("."):
            yield f"systems: {name!r} cannot be the name of a folder; choose another name"
        if not isinstance(row, dict) or not isinstance(row.get("flags"), dict):
            yield f"systems.{name}: expected `flags:` with the flags of fairseq-train"
            continue
        for key in {*row} - {"flags", "start_from", "published"}:
            yield f"systems.{name} has no {key}; expected flags, start_from, published"
        yield from _owned(f"systems.{name}.flags", row["flags"], OWN["flags"])
        seen, other = [name], row.get("start_from")
        while other is not None:
            if other in seen or other not in systems:
                why = "itself" if other in seen else "no system of this experiment"
                yield f"systems.{name}.start_from leads to {other}, which is {why}; name another"
                break
            seen.append(other)
            other = systems[other].get("start_from") if isinstance(systems[other], dict) else None


def _owned(where: str, flags: Flags, owned: Sequence[str]) -> Iterator[str]:
    """Flags that are not the file's to give."""
    for name in flags:
        if str(name).replace("_", "-") in owned:
            yield f"{where}.{name} is set by the experiment itself; remove it"
