"""What is trained: the settings from the environment, and the command of each training."""

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from table import BINS

from fairseq_recur.errors import refuse
from fairseq_recur.experiments.grid import GridRun
from fairseq_recur.experiments.progress import training_log
from fairseq_recur.experiments.schema import setting
from fairseq_recur.experiments.variables import as_variables, read_variables, without_effect

HERE = Path(__file__).resolve().parent

LANGUAGES = "d_2 d_4 parity tomita_3 tomita_5 tomita_6"
SYSTEMS = "transformer transformer_xl transformer_relative rsa_1 rsa_2 rsa_3 rsa_4"

# Numbers of heads in each case: regular, cosine, sine, and the same kinds dilated.
CASES = {
    "rsa_1": "5,0,0,0,0,0",
    "rsa_2": "3,0,0,2,0,0",
    "rsa_3": "3,1,1,0,0,0",
    "rsa_4": "3,0,0,0,1,1",
}

# Relative positions: those of Dai et al., which the paper's Transformer* has, and of Shaw et al.
RELATIVE = {"transformer_xl": "xl", "transformer_relative": "relative"}

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

OWN_FLAGS = {
    "--task": "all trainings have the same; leave it out",
    "--language": "choose it with LANGUAGES",
    "--decoder-self-attention": "the systems differ in it; choose them with SYSTEMS",
    "--rsa-heads": "the systems differ in it; choose them with SYSTEMS",
    "--rsa-dilations": "choose it with DILATIONS",
    "--rsa-gate-init": "choose it with GATE",
    "--no-token-positional-embeddings": "choose it with POSITIONS",
}
"""Flags that OPTIONS must not have, and why: the rows have what the variables say."""


@dataclass
class Settings:
    """The environment variables, in capitals there; README.md explains them."""

    languages: list[str] = setting(
        LANGUAGES.split(), f"some of: {LANGUAGES}", choices=LANGUAGES.split()
    )
    systems: list[str] = setting(SYSTEMS.split(), f"some of: {SYSTEMS}", choices=SYSTEMS.split())
    seeds: list[int] = setting([1], "whole numbers, at least 1", least=1)
    epochs: int = setting(25, least=1)
    gate: str = setting("1")
    dilations: str = setting("2,2")
    positions: str = setting("0", choices=("0", "1"))
    device: str = setting("cpu", choices=("cpu", "cuda"))
    options: str = setting("")
    jobs: int = setting(os.cpu_count() or 1, least=1)

    def as_dict(self) -> dict[str, str]:
        """Return the variables that determine the results, and their values."""
        return as_variables(self, without=["jobs"])


def read_settings() -> Settings:
    """Read the settings from the environment.

    Raises:
        ConfigError: lists all variables that are wrong
    """
    settings = read_variables(Settings, ["languages", "systems", "seeds"], OWN_FLAGS)
    cases, unread = [CASES[s] for s in settings.systems if s in CASES], {}
    if not cases:
        why = "without a system in SYSTEMS that has RSA's matrices"
        unread = dict.fromkeys(("GATE", "POSITIONS"), why)
    if not any(map(dilated_heads, cases)):
        unread["DILATIONS"] = "without a system in SYSTEMS that has dilated heads"
    refuse("variables that cannot be used", without_effect(unread))
    return settings


def dilated_heads(case: str) -> int:
    """Return the number of dilated heads in six numbers of heads, K1,...,K6."""
    return sum(map(int, case.split(",")[3:]))


@dataclass(frozen=True)
class LanguageRun(GridRun):
    """The training of a system on a language; a longer one continues a shorter one."""

    def learning_rate(self, epoch: int) -> float:
        """Return the rate of an epoch."""
        return LEARNING_RATE * 0.5 ** (epoch // HALVED_EVERY)

    def key(self, step: str) -> list[str]:
        """Return the flags without the length."""
        return list(self.flags)

    def done(self, step: str) -> bool:
        """Return whether the training has ended with these flags after enough epochs."""
        return super().done(step) and len(self.accuracies(BINS[-1])) >= self.epochs

    def accuracies(self, part: str) -> list[float]:
        """Return the accuracy on a bin after each epoch, at most `epochs` of them."""
        return [value for _, value in training_log(self).curve(f"{part}_accuracy")][: self.epochs]


def system_flags(system: str, settings: Settings) -> list[str]:
    """Return the flags of a system's model."""
    if system == "transformer":
        return ["--arch", "transformer_lm"]
    flags = ["--arch", "rsa_transformer_lm"]
    if system in RELATIVE:
        own = ["--decoder-self-attention", RELATIVE[system], "--no-token-positional-embeddings"]
        return [*flags, *own]
    flags += ["--decoder-self-attention", "rsa", "--rsa-heads", CASES[system]]
    flags += [f"--rsa-gate-init={settings.gate}"]  # with "=": the number may be negative
    flags += ["--rsa-form", "dense"]  # the fastest for heads of width 4
    if dilated_heads(CASES[system]):
        flags += ["--rsa-dilations", settings.dilations]
    if settings.positions == "0":
        flags.append("--no-token-positional-embeddings")
    return flags


def language_runs(settings: Settings, work: Path) -> Iterator[LanguageRun]:
    """Yield the trainings seed by seed, so that a complete table is available early."""
    for seed in settings.seeds:
        for language in settings.languages:
            for system in settings.systems:
                flags = ["--task", "regular_languages", "--language", language]
                flags += system_flags(system, settings) + MODEL.split() + TRAINING.split()
                flags += ["--cpu"] if settings.device == "cpu" else []
                flags += ["--seed", str(seed), *shlex.split(settings.options)]
                yield LanguageRun(work, language, system, seed, tuple(flags), settings.epochs)
