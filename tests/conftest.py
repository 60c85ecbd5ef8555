"""What every test may need: the presets, small models, a small corpus, fairseq's commands."""

import os
import random
from argparse import Namespace
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Callable, Dict, List, Sequence

# One thread: tests that run side by side on two cores slow each other down otherwise.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HYDRA_FULL_ERROR", "1")

import pytest
import torch
from fairseq import options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY, build_model
from omegaconf import DictConfig

import fairseq_recur  # noqa: F401  (registers the presets)

PRESETS: List[str] = sorted(
    name
    for name, model in ARCH_MODEL_REGISTRY.items()
    if model.__module__.split(".")[0] == "fairseq_recur"
)
"""Every architecture that the plug-in registers: a new one cannot escape the tests."""

SMALL: List[str] = (
    "--encoder-embed-dim 16 --encoder-ffn-embed-dim 24 --encoder-layers 2 --decoder-layers 2 "
    "--encoder-attention-heads 2 --decoder-attention-heads 2"
).split()
"""Flags that make any preset small and leave its structure."""

VARIANTS: Dict[str, List[str]] = {
    "default": [],
    "all-layers": ["--recurrence-fused-layers", "all"],
    "gated-sum": ["--recurrence-fusion", "gated_sum"],
    "gated-sum-all-scalar": (
        "--recurrence-fusion gated_sum --recurrence-fused-layers all --recurrence-gate scalar"
    ).split(),
    "deep-positions": "--recurrence-layers 3 --recurrence-positions --recurrence-steps 5".split(),
    "multihead": ["--recurrence-attention", "multihead"],
    "birnn": ["--recurrence", "birnn"],
    "birnn-deep-gated": (
        "--recurrence birnn --recurrence-layers 2 --recurrence-fusion gated_sum"
    ).split(),
    "pre-norm": "--encoder-normalize-before --decoder-normalize-before".split(),
    "birnn-pre-norm-deep": (
        "--recurrence birnn --recurrence-layers 2 --encoder-normalize-before "
        "--decoder-normalize-before"
    ).split(),
    "no-recurrence": ["--recurrence", "none"],
}
"""The options of the recurrence encoder, each value at least once."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`preset` takes every preset; `variant` every set of options of the recurrence encoder."""
    if "preset" in metafunc.fixturenames:
        metafunc.parametrize("preset", PRESETS)
    if "variant" in metafunc.fixturenames:
        metafunc.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(1)
    random.seed(1)


@pytest.fixture(scope="session")
def dictionary() -> Dictionary:
    """A dictionary of 60 words."""
    words = Dictionary()
    for i in range(60):
        words.add_symbol(f"w{i}")
    return words


@pytest.fixture(scope="session")
def make_model(dictionary: Dictionary) -> Callable[..., torch.nn.Module]:
    """Build an architecture from flags: ``make_model("transformer_biarn", "--dropout", "0")``."""
    task = Namespace(source_dictionary=dictionary, target_dictionary=dictionary)

    @cache
    def configure(arch: str, *flags: str) -> DictConfig:
        parser = options.get_training_parser("translation")
        args = options.parse_args_and_arch(parser, ["data", "--arch", arch, *flags])
        return convert_namespace_to_omegaconf(args)

    def make(arch: str, *flags: str) -> torch.nn.Module:
        return build_model(deepcopy(configure(arch, *flags)).model, task)

    return make


def write_corpus(
    folder: Path, name: str, pairs: int, change: Callable[[List[str]], List[str]], seed: int
) -> None:
    """Lines of 2 to 8 of twenty words, and on the other side the changed lines."""
    rng = random.Random(seed)
    sources = [
        [f"w{rng.randrange(20)}" for _ in range(rng.randint(2, 8))] for _ in range(pairs)
    ]
    (folder / f"{name}.src").write_text("".join(" ".join(s) + "\n" for s in sources))
    (folder / f"{name}.tgt").write_text("".join(" ".join(change(s)) + "\n" for s in sources))


@pytest.fixture(scope="session")
def cli() -> Callable[..., str]:
    """Run a fairseq command in this process: ``cli("train", data, "--arch", ...)``."""
    from tests.running import run_command

    return run_command


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory, cli: Callable[..., str]) -> Path:
    """A preprocessed corpus whose target is its source reversed: (folder)/bin, (folder)/*.src."""
    folder = tmp_path_factory.mktemp("corpus")
    for name, pairs, seed in (("train", 200, 1), ("valid", 20, 2), ("test", 20, 3)):
        write_corpus(folder, name, pairs, lambda words: words[::-1], seed)
    cli(
        "preprocess", "--source-lang", "src", "--target-lang", "tgt", "--joined-dictionary",
        "--trainpref", folder / "train", "--validpref", folder / "valid",
        "--testpref", folder / "test", "--destdir", folder / "bin",
    )  # fmt: skip
    return folder


TRAIN: Sequence[str] = (
    "--optimizer adam --lr 0.002 --lr-scheduler inverse_sqrt --warmup-updates 10 --criterion "
    "label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens 400 --cpu --seed 1 "
    "--log-format simple --log-interval 1 --num-workers 0"
).split()
"""Flags of a short training."""
