"""What is trained: the settings from the environment, and the command of each training."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, log
from pathlib import Path

from samples import PERIOD, held_out, possible

from fairseq_recur.errors import refuse
from fairseq_recur.experiments.grid import GridRun
from fairseq_recur.experiments.progress import training_log
from fairseq_recur.experiments.schema import setting
from fairseq_recur.experiments.variables import as_variables, read_variables, without_effect

HERE = Path(__file__).resolve().parent

SYSTEMS = "brt_lm rsa_brt_lm tlb_lm rsa_tlb_lm"
# Appendix E.4 of the paper: layers, heads, batch, and the halving of the learning rate.
HEADS, BATCH, HALVED_EVERY = 8, 16, 5
MODEL = f"--decoder-layers 4 --decoder-attention-heads {HEADS} --dropout 0 --activation-dropout 0"
# As in Didolkar et al. 2022: a state belongs to one sample, so it needs no norm.
LATENT = ["--latent-state-norm", "none", "--latent-chunk"]
OF_BATCH = ("--batch-size", "--max-sentences", "--max-tokens", "--update-freq")
OWN_FLAGS = {
    "--tokens-per-sample": "it is the length of a sample; choose it with LENGTHS",
    "--criterion": "choose it with FORM",
    "--decoder-embed-dim": "choose it with WIDTH",
    "--decoder-input-dim": "choose it with WIDTH",
    "--decoder-output-dim": "choose it with WIDTH",
    "--decoder-ffn-embed-dim": "choose it with WIDTH",
    "--recurrent-block": "choose it with CHUNK",
    "--latent-chunk": "choose it with CHUNK",
    "--rsa-dilations": "choose it with DILATIONS",
    "--rsa-gate-init": "choose it with GATE",
}
"""Flags that OPTIONS must not have, and why: the record has what the variables say."""

WITHOUT_RSA = "without a system in SYSTEMS that has RSA's matrices"
COUNTED = f"UPDATES are counted in batches of {BATCH} samples; leave it out"
# The symbols before the first copy cannot be predicted: no loss, and no accuracy.
CRITERION = {
    "tile": "--criterion label_smoothed_cross_entropy --label-smoothing 0 --report-accuracy "
    f"--ignore-prefix-size {PERIOD}",
    "duplicate": "--criterion copied_cross_entropy",
}
TRAINING = (
    "--task language_modeling {criterion} --optimizer adamw_fused "
    f"--lr-scheduler fixed --batch-size {BATCH} --required-batch-size-multiple 1 "
    "--num-workers 0 --no-epoch-checkpoints --log-format json --log-interval 50"
)


@dataclass
class Settings:
    """The environment variables, in capitals there; README.md explains them."""

    form: str = setting("tile", choices=list(CRITERION))
    lengths: list[int] = setting(
        [128, 256, 384, 512], f"whole numbers, at least {PERIOD + 1}", least=PERIOD + 1
    )
    samples: list[int] = setting([6400, 12800], "whole numbers, at least 1", least=1)
    systems: list[str] = setting(SYSTEMS.split(), f"some of: {SYSTEMS}", choices=SYSTEMS.split())
    seeds: list[int] = setting([1], "whole numbers, at least 1", least=1)
    updates: int = setting(9000, least=1)
    width: int = setting(128, least=HEADS)
    chunk: int = setting(32, least=1)
    rate: float = setting(1e-4, "a number above 0", least=1e-12)
    dilations: str = setting("5,5,10,10")
    gate: str = setting("-1")
    device: str = setting("cpu", choices=("cpu", "cuda"))
    options: str = setting("")
    jobs: int = setting(2, least=1)

    def as_dict(self) -> dict[str, str]:
        """Return the variables that determine the results, and their values."""
        return as_variables(self, without=["jobs"])


def read_settings() -> Settings:
    """Read the settings from the environment.

    Raises:
        ConfigError: lists all variables that are wrong
    """
    lists = ["lengths", "samples", "systems", "seeds"]
    refused = dict.fromkeys(OF_BATCH, COUNTED)
    settings = read_variables(Settings, lists, {**refused, **OWN_FLAGS})
    problems = []
    if settings.width % HEADS:
        problems.append(f"WIDTH={settings.width}: expected a multiple of {HEADS}, for the heads")
    if settings.chunk >= min(settings.lengths):
        problems.append(
            f"CHUNK={settings.chunk}: expected less than the shortest of LENGTHS, "
            f"{min(settings.lengths)}, or a sample has no state to carry"
        )
    drawn = max(samples + held_out(samples) for samples in settings.samples)
    # Drawing again what is there already takes long where little is left.
    short = [n for n in settings.lengths if 2 * drawn > possible(settings.form, n)]
    if short:
        problems.append(
            f"FORM={settings.form} with LENGTHS={' '.join(map(str, short))} has too few different "
            f"samples for SAMPLES={max(settings.samples)}; give fewer, or a larger length"
        )
    if not any("rsa" in system for system in settings.systems):
        problems += without_effect(dict.fromkeys(("DILATIONS", "GATE"), WITHOUT_RSA))
    refuse("variables that cannot be used", problems)
    return settings


@dataclass(frozen=True)
class CopyRun(GridRun):
    """The training of a system; a longer one continues a shorter one.

    Attributes:
        form: "tile" or "duplicate", as in `samples`
        length: tokens of a sample
        samples: of the training set
        rate: the learning rate of the first epochs
    """

    form: str
    length: int
    samples: int
    rate: float

    @property
    def data(self) -> Path:
        """Folder of the samples."""
        return self.work / "data" / self.row

    def learning_rate(self, epoch: int) -> float:
        """Return the rate of an epoch."""
        return self.rate * 0.5 ** (epoch // HALVED_EVERY)

    def argv(self, step: str) -> list[str]:
        """Return the arguments of ``fairseq-recur train``."""
        command, *words = super().argv(step)
        return [command, str(self.data), *words]

    def key(self, step: str) -> list[str]:
        """Return what determines the training but for its length."""
        return [*self.flags, str(self.rate)]

    def done(self, step: str) -> bool:
        """Return whether the training has ended with these flags after enough epochs."""
        return super().done(step) and len(self.accuracies()) >= self.epochs

    def accuracies(self) -> list[tuple[int, float]]:
        """Return (updates, share of the copied symbols) after each epoch, at most `epochs`."""
        points = training_log(self).curve("valid_accuracy")[: self.epochs]
        return [(updates, percent / 100) for updates, percent in points]

    def losses(self, updates: int) -> list[tuple[int, float]]:
        """Return (updates, nats for each copied symbol) in training, up to some updates.

        The log has bits. In `tile`, fairseq's criterion has divided them by all symbols of the
        batch, also by those without a loss.
        """
        divided = self.length / (self.length - PERIOD) if self.form == "tile" else 1
        scale = log(2) * divided
        points = training_log(self).curve("train_loss")
        return [(at, scale * bits) for at, bits in points if at <= updates]


def copy_runs(settings: Settings, work: Path) -> Iterator[CopyRun]:
    """Yield the trainings seed by seed, the shortest samples first."""
    width = str(settings.width)
    sizes = [word for n in ("embed", "input", "output") for word in (f"--decoder-{n}-dim", width)]
    sizes += ["--decoder-ffn-embed-dim", str(4 * settings.width)]
    matrices = ["--rsa-dilations", settings.dilations, f"--rsa-gate-init={settings.gate}"]
    training = TRAINING.format(criterion=CRITERION[settings.form])
    device = ["--cpu"] if settings.device == "cpu" else []
    for seed in settings.seeds:
        for length in sorted(settings.lengths):
            for samples in settings.samples:
                for system in settings.systems:
                    flags = ["--arch", system, *MODEL.split(), *sizes]
                    flags += LATENT if "tlb" in system else ["--recurrent-block"]
                    flags += [str(settings.chunk), *(matrices if "rsa" in system else [])]
                    flags += [*training.split(), "--tokens-per-sample", str(length)]
                    flags += [*device, "--seed", str(seed), *shlex.split(settings.options)]
                    epochs = ceil(settings.updates / ceil(samples / BATCH))
                    row = f"length{length}_samples{samples}"
                    if settings.form != "tile":
                        row = f"{settings.form}_{row}"
                    yield CopyRun(
                        work, row, system, seed, tuple(flags), epochs, settings.form, length,
                        samples, settings.rate,
                    )  # fmt: skip
