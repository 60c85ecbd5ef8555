"""Language models and forecasters: two processes train the same model as one."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fairseq.models import ARCH_MODEL_REGISTRY

from tests.conftest import FORECASTERS, LANGUAGE_MODELS, fast_or_slow
from tests.distributed.several import run_plan
from tests.distributed.test_presets_by_several import assert_close, assert_moved, enlarge
from tests.running import USER_DIR, saved_weights
from tests.series import flags as series_flags
from tests.series import write_series
from tests.unit.test_language_model import SMALL_LM
from tests.unit.test_memory_model import MEMORY_STRUCTURES, is_adaptive, shrunk, small

Cli = Callable[..., str]
UPDATES = 4

# Plain gradient descent, as in test_presets_by_several.py. Sixteen sentences in batches of 7, 7
# and 2: one process has no batch in the second update.
DESCENT = (
    "--optimizer sgd --lr 0.05 --lr-scheduler fixed --disable-validation --no-epoch-checkpoints "
    "--save-interval-updates 1 --dropout 0 --cpu --seed 1 --num-workers 0 --log-format simple "
    "--required-batch-size-multiple 1"
).split()
WITHOUT_DROPOUT = ["--attention-dropout", "0", "--activation-dropout", "0"]
SENTENCES = "--task language_modeling --sample-break-mode eos --criterion cross_entropy".split()
TWICE = ["--update-freq", 2]
STREAMS = "--task language_modeling_with_memory --criterion cross_entropy --lr 0.1".split()
BANDS = (
    "--criterion adaptive_loss --ddp-backend legacy_ddp "
    "--adaptive-input-cutoff 10,17 --adaptive-softmax-cutoff 10,17"
).split()
"""For an adaptive softmax, whose bands all have some of the twenty words."""


def flags_of(model: str) -> list[str]:
    """The flags of a model that is not an encoder-decoder."""
    if model in FORECASTERS:
        return WITHOUT_DROPOUT
    if model in LANGUAGE_MODELS:
        return [*SMALL_LM, *WITHOUT_DROPOUT, *SENTENCES]
    return [*small(model), *shrunk(model), *STREAMS, *(BANDS if is_adaptive(model) else [])]


def remembers(model: str) -> bool:
    """Whether a batch reads a memory of the one before."""
    config = ARCH_MODEL_REGISTRY[model].config_class()
    side = "encoder" if model in FORECASTERS else "decoder"
    return bool(getattr(config, f"{side}_memory") != "none")


def batch_of(model: str) -> int:
    """Sentences, streams or windows of each process.

    Two streams are all that the text has for two segments. A memory of windows needs two batches
    shorter than a window.
    """
    return {(False, False): 7, (False, True): 7, (True, False): 2, (True, True): 5}[
        remembers(model), model in FORECASTERS
    ]


MODELS: list[str] = [*LANGUAGE_MODELS, *MEMORY_STRUCTURES, *FORECASTERS]
"""Every preset that is not an encoder-decoder, one of those that make the same small model."""

FAST = ["rsa_transformer_lm", "rsa_xl_lm", "rsa_informer", "rsa_log_sparse", "rsa_xl_forecaster"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, corpus: Path, cli: Cli) -> Path:
    """A text of sixteen lines in bin, and a series."""
    folder = tmp_path_factory.mktemp("others")
    lines = (corpus / "train.src").read_text().splitlines(keepends=True)[:16]
    (folder / "train").write_text("".join(lines))
    cli("preprocess", "--only-source", "--trainpref", folder / "train", "--validpref",
        folder / "train", "--destdir", folder / "bin")  # fmt: skip
    write_series(folder / "series.csv")
    return folder


def arguments(data: Path, model: str, folder: Path, *flags: object) -> list[str]:
    series = model in FORECASTERS
    place = series_flags(data / "series.csv") if series else [str(data / "bin")]
    words = [*place, "--user-dir", USER_DIR, "--arch", model, *DESCENT, *flags_of(model)]
    more = ["--save-dir", folder / model, *flags]
    return [*words, *map(str, more)]


@pytest.fixture(scope="module")
def start(data: Path, cli: Cli) -> Callable[[str], list[object]]:
    """The flags with which a model begins: those with a memory at larger weights."""

    def flags(model: str) -> list[object]:
        updates = ["--max-update", UPDATES]
        if model not in MEMORY_STRUCTURES:
            return updates
        checkpoint = data / "first" / model / "checkpoint_last.pt"
        if not checkpoint.exists():
            one = ["--max-update", 1, "--batch-size", 1]
            cli("train", *arguments(data, model, data / "first", *one))
            enlarge(checkpoint)
        return [*updates, "--finetune-from-model", checkpoint]

    return flags


def train_by_two(
    models: list[str], data: Path, start: Callable[[str], list[object]], folder: Path
) -> Path:
    """Train each model in two processes."""
    plan = [
        arguments(data, model, folder, "--batch-size", batch_of(model), *start(model))
        for model in models
    ]
    run_plan(2, plan, folder)
    return folder


@pytest.fixture(scope="module")
def two(
    data: Path, start: Callable[[str], list[object]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The models of the fast tests, trained by two processes."""
    return train_by_two(FAST, data, start, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def others(
    data: Path, start: Callable[[str], list[object]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The other models."""
    models = [model for model in MODELS if model not in FAST]
    return train_by_two(models, data, start, tmp_path_factory.mktemp("others_by_two"))


@pytest.mark.parametrize("model", [fast_or_slow(m, m, m in FAST) for m in MODELS])
def test_two_processes(
    model: str, data: Path, start: Callable[[str], list[object]], cli: Cli, tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    """Two batches of one process; with a memory, which continues batches, one of both sizes."""
    several = request.getfixturevalue("two" if model in FAST else "others")
    each = batch_of(model)
    alone = ["--batch-size", 2 * each] if remembers(model) else ["--batch-size", each, *TWICE]
    cli("train", *arguments(data, model, tmp_path, *alone, *start(model)))
    one, found = (saved_weights(f / model / "checkpoint_last.pt") for f in (tmp_path, several))
    (earlier,) = (several / model).glob("checkpoint_*_1.pt")
    assert_close(found, one)
    assert_moved(one, saved_weights(earlier), 1e-5)
