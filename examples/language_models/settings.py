"""What is trained: the settings from the environment, and the commands of each run."""

import math
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fairseq_recur.errors import refuse
from fairseq_recur.experiments.grid import CellRun
from fairseq_recur.experiments.schema import setting
from fairseq_recur.experiments.variables import as_variables, read_variables, without_effect
from fairseq_recur.files import read_json, write_json
from fairseq_recur.loading.states import read_state
from fairseq_recur.models.presets import RSA_BRT, RSA_XL

HERE = Path(__file__).resolve().parent

LEARNED = ["--arch", "xl_lm_tiny", "--decoder-self-attention-mixture"]
SYSTEMS = {
    "xl_lm": ["--arch", "xl_lm_tiny"],
    "rsa_xl_lm": ["--arch", "rsa_xl_lm_tiny"],
    "tl_xl_lm": [*LEARNED, "toeplitz"],
    "fl_xl_lm": [*LEARNED, "full_matrix"],
    "brt_lm": ["--arch", "brt_lm_tiny"],
    "rsa_brt_lm": ["--arch", "rsa_brt_lm_tiny"],
}
NAMES = " ".join(SYSTEMS)
BASELINES = {
    "rsa_xl_lm": "xl_lm",
    "tl_xl_lm": "xl_lm",
    "fl_xl_lm": "xl_lm",
    "rsa_brt_lm": "brt_lm",
}
"""The same model without the mixture."""
MATRICES = {"xl_lm": RSA_XL, "brt_lm": RSA_BRT}
"""By host, what table 7 of the paper says of each text."""
SIZES = {"characters": "_tiny", "words": "_wikitext103"}
"""The size whose dilations and initial gate fit the units; the small one has those for Text8."""

TASK = ["--task", "language_modeling_with_memory", "--num-workers", "0"]
# An epoch may be as short as a hundred updates, so validation goes by updates alone.
TRAINING = (
    "--criterion cross_entropy --optimizer adamw_fused --lr-scheduler cosine --clip-norm 0.25 "
    "--save-interval 1000000 --validate-interval 1000000 --keep-interval-updates 1 "
    "--no-epoch-checkpoints --log-format json --log-interval 100"
)
VALIDATIONS = 10
"""During a training; each saves a checkpoint."""
EVALUATION_STREAMS = 10
BEST = "checkpoint_best.pt"
ROW = "share"
"""Name of a row of the table, before its number."""

OWN_FLAGS = {
    "--task": "all systems have the same; leave it out",
    "--tokens-per-sample": "choose it with TOKENS",
    "--memory-length": "choose it with MEMORY",
    "--batch-size": "choose it with BATCH",
    "--max-sentences": "choose it with BATCH",
    "--learned-matrix-length": "it is MEMORY and TOKENS together; leave it out",
    "--save-interval-updates": "it follows from UPDATES; leave it out",
    "--validate-interval-updates": "it follows from UPDATES; leave it out",
    "--cpu": "choose it with DEVICE",
}
"""Flags that OPTIONS must not have, and why: the evaluation has the same settings."""

LOSS = re.compile(r"Loss \(base 2\): ([\d.]+), Perplexity: ([\d.]+)")
COUNTS = {
    "parameters": re.compile(r"num\. model params: ([\d,]+)"),
    "tokens": re.compile(r"Evaluated ([\d,]+) tokens"),
}
GATE = re.compile(r"decoder\.layers\.(\d+)\.self_attn\.mixture\.mu")


@dataclass
class Settings:
    """The environment variables, in capitals there; README.md explains them."""

    units: str = setting("words", choices=("words", "characters"))
    systems: list[str] = setting(list(SYSTEMS), f"some of: {NAMES}", choices=list(SYSTEMS))
    seeds: list[int] = setting([1, 2, 3], "whole numbers, at least 1", least=1)
    shares: list[int] = setting(
        [100, 80, 60, 40, 20], "whole numbers from 1 to 100", choices=range(1, 101)
    )
    share_systems: list[str] = setting(
        ["xl_lm", "rsa_xl_lm"], f"some of: {NAMES}", choices=list(SYSTEMS)
    )
    updates: int = setting(4000, least=1)
    lr: float = setting(0.001, "a number above 0", least=1e-12)
    warmup: float = setting(0.1, "a number from 0 to below 1", least=0)
    batch: int = setting(16, least=1)
    tokens: int = setting(64, least=2)
    memory: int = setting(64, least=1)
    eval_memory: int = setting(256, least=1)
    eval_clamp: int = setting(100, least=0)
    device: str = setting("cpu", choices=("cpu", "cuda"))
    options: str = setting("")
    jobs: int = setting(2, least=1)
    add: list[str] = setting([], "results.json files, with blanks between")

    def as_dict(self) -> dict[str, str]:
        """Return the variables that determine the results, and their values."""
        return as_variables(self, without=["jobs", "add"])

    def parts(self) -> set[int]:
        """Return the shares that are not the whole text."""
        return {*self.shares} - {100}


def read_settings() -> Settings:
    """Read the settings from the environment.

    Raises:
        ConfigError: lists all variables that are wrong
    """
    lists = ["systems", "seeds", "shares", "share_systems", "add"]
    settings = read_variables(Settings, lists, OWN_FLAGS)
    unread = {}
    if 100 not in settings.shares:
        unread["SYSTEMS"] = "without the whole text, 100 in SHARES: see SHARE_SYSTEMS"
    if not settings.parts():
        unread["SHARE_SYSTEMS"] = "without a part of the text in SHARES: see SYSTEMS"
    problems = without_effect(unread)
    if settings.warmup >= 1:
        problems.append(
            f"WARMUP={settings.warmup}: expected a number below 1, the part of UPDATES in which "
            "the learning rate rises"
        )
    refuse("variables that cannot be used", problems)
    return settings


@dataclass(frozen=True)
class TextRun(CellRun):
    """Trains a system on a share of the text, then evaluates it on the test set.

    Attributes:
        data: folder of the binary data
        updates: length of the training
        evaluation: flags of ``fairseq-recur eval-lm``
    """

    data: Path
    updates: int
    evaluation: tuple[str, ...]

    @property
    def share(self) -> str:
        """How much of the training text it reads, in %."""
        return self.row.removeprefix(ROW)

    @property
    def steps(self) -> Sequence[str]:
        """Names of the steps, in order."""
        return ["train", "evaluate"]

    def train_flags(self) -> dict[str, Any]:
        """Return the length of the training, and whether it is on the CPU."""
        return {"max-update": self.updates, "cpu": "--cpu" in self.flags}

    def argv(self, step: str) -> list[str]:
        """Return the arguments of a step's command."""
        if step == "evaluate":
            return ["eval-lm", str(self.data), "--path", str(self.best), *self.evaluation]
        files = ["--save-dir", str(self.folder), "--log-file", str(self.folder / "train.log")]
        return ["train", str(self.data), *self.flags, *files]

    def key(self, step: str) -> list[str]:
        """Return the arguments, but for the folders."""
        return [word for word in self.argv(step) if str(self.work) not in word]

    @property
    def best(self) -> Path:
        """The checkpoint with the lowest loss on the validation set."""
        return self.folder / BEST

    @property
    def file(self) -> Path:
        """The file of the result."""
        return self.folder / "result.json"

    def done(self, step: str) -> bool:
        """Return whether a step was done with its present settings, and has its result."""
        return super().done(step) and (step == "train" or self.file.is_file())

    def complete(self, step: str) -> None:
        """Store the result, and remove the checkpoints that it does not need.

        Without a finite loss there is no result, and so the step has failed.
        """
        if step != "evaluate":
            return
        self.file.unlink(missing_ok=True)
        log = (self.folder / "evaluate.out").read_text(encoding="utf-8", errors="replace")
        found = LOSS.search(log)
        if found is None:
            return
        weights = read_state(self.best)["model"]
        gates = {
            str(int(match[1]) + 1): float(torch.sigmoid(weight.float()))
            for name, weight in weights.items()
            if (match := GATE.fullmatch(name))
        }
        counts = {
            name: int(pattern.findall(log)[-1].replace(",", "")) for name, pattern in COUNTS.items()
        }
        loss, perplexity = map(float, found.groups())
        write_json(self.file, {"bpc": loss, "perplexity": perplexity, **counts, "gates": gates})
        for path in self.folder.glob("checkpoint*.pt"):
            if path != self.best:
                path.unlink()

    def result(self) -> dict[str, Any]:
        """Return what came out, with the time and the commit of the training.

        The loss to the base 2 is called ``bpc``; ``gates`` are by the layer's number, from 1 on.
        """
        state = self.state()["train"]
        found: dict[str, Any] = read_json(self.file)
        return {**found, "seconds": round(state["seconds"]), "commit": state["commit"]}


def train_flags(system: str, seed: int, settings: Settings) -> list[str]:
    """Return the flags of a training."""
    flags = [*TASK, *SYSTEMS[system], *TRAINING.split(), "--seed", str(seed)]
    flags += mixture_flags(system, settings)
    every = str(math.ceil(settings.updates / VALIDATIONS))
    given = {
        "tokens-per-sample": settings.tokens, "memory-length": settings.memory,
        "batch-size": settings.batch, "lr": settings.lr, "max-update": settings.updates,
        "save-interval-updates": every, "validate-interval-updates": every,
    }  # fmt: skip
    flags += [word for name, value in given.items() for word in (f"--{name}", str(value))]
    flags += ["--cpu"] if settings.device == "cpu" else []
    # The rate falls over the updates after the warm-up, which must not be none.
    warmup = min(round(settings.warmup * settings.updates), settings.updates - 1)
    flags += ["--warmup-updates", str(warmup)]
    return [*flags, *shlex.split(settings.options)]


def mixture_flags(system: str, settings: Settings) -> list[str]:
    """Return the flags of a system's matrices, which depend on the units as in the paper."""
    host = BASELINES.get(system)
    if host is None:
        return []
    _, dilations, mu = MATRICES[host][SIZES[settings.units]]
    gate = f"--rsa-gate-init={mu}"
    if system in ("tl_xl_lm", "fl_xl_lm"):
        return [gate, "--learned-matrix-length", str(settings.tokens + settings.memory)]
    of_two_heads = ",".join(dilations.split(",")[:2])
    return [gate, "--rsa-dilations", of_two_heads]


def evaluation_flags(system: str, settings: Settings) -> list[str]:
    """Return the flags of the evaluation: with a longer memory of the same length for each word.

    FL-XL's matrix belongs to positions, so it has the memory of its training.
    """
    flags = [
        *TASK, "--gen-subset", "test", "--tokens-per-sample", str(settings.tokens),
        "--batch-size", str(EVALUATION_STREAMS),
    ]  # fmt: skip
    if system != "fl_xl_lm":
        longer = {
            "memory_length": settings.eval_memory,
            "memory_same_length": True,
            "xl_clamp_length": settings.eval_clamp,
        }
        flags += ["--model-overrides", str(longer)]
    return [*flags, *(["--cpu"] if settings.device == "cpu" else [])]


def text_runs(settings: Settings, work: Path) -> Iterator[TextRun]:
    """Yield the runs seed by seed and from the whole text on: a table is complete early."""
    compared = settings.share_systems if settings.parts() else ()
    for seed in dict.fromkeys(settings.seeds):
        for share in sorted(set(settings.shares), reverse=True):
            wanted = {*compared, *(settings.systems if share == 100 else ())}
            for system in (name for name in SYSTEMS if name in wanted):
                yield TextRun(
                    work, f"{ROW}{share}", system, seed,
                    tuple(train_flags(system, seed, settings)), work / f"data/{ROW}{share}",
                    settings.updates, tuple(evaluation_flags(system, settings)),
                )  # fmt: skip
