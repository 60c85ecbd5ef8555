"""What is trained: the settings from the environment, and the command of each training."""

import os
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent

LANGUAGES = "d_2 d_4 parity tomita_3 tomita_5 tomita_6"
SYSTEMS = "transformer transformer_relative rsa_1 rsa_2 rsa_3 rsa_4"

# Heads of each case: regular, cosine, sine, and the same dilated.
CASES = {
    "rsa_1": "5,0,0,0,0,0",
    "rsa_2": "3,0,0,2,0,0",
    "rsa_3": "3,1,1,0,0,0",
    "rsa_4": "3,0,0,0,1,1",
}

# Appendix E.2 of the paper; the FFN and the sigmoid outputs are those of the published code.
MODEL = (
    "--decoder-layers 3 --decoder-attention-heads 5 --decoder-embed-dim 20 --decoder-input-dim 20 "
    "--decoder-output-dim 20 --decoder-ffn-embed-dim 64 --dropout 0"
)
TRAINING = (
    "--criterion string_accuracy --optimizer adamw_fused --lr-scheduler fixed --batch-size 32 "
    "--valid-subset bin0,bin1 --batch-size-valid 200 --required-batch-size-multiple 1 "
    "--num-workers 0 --no-epoch-checkpoints --best-checkpoint-metric accuracy "
    "--maximize-best-checkpoint-metric --log-format json --log-interval 100"
)
LEARNING_RATE, HALVED_EVERY = 0.005, 5


class SettingsError(ValueError):
    """A variable of the environment that has no sense."""


def _variable(name: str, default: str) -> str:
    return field(default_factory=lambda: os.environ.get(name, default))


@dataclass
class Settings:
    """The variables of the environment, in capitals there.

    Raises:
        SettingsError: a name that is none of a language or system, or no whole number.
    """

    languages: str = _variable("LANGUAGES", LANGUAGES)
    systems: str = _variable("SYSTEMS", SYSTEMS)
    seeds: str = _variable("SEEDS", "1")
    epochs: str = _variable("EPOCHS", "25")
    gate: str = _variable("GATE", "1")
    dilations: str = _variable("DILATIONS", "2,2")
    positions: str = _variable("POSITIONS", "0")
    device: str = _variable("DEVICE", "cpu")
    options: str = _variable("OPTIONS", "")

    def __post_init__(self) -> None:
        for name, known in (("languages", LANGUAGES), ("systems", SYSTEMS)):
            unknown = set(getattr(self, name).split()) - set(known.split())
            if unknown or not getattr(self, name).split():
                found = " ".join(sorted(unknown)) or "nothing"
                raise SettingsError(f"{name.upper()}: {found}; expected some of: {known}")
        numbers = [("SEEDS", n) for n in self.seeds.split() or [""]] + [("EPOCHS", self.epochs)]
        for name, number in numbers:
            if not number.isdigit() or int(number) < 1:
                raise SettingsError(f"{name}: {number!r}; expected a whole number from 1")
        for name, choices in (("positions", ("0", "1")), ("device", ("cpu", "cuda"))):
            if getattr(self, name) not in choices:
                raise SettingsError(
                    f"{name.upper()}: {getattr(self, name)!r}; expected {' or '.join(choices)}"
                )

    def as_dict(self) -> dict[str, str]:
        """Return the variables and their values."""
        return {name.upper(): value for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        language, system, seed: what is trained.
        flags: of ``fairseq-recur train``; a training goes on only with the same.
        epochs: up to which it goes; more of them continue a shorter training.
    """

    language: str
    system: str
    seed: int
    flags: tuple[str, ...]
    epochs: int

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.language} {self.system} seed {self.seed}"

    def folder(self, work: Path) -> Path:
        """Return where its checkpoints and its log are."""
        return work / self.language / self.system / f"seed{self.seed}"

    def command(self, work: Path) -> list[str]:
        """Return the words of the command."""
        rates = [LEARNING_RATE * 0.5 ** (epoch // HALVED_EVERY) for epoch in range(self.epochs)]
        schedule = ["--lr", ",".join(map(str, rates)), "--max-epoch", str(self.epochs)]
        save = ["--save-dir", str(self.folder(work))]
        return ["fairseq-recur", "train", *self.flags, *schedule, *save]


def system_flags(system: str, settings: Settings) -> list[str]:
    """Return the flags that make a system."""
    if system == "transformer":
        return ["--arch", "transformer_lm"]
    flags = ["--arch", "rsa_transformer_lm"]
    if system == "transformer_relative":
        return [*flags, "--decoder-self-attention", "relative", "--no-token-positional-embeddings"]
    flags += ["--decoder-self-attention", "rsa", "--rsa-heads", CASES[system]]
    flags += [f"--rsa-gate-init={settings.gate}"]  # with "=": the number may be negative
    flags += ["--rsa-form", "dense"]  # the fastest for heads of width 4
    if any(map(int, CASES[system].split(",")[3:])):
        flags += ["--rsa-dilations", settings.dilations]
    if settings.positions == "0":
        flags.append("--no-token-positional-embeddings")
    return flags


def runs(settings: Settings) -> Iterator[Run]:
    """Yield the trainings, seed by seed, so that a whole table is there early."""
    for seed in map(int, settings.seeds.split()):
        for language in settings.languages.split():
            for system in settings.systems.split():
                flags = ["--task", "regular_languages", "--language", language]
                flags += system_flags(system, settings) + MODEL.split() + TRAINING.split()
                flags += ["--cpu"] if settings.device == "cpu" else []
                flags += ["--seed", str(seed), *shlex.split(settings.options)]
                yield Run(language, system, seed, tuple(flags), int(settings.epochs))
