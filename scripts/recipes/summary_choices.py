"""What a user chooses for a summarization recipe, and whether it goes together."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fairseq.models import ARCH_MODEL_REGISTRY

import fairseq_recur  # noqa: F401  (registers its architectures)
from fairseq_recur.errors import ConfigError
from recipes.summary_pieces import KINDS

AUTO = "auto"
STARTS = {"none": "", "bart.base": "gpt2", "bart.large": "gpt2", "t5-small": "t5"}
"""What a training can start from, and the pieces that it needs."""

SETTINGS = ("paper", "fairseq", "scratch")
GENERATIONS = ("usual", "paper")
POSITIONS = 1024
"""Of BART's learned positions."""


@dataclass(frozen=True)
class Choices:
    """Settings of a recipe.

    Attributes:
        arch: --arch of fairseq-train
        pieces: one of KINDS
        start: one of STARTS
        max_source: the most pieces of a source that a model reads, the end of the sentence included
        max_target: the same of a summary that is trained on; others are never cut
        vocabulary: how many pieces SentencePiece learns
        settings: of training, one of SETTINGS
        generation: settings of the search, one of GENERATIONS
        workers: processes of the preparation
        average: of how many epochs the checkpoints are averaged; 0 for none
    """

    arch: str
    pieces: str
    start: str
    max_source: int
    max_target: int
    vocabulary: int
    settings: str
    generation: str
    workers: int
    average: int

    @property
    def folder(self) -> str:
        """A name for what is prepared with these pieces and limits."""
        size = f"{self.vocabulary}-" if self.pieces == "sentencepiece" else ""
        return f"{self.pieces}-{size}{self.max_source}-{self.max_target}"


def choose(wanted: Choices) -> Choices:
    """Put what follows from the architecture where a setting is "auto".

    BART's and T5's presets start from the published models with the paper's settings, and
    everything else from scratch with pieces of its own.

    Raises:
        ConfigError: settings that are wrong or do not go together; all are listed
    """
    arch, pieces, start = wanted.arch, wanted.pieces, wanted.start
    if start == AUTO:
        start = next((s for s in STARTS if s.replace(".", "_").replace("-", "_") in arch), "none")
        if pieces not in (AUTO, STARTS[start]):
            start = "none"
    if pieces == AUTO:
        pieces = STARTS.get(start) or "sentencepiece"
    settings = wanted.settings
    if settings == AUTO:
        settings = "scratch" if start == "none" else "paper"
    choices = replace(wanted, pieces=pieces, start=start, settings=settings)
    problems: list[str] = list(_problems(choices))
    if problems:
        raise ConfigError("settings:\n- " + "\n- ".join(problems))
    return choices


def _problems(choices: Choices) -> Iterator[str]:
    arch, pieces, start = choices.arch, choices.pieces, choices.start
    if arch not in ARCH_MODEL_REGISTRY:
        close = difflib.get_close_matches(arch, ARCH_MODEL_REGISTRY, n=1)
        hint = f"did you mean {close[0]}?" if close else "see `fairseq-recur check`"
        yield f"ARCH={arch}: there is no such architecture; {hint}"
    for name, value, known in (
        ("PIECES", pieces, [AUTO, *KINDS]),
        ("START", start, [AUTO, *STARTS]),
        ("SETTINGS", choices.settings, [AUTO, *SETTINGS]),
        ("GENERATION", choices.generation, list(GENERATIONS)),
    ):
        if value not in known:
            yield f"{name}={value}: expected {', '.join(known)}"
    if start in STARTS and STARTS[start] and pieces in KINDS and STARTS[start] != pieces:
        yield f"START={start} needs PIECES={STARTS[start]}, not {pieces}"
    for name, value, least in (
        ("MAX_SOURCE", choices.max_source, 2),
        ("MAX_TARGET", choices.max_target, 2),
        ("VOCABULARY", choices.vocabulary, 10),
        ("WORKERS", choices.workers, 1),
        ("AVERAGE", choices.average, 0),
    ):
        if value < least:
            yield f"{name}={value}: expected at least {least}"
    if start.startswith("bart") and max(choices.max_source, choices.max_target) > POSITIONS:
        yield (
            f"START={start} has {POSITIONS} positions; MAX_SOURCE and MAX_TARGET cannot be more; "
            "give less"
        )


def start_file(choices: Choices, work: Path) -> Path:
    """Where the model is from which a training starts, once it is prepared.

    Args:
        choices: with another start than "none"
        work: the recipe's folder
    """
    return work / choices.start / "model.pt"
