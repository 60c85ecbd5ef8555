"""Fixtures that every test may need: small models, a small corpus, fairseq's commands."""

import gc
import os
import random
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path

# One thread: tests that run side by side on two cores slow each other down otherwise.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HYDRA_FULL_ERROR", "1")
# Compiled code stays in the checkout: the home folder may not be writable.
os.environ.setdefault("XDG_CACHE_HOME", str(Path(__file__).resolve().parent.parent / ".cache"))

import fairseq.modules
import pytest
import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY, FairseqLanguageModel, build_model
from torch import Tensor, nn

from fairseq_recur.ops.precision import at_least_float32
from tests.configuring import composing_by_hydra, composing_directly, model_config
from tests.systems import (  # noqa: F401  (most of them are imported from here)
    BART_FLAGS,
    DECODER_VARIANTS,
    FAST_STRUCTURES,
    FAST_SYSTEMS,
    FORECASTERS,
    LANGUAGE_MODELS,
    MEMORY_KINDS,
    MEMORY_MODELS,
    OURS,
    PLAIN,
    PRESETS,
    REGISTERED,
    SEGMENTS,
    SMALL,
    STRUCTURES,
    SYSTEMS,
    TRANSFORMERS,
    preset_flags,
    stock_of,
    structure,
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give `preset` the structures, and `system` the systems, of the fast and of the slow run.

    The slow run has every structure with every set of its options. The fast run has some
    structures and a pairwise choice of systems; of a test marked "slow_options", all structures.
    """
    names, marked = metafunc.fixturenames, metafunc.definition.get_closest_marker
    if "transformer" in names:
        metafunc.parametrize("transformer", [
            fast_or_slow(p, p, p in FAST_STRUCTURES) for p in TRANSFORMERS
        ])  # fmt: skip
    if "preset" in names:
        fast = {"transformer_biarn"} if marked("slow_presets") else FAST_STRUCTURES
        metafunc.parametrize("preset", [fast_or_slow(p, p, p in fast) for p in STRUCTURES])
    if "system" in names:
        fast = {name: flags for name, flags in SYSTEMS.items() if name.endswith("-default")}
        if not marked("slow") and not marked("slow_options"):
            fast = FAST_SYSTEMS
        metafunc.parametrize("system", [
            fast_or_slow(flags, name, name in fast)
            for name, flags in {**fast, **SYSTEMS}.items()
        ])  # fmt: skip


def pytest_collection_finish() -> None:
    """Search for garbage less often, and not in what is imported: it takes seconds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


LONG = [
    "test_model_properties", "test_config", "test_commands", "test_ops", "test_presets_by_several",
    "test_g2p", "test_pipelines", "test_kills", "test_learning", "test_srformer", "test_triton",
    "test_plot_attention", "test_recipes_summarization", "test_pretrained", "test_fuzz_commands",
]  # fmt: skip
"""The longest files. They run first, so that neither process waits long for the other."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow tests an hour: a test that hangs, or fills the memory, must not stop the run."""
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(3600))


def fast_or_slow(value: object, name: str, fast: bool) -> object:
    """A parameter of a test, marked slow unless it is fast."""
    return pytest.param(value, id=name, marks=() if fast else pytest.mark.slow)


@pytest.fixture(autouse=True, scope="session")
def composed_directly() -> Iterator[None]:
    """Spare tests and fixtures the seconds that hydra takes."""
    with composing_directly():
        yield


@pytest.fixture(autouse=True)
def composed_by_hydra(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let tests marked "hydra" use it."""
    if request.node.get_closest_marker("hydra"):
        with composing_by_hydra():
            yield
    else:
        yield


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
    configure = cache(model_config)

    def make(arch: str, *flags: str) -> torch.nn.Module:
        decoder_only = issubclass(ARCH_MODEL_REGISTRY[arch], FairseqLanguageModel)
        name = "language_modeling" if decoder_only else "translation"
        return build_model(deepcopy(configure(name, arch, flags)), task)

    return make


def write_corpus(
    folder: Path, name: str, pairs: int, change: Callable[[list[str]], list[str]], seed: int
) -> None:
    """Lines of 2 to 8 of twenty words, and on the other side the changed lines."""
    rng = random.Random(seed)
    sources = [[f"w{rng.randrange(20)}" for _ in range(rng.randint(2, 8))] for _ in range(pairs)]
    (folder / f"{name}.src").write_text("".join(" ".join(s) + "\n" for s in sources))
    (folder / f"{name}.tgt").write_text("".join(" ".join(change(s)) + "\n" for s in sources))


@pytest.fixture(scope="session")
def cli() -> Callable[..., str]:
    """Run a fairseq command in this process: ``cli("train", data, "--arch", ...)``."""
    from tests.running import run_command

    return run_command


@pytest.fixture(scope="session")
def stock_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, cli: Callable[..., str], corpus: Path
) -> Path:
    """A checkpoint of fairseq's own transformer after one update. Copy it to change it."""
    folder = tmp_path_factory.mktemp("stock")
    cli("train", corpus / "bin", "--arch", "transformer", *SMALL, *TRAIN, "--max-update", 1,
        "--save-dir", folder)  # fmt: skip
    return folder / "checkpoint_last.pt"


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


@pytest.fixture
def fairseq_in_the_models_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """fairseq's softmax and GELU compute in float32 also in a float64 model.

    Their last bits depend on the padding, in a way that differs from processor to processor.
    """

    def softmax(x: Tensor, dim: int, onnx_trace: bool = False) -> Tensor:
        return at_least_float32(x).softmax(dim)

    def gelu(x: Tensor) -> Tensor:
        return nn.functional.gelu(at_least_float32(x)).type_as(x)

    monkeypatch.setattr(utils, "softmax", softmax)
    monkeypatch.setattr(fairseq.modules, "gelu", gelu)
