"""What is particular to a translation recipe, read from its recipe.yaml."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fairseq_recur.errors import ConfigError
from recipes.fetch import Archive


@dataclass(frozen=True)
class Corpus:
    """Parallel text in an archive.

    Attributes:
        name: of the corpus
        archive: where it is
        members: for each language the archive's files, to be read one after the other
        pairs: how many sentence pairs it has, if that is known
    """

    name: str
    archive: Archive
    members: dict[str, tuple[str, ...]]
    pairs: int | None = None


@dataclass(frozen=True)
class Recipe:
    """Languages, training corpora, validation and test sets, and defaults of options.

    Attributes:
        languages: the two, as codes of ISO 639-1
        archives: all of them
        train: the training corpora, in the order in which they are joined
        sets: "valid" and "test", each for every direction ("en-de")
        defaults: options, by name
        disk: bytes written for each byte of the training archives
    """

    languages: tuple[str, str]
    archives: list[Archive]
    train: list[Corpus]
    sets: dict[str, dict[str, Corpus]]
    defaults: dict[str, str]
    disk: float

    def used(self, direction: str) -> list[Corpus]:
        """What is read to prepare a direction."""
        return [*self.train, *(self.sets[name][direction] for name in ("valid", "test"))]


def read_recipe(file: Path) -> Recipe:
    """Read a recipe.yaml.

    Raises:
        ConfigError: it cannot be read, or something is missing
    """
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        archives = {name: _archive(name, given) for name, given in content["archives"].items()}
        first, second = content["languages"]
        return Recipe(
            languages=(first, second),
            archives=list(archives.values()),
            train=[_corpus(name, c, archives) for name, c in content["train"].items()],
            sets={
                name: {
                    direction: _corpus(f"{name}.{direction}", given, archives)
                    for direction, given in content[name].items()
                }
                for name in ("valid", "test")
            },
            defaults={name: str(value) for name, value in content["defaults"].items()},
            disk=float(content["disk"]),
        )
    except OSError as error:
        raise ConfigError(
            f"the recipe {file} cannot be read: {error}; name a recipe.yaml"
        ) from error
    except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"the recipe {file} is not complete: {error!r}; compare it with one in examples"
        ) from error


def _archive(name: str, given: Mapping[str, Any]) -> Archive:
    known = {key: given.get(key) for key in ("size", "sha256", "md5")}
    return Archive(name, tuple(given["urls"]), **known)


def _corpus(name: str, given: Mapping[str, Any], archives: dict[str, Archive]) -> Corpus:
    members = {language: tuple(files) for language, files in given["members"].items()}
    return Corpus(name, archives[given["archive"]], members, given.get("pairs"))
