"""Language models and forecasters: two processes train the same model as one."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fairseq_recur.modules.stream_memory import is_memory
from tests.distributed.several import run_plan
from tests.running import USER_DIR, saved_weights
from tests.series import flags as series_flags
from tests.series import write_series
from tests.unit.test_language_model import SMALL_LM
from tests.unit.test_memory_model import SMALL_XL

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
MODELS: dict[str, tuple[list[str], int]] = {
    "rsa_transformer_lm": ([*SMALL_LM, *WITHOUT_DROPOUT, *SENTENCES], 7),
    "rsa_xl_lm_tiny": ([*SMALL_XL, *STREAMS], 2),
    "rsa_informer": (WITHOUT_DROPOUT, 7),
    "rsa_log_sparse": (WITHOUT_DROPOUT, 7),
    "rsa_xl_forecaster": (WITHOUT_DROPOUT, 5),
}
"""Their flags, and the size of each process's batch."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, corpus: Path, cli: Callable[..., str]) -> Path:
    """A text of sixteen lines in bin, and a series."""
    folder = tmp_path_factory.mktemp("others")
    lines = (corpus / "train.src").read_text().splitlines(keepends=True)[:16]
    (folder / "train").write_text("".join(lines))
    cli("preprocess", "--only-source", "--trainpref", folder / "train", "--destdir",
        folder / "bin")  # fmt: skip
    write_series(folder / "series.csv")
    return folder


def arguments(data: Path, model: str, folder: Path, *flags: object) -> list[str]:
    own, _ = MODELS[model]
    place = [str(data / "bin")] if "lm" in model else series_flags(data / "series.csv")
    words = [*place, "--user-dir", USER_DIR, "--arch", model, *DESCENT, *own]
    more = ["--max-update", UPDATES, "--save-dir", folder / model, *flags]
    return [*words, *map(str, more)]


@pytest.fixture(scope="module")
def two(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them, trained by two processes."""
    folder = tmp_path_factory.mktemp("two")
    plan = [arguments(data, m, folder, "--batch-size", each) for m, (_, each) in MODELS.items()]
    run_plan(2, plan, folder)
    return folder


@pytest.mark.parametrize("model", MODELS)
def test_two_processes(
    model: str, data: Path, two: Path, cli: Callable[..., str], tmp_path: Path
) -> None:
    """Two batches of one process; with a memory, which continues batches, one of both sizes."""
    each = MODELS[model][1]
    alone = ["--batch-size", 2 * each] if "xl" in model else ["--batch-size", each, *TWICE]
    cli("train", *arguments(data, model, tmp_path, *alone))
    one, found = (saved_weights(f / model / "checkpoint_last.pt") for f in (tmp_path, two))
    (earlier,) = (two / model).glob("checkpoint_*_1.pt")
    before = saved_weights(earlier)
    assert found.keys() == one.keys()
    for name, value in one.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-6, msg=name)
    weights = [name for name in one if not is_memory(name)]
    moved = [name for name in weights if (one[name] - before[name]).abs().max() > 1e-5]
    assert len(moved) > len(weights) / 2, "the updates must be larger than the tolerance"
