"""The settings of a translation recipe: its recipe.yaml and environment variables."""

import importlib.util
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Optional

import yaml

from fairseq_recur.errors import ConfigError, refuse
from fairseq_recur.experiments.schema import fill, setting
from fairseq_recur.experiments.settings import misread
from recipes.fetch import Archive
from recipes.translation_text import Rules


@dataclass(frozen=True)
class Corpus:
    """Parallel text in an archive.

    Attributes:
        name: name of the corpus
        archive: the archive
        members: language -> the archive's files, which are concatenated
        pairs: number of sentence pairs, if known
        every: with N, only each N-th pair; with -N, all but each N-th; with 0, all
    """

    name: str
    archive: Archive
    members: dict[str, tuple[str, ...]]
    pairs: int | None = None
    every: int = 0


@dataclass(frozen=True)
class Recipe:
    """Languages, training corpora, validation and test sets, and defaults of options.

    Attributes:
        languages: the two language codes (ISO 639-1)
        archives: all archives
        train: training corpora, in the order in which they are concatenated
        sets: "valid" and "test" -> direction ("en-de") -> corpus
        defaults: option -> default
        disk: bytes written per byte of the training archives
    """

    languages: tuple[str, str]
    archives: list[Archive]
    train: list[Corpus]
    sets: dict[str, dict[str, Corpus]]
    defaults: dict[str, str]
    disk: float

    def chosen(self, corpora: str | None) -> list[Corpus]:
        """Return the training corpora with these names, separated by blanks; None for all."""
        return [c for c in self.train if corpora is None or c.name in corpora.split()]

    def used(self, options: "Options") -> list[Corpus]:
        """Return the corpora that a preparation needs."""
        sets = (self.sets[name][options.direction] for name in ("valid", "test"))
        return [*self.chosen(options.corpora), *sets]


@dataclass
class _ArchiveEntry:
    """An archive in recipe.yaml."""

    urls: list[str] = setting(expected="a list of addresses")
    size: Optional[int] = setting(None, least=1)  # noqa: UP045 (OmegaConf 2.0)
    sha256: Optional[str] = setting(None, "a checksum")  # noqa: UP045 (OmegaConf 2.0)
    md5: Optional[str] = setting(None, "a checksum")  # noqa: UP045 (OmegaConf 2.0)


@dataclass
class _CorpusEntry:
    """A corpus in recipe.yaml."""

    archive: str = setting(expected="the name of an archive")
    members: dict[str, Any] = setting(expected="a list of files per language")
    pairs: Optional[int] = setting(None, least=1)  # noqa: UP045 (OmegaConf 2.0)
    every: int = setting(0)


@dataclass
class _RecipeFile:
    """The content of recipe.yaml."""

    languages: list[str] = setting(expected="two language codes")
    archives: dict[str, _ArchiveEntry] = setting(expected="a name and urls per archive")
    train: dict[str, _CorpusEntry] = setting(expected="a name and files per corpus")
    valid: dict[str, _CorpusEntry] = setting(expected="a corpus per direction")
    test: dict[str, _CorpusEntry] = setting(expected="a corpus per direction")
    defaults: dict[str, Any] = setting(expected="values of options")
    disk: float = setting(least=0)


def read_recipe(file: Path) -> Recipe:
    """Read a recipe.yaml.

    Raises:
        ConfigError: it cannot be read, or is not complete; lists everything that is wrong
    """
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"the recipe {file} cannot be read: {error}; name a recipe.yaml"
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(
            f"the recipe {file} is not complete: {error}; compare it with one in examples"
        ) from error
    problems: list[str] = []
    found = fill(_RecipeFile, content, problems)
    if found is not None:
        entries = {"train": found.train, "valid": found.valid, "test": found.test}
        problems += [
            f"{part}.{name}.archive: {entry.archive!r}; expected one of {', '.join(found.archives)}"
            for part, corpora in entries.items()
            for name, entry in corpora.items()
            if entry.archive not in found.archives
        ]
        problems += _directions(found)
    if found is None or problems:
        raise ConfigError(
            f"the recipe {file} is not complete; compare it with one in examples:\n- "
            + "\n- ".join(problems)
        )
    archives = {
        name: Archive(name, tuple(entry.urls), entry.size, entry.sha256, entry.md5)
        for name, entry in found.archives.items()
    }

    def corpus(name: str, entry: _CorpusEntry) -> Corpus:
        members = {language: tuple(files) for language, files in entry.members.items()}
        return Corpus(name, archives[entry.archive], members, entry.pairs, entry.every)

    first, second = found.languages
    return Recipe(
        languages=(first, second),
        archives=list(archives.values()),
        train=[corpus(name, entry) for name, entry in found.train.items()],
        sets={
            part: {d: corpus(f"{part}.{d}", entry) for d, entry in entries[part].items()}
            for part in ("valid", "test")
        },
        defaults={name: str(value) for name, value in found.defaults.items()},
        disk=found.disk,
    )


def _directions(found: _RecipeFile) -> Iterator[str]:
    """Yield what is wrong with the languages and the corpora of each direction."""
    if len(set(found.languages)) != 2 or len(found.languages) != 2:
        yield f"languages: {found.languages}; expected two different language codes"
        return
    first, second = found.languages
    for part, corpora in (("valid", found.valid), ("test", found.test)):
        for direction in (f"{first}-{second}", f"{second}-{first}"):
            if direction not in corpora:
                yield f"{part}.{direction} is missing; expected a corpus for each direction"


@dataclass
class Options:
    """How to prepare a recipe; each option is the environment variable of that name in capitals.

    Attributes:
        source, target: the direction
        work: folder of all files
        max_length, min_length: length of a training sentence in words
        ratio: how many times longer one side of a training pair may be than the other
        bpe: one model for both languages, or one per language
        tokenizer: the Moses tokenizer before BPE, or SentencePiece on raw text
        segmentation: how Chinese is split into words before BPE
        normalise: whether punctuation is normalised before BPE
        dashes: whether words are split at dashes before BPE
        bpe_size: number of merges for BPE, of subwords for SentencePiece
        bpe_threshold: how often a language must have a subword of a joint BPE to use it
        dictionary: one dictionary of fairseq per language, or one for both
        lowercase: whether all text becomes lower case after it has been split into words
        corpora: names of the training corpora to use, separated by blanks; None for all
        sample: how many pairs to use, from the beginning of each corpus; 0 for all
        download_only: whether to end when the archives are complete
        workers: number of processes
        wmt_mirror: folder or address of the archives
    """

    source: str = setting(expected="a language code")
    target: str = setting(expected="a language code")
    work: Any = setting(expected="a folder for all files")
    max_length: int = setting(least=1)
    ratio: float = setting(least=1)
    bpe: str = setting(choices=("joint", "separate"))
    tokenizer: str = setting("moses", choices=("moses", "sentencepiece"))
    segmentation: str = setting("jieba", choices=("jieba", "characters"))
    normalise: str = setting("1", choices=("0", "1"))
    dashes: str = setting("1", choices=("0", "1"))
    bpe_size: int = setting(32000, least=1)
    bpe_threshold: int = setting(0, least=0)
    dictionary: str = setting("separate", choices=("separate", "joined"))
    min_length: int = setting(1, least=1)
    lowercase: str = setting("0", choices=("0", "1"))
    corpora: Optional[str] = setting(None, "names of corpora")  # noqa: UP045 (OmegaConf)
    sample: int = setting(0, least=0)
    download_only: str = setting("0", choices=("0", "1"))
    workers: int = setting(os.cpu_count() or 1, least=1)
    wmt_mirror: Optional[str] = setting(None, "a folder or an address")  # noqa: UP045 (OmegaConf)

    @property
    def direction(self) -> str:
        """Such as "en-de"."""
        return f"{self.source}-{self.target}"

    @property
    def rules(self) -> Rules:
        """The rules of cleaning."""
        return Rules(self.min_length, self.max_length, self.ratio)


def read_options(recipe: Recipe, given: Mapping[str, str]) -> Options:
    """Read the options from environment variables and a recipe's defaults.

    Raises:
        ConfigError: lists all options that are wrong
    """
    texts = dict(recipe.defaults)
    for field in fields(Options):
        if given.get(field.name.upper()):
            texts[field.name] = given[field.name.upper()]
    problems: list[str] = []
    if (texts.get("bpe"), texts.get("tokenizer", "moses")) != ("joint", "moses"):
        texts["bpe_threshold"] = "0"
        if given.get("BPE_THRESHOLD", "0") not in ("", "0"):
            problems.append(
                "BPE_THRESHOLD has no effect without BPE=joint and TOKENIZER=moses; remove it"
            )
    options = fill(Options, texts, problems, environment=True)
    if options is not None:
        options.work = Path(options.work).absolute()
        problems += _together(recipe, options)
    refuse("variables that cannot be used", problems)
    assert options is not None, "what cannot be read is a problem"
    return options


def _together(recipe: Recipe, options: Options) -> list[str]:
    """Return the problems of options that are valid one by one."""
    problems = []
    if {options.source, options.target} != set(recipe.languages):
        first, second = recipe.languages
        problems.append(
            f"SOURCE={options.source} TARGET={options.target}: expected {first} and {second}, or"
            f" {second} and {first}"
        )
    if options.dictionary == "joined" and options.bpe == "separate":
        problems.append("DICTIONARY=joined needs BPE=joint; expected DICTIONARY=separate")
    if mark := misread(str(options.work)):
        problems.append(
            f"WORK={options.work}: fairseq misreads {mark!r} in its path; choose another folder"
        )
    if options.min_length > options.max_length:
        problems.append(
            f"MIN_LENGTH={options.min_length} is above MAX_LENGTH={options.max_length}; reduce it"
        )
    names = [corpus.name for corpus in recipe.train]
    unknown = [name for name in (options.corpora or names[0]).split() if name not in names]
    if unknown or (options.corpora is not None and not options.corpora.split()):
        problems.append(f"CORPORA={options.corpora}: expected some of {', '.join(names)}")
    for package in _packages(options):
        if importlib.util.find_spec(package) is None:
            problems.append(
                f"the package {package} is needed for these options and is not installed:"
                " pip install '.[recipes]' in the project's folder"
            )
    return problems


def _packages(options: Options) -> list[str]:
    """Return the optional packages that the options need."""
    if options.tokenizer == "sentencepiece":
        return []
    chinese = "zh" in (options.source, options.target) and options.segmentation == "jieba"
    return ["sacremoses", "jieba"] if chinese else ["sacremoses"]
