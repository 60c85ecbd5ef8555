"""Experiments from YAML files, which OmegaConf merges, and from what their folders store."""

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.schema import fill
from fairseq_recur.experiments.settings import Experiment
from fairseq_recur.experiments.settings_check import settings_problems
from fairseq_recur.experiments.steps import read_parts
from fairseq_recur.files import inside, read_yaml

ABOUT = "command.json"
"""The file of a folder that says how its experiment was started."""

ABOUT_PARTS = {"files": list, "set": list, "systems": list, "seeds": list, "parameters": dict}
"""The keys of that file, and the types of their values."""


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
        problems += settings_problems(experiment)
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
    "": ("data", "start", "user-dir"),
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


def read_about(work: Path) -> dict[str, Any]:
    """Return how a folder's experiment was started.

    Raises:
        ConfigError: the folder has no experiment, or the file is damaged
    """
    about = read_parts(
        work / ABOUT,
        lambda of: all(isinstance(of.get(name), kind) for name, kind in ABOUT_PARTS.items()),
    )
    if about is None:
        raise ConfigError(
            f"no experiment in {work}: it has no {ABOUT}; expected the --work-dir of an experiment"
        )
    return about


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
