"""The settings of a summarization recipe: its data.yaml and the user's choices."""

import difflib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Optional

import yaml
from fairseq.models import ARCH_MODEL_REGISTRY

import fairseq_recur  # noqa: F401  (registers its architectures)
from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.schema import fill, setting
from recipes.fetch import Archive
from recipes.subwords import KINDS, SPIECE

SPLITS = ("train", "valid", "test")
SIDES = ("source", "target")
VALIDATION = ("val", "dev")
"""What files of the user's own validation set may be called in place of valid."""


def find_file(folder: Path, name: str) -> Path:
    """Return a file of the user's own data set.

    Args:
        folder: of the data set
        name: such as valid.source, which may also be val.source or dev.source
    """
    split, _, rest = name.partition(".")
    names = [name, *(f"{other}.{rest}" for other in VALIDATION if split == "valid")]
    return next((p for n in names if (p := folder / n).is_file()), folder / name)


@dataclass
class Source:
    """A file of a data set.

    Attributes:
        name: name of the file
        urls: its addresses
        size: its size in bytes, if known
        sha256: its checksum, if known
        how: how a person gets the file, in one sentence; empty if an address is enough
    """

    name: str = setting(expected="the name of a file")
    urls: list[str] = setting([], "a list of addresses")
    size: Optional[int] = setting(None, least=1)  # noqa: UP045 (OmegaConf 2.0)
    sha256: Optional[str] = setting(None, "a checksum")  # noqa: UP045 (OmegaConf 2.0)
    how: str = setting("", "a sentence")

    @property
    def archive(self) -> Archive:
        """The file as something to download."""
        return Archive(self.name, tuple(self.urls), self.size, self.sha256)


@dataclass
class DataSet:
    """A data set: the content of data.yaml.

    Attributes:
        format: which reader of `recipes.summary_readers` reads its files
        files: its files, by the role that they have for the reader
        documents: number of documents in each split, including incomplete ones
        text_bytes: size of all splits as plain text
        training: how fairseq's recipe differs from that of the other sets
        target_length: about how many subwords a usual summary has: while a decoder over segments
            writes them, it goes through all segments
        segment_size: subwords of a segment, which gives 4 to 16 segments with the usual lengths
        generation: usual flags of fairseq-generate
        options: options of the reader
        name: name of its folder
    """

    format: str = setting(expected="the name of a reader")
    files: dict[str, Source] = setting(expected="a name per file")
    documents: dict[str, int] = setting(expected="a number per split")
    text_bytes: int = setting(least=1)
    training: dict[str, Any] = setting(expected="updates and batch_tokens")
    target_length: int = setting(least=1)
    segment_size: int = setting(64, least=1)
    generation: dict[str, Any] = setting(expected="flags of fairseq-generate")
    options: dict[str, Any] = setting({}, "options of the reader")
    name: str = field(init=False, default="")


def archive(fields: dict[str, Any]) -> Archive:
    """Return an archive of models.yaml; it has a name, and urls, size and sha256 if known."""
    return Source(**fields).archive


def read_data_set(file: Path) -> DataSet:
    """Read a data.yaml.

    Raises:
        ConfigError: it does not exist or is not complete; lists everything that is wrong
    """
    if not file.is_file():
        raise ConfigError(f"there is no {file}; expected a recipe's data.yaml")
    problems: list[str] = []
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{file} is not YAML: {error}; correct it there") from error
    data = fill(DataSet, content, problems)
    if data is None:
        raise ConfigError(f"{file}: not a data set; correct it:\n- " + "\n- ".join(problems))
    data.name = file.parent.name
    return data


AUTO = "auto"
STARTS = {"none": "", "bart.base": "gpt2", "bart.large": "gpt2", "t5-small": "t5"}
"""Pretrained models, and the kind of subwords that they need."""

STARTED = {"bart_base": "bart.base", "bart_large": "bart.large", "t5_small": "t5-small"}
"""Architectures that start from a pretrained model by default, also as ``srformer_...``."""

SETTINGS = ("paper", "fairseq", "scratch")
GENERATIONS = ("usual", "paper")
POSITIONS = 1024
"""Number of BART's learned positions."""


@dataclass
class Choices:
    """Settings of a recipe.

    Attributes:
        arch: --arch of fairseq-train
        pieces: kind of subwords
        start: pretrained model
        max_source: maximum number of subwords of a source, the end symbol included
        max_target: the same for the summaries of the training set; others are never truncated
        vocabulary: number of subwords that SentencePiece learns
        settings: settings of the training
        generation: settings of the search
        seed: seed of the training
        workers: number of processes of the preparation
        average: number of epochs whose checkpoints are averaged; 0 for none
        sample: how many documents of the training set to use; 0 for all
        download_only: whether to end when all files are downloaded
        texts: folder with the user's own texts, SPLIT.source and SPLIT.target, which replace the
            data set; empty for the data set
        pieces_from: folder that an earlier preparation has named after its pieces, whose learned
            pieces are taken; empty to learn them
    """

    arch: str = setting("srformer_bart_base")
    pieces: str = setting(AUTO, choices=(AUTO, *KINDS))
    start: str = setting(AUTO, choices=(AUTO, *STARTS))
    max_source: int = setting(1024, least=2)
    max_target: int = setting(128, least=2)
    vocabulary: int = setting(32000, least=10)
    settings: str = setting(AUTO, choices=(AUTO, *SETTINGS))
    generation: str = setting("usual", choices=GENERATIONS)
    seed: int = setting(1, least=1)
    workers: int = setting(1, least=1)
    average: int = setting(0, least=0)
    sample: int = setting(0, least=0)
    download_only: str = setting("0", choices=("0", "1"))
    texts: str = setting("", "a folder")
    pieces_from: str = setting("", "a folder")

    @property
    def longest(self) -> int:
        """The most tokens of a text."""
        return max(self.max_source, self.max_target)

    @property
    def given_pieces(self) -> dict[str, Path]:
        """The files of `pieces_from`, by the names that they get: subwords and dictionary."""
        folder = Path(self.pieces_from)
        return {
            SPIECE: folder / "model" / SPIECE,
            "dict.txt": folder / "data-bin" / "dict.source.txt",
        }

    @property
    def limits(self) -> dict[str, int]:
        """The most subwords of a source and of a target, without the end symbol."""
        return {"source": self.max_source - 1, "target": self.max_target - 1}

    @property
    def folder(self) -> str:
        """Name of the folder for data with these subwords and limits."""
        size = f"{self.vocabulary}-" if self.pieces == "sentencepiece" else ""
        return f"{self.pieces}-{size}{self.max_source}-{self.max_target}"


def choose(wanted: Choices) -> Choices:
    """Replace "auto" by what follows from the architecture, and text by the numbers in it.

    The presets of BART and T5 start from the published models: BART's with fairseq's settings,
    T5's with the paper's. All other architectures start from scratch, with subwords learned from
    the data.

    Raises:
        ConfigError: lists all settings that are wrong or inconsistent
    """
    arch, pieces, start = wanted.arch, wanted.pieces, wanted.start
    if start == AUTO:
        start = STARTED.get(arch.removeprefix("srformer_"), "none")
        if pieces not in (AUTO, STARTS[start]):
            start = "none"
    if pieces == AUTO:
        pieces = STARTS.get(start) or "sentencepiece"
    settings = wanted.settings
    if settings == AUTO:
        settings = "scratch" if start == "none" else "fairseq" if "bart" in start else "paper"
    choices = replace(wanted, pieces=pieces, start=start, settings=settings)
    problems = list(_problems(choices))
    typed = fill(Choices, asdict(choices), problems, environment=True)
    if typed is not None:
        problems += _lengths(typed)
    if problems or typed is None:
        raise ConfigError("settings:\n- " + "\n- ".join(problems))
    return typed


def _problems(choices: Choices) -> Iterator[str]:
    """Yield what the types, ranges and choices of single settings cannot tell."""
    arch, pieces, start = choices.arch, choices.pieces, choices.start
    if arch not in ARCH_MODEL_REGISTRY:
        close = difflib.get_close_matches(arch, ARCH_MODEL_REGISTRY, n=1)
        hint = f"did you mean {close[0]}?" if close else "see `fairseq-recur check`"
        yield f"ARCH={arch}: there is no such architecture; {hint}"
    if start in STARTS and STARTS[start] and pieces in KINDS and STARTS[start] != pieces:
        yield f"START={start} needs PIECES={STARTS[start]}, not {pieces}"
    if choices.texts:
        wanted = [f"{split}.{side}" for split in SPLITS for side in SIDES]
        lacking = [name for name in wanted if not find_file(Path(choices.texts), name).is_file()]
        if lacking:
            yield (
                f"TEXTS={choices.texts}: no {', '.join(lacking)} there; add a text per line; "
                "a validation set can be the last lines of the training set, left out there"
            )
    if choices.pieces_from:
        if pieces != "sentencepiece":
            yield f"PIECES_FROM={choices.pieces_from}: needs PIECES=sentencepiece, not {pieces}"
        for file in choices.given_pieces.values():
            if not file.is_file():
                yield (
                    f"PIECES_FROM={choices.pieces_from}: there is no {file}; expected a folder of "
                    "prepared data such as WORK/sentencepiece-32000-1024-128"
                )


def _lengths(choices: Choices) -> Iterator[str]:
    """Yield why the pretrained model cannot have texts of these lengths."""
    if choices.start.startswith("bart") and choices.longest > POSITIONS:
        yield (
            f"START={choices.start} has {POSITIONS} positions; MAX_SOURCE and MAX_TARGET cannot "
            "be larger; reduce them"
        )


def start_file(choices: Choices, work: Path) -> Path:
    """Return the prepared model that initialises a training.

    Args:
        choices: their start is not "none"
        work: folder of the recipe
    """
    return work / choices.start / "model.pt"
