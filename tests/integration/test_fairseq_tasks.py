"""fairseq's own tasks train every structure, or refuse it clearly."""

import shutil
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from fairseq_recur.integration import build_backtranslation_model
from tests.conftest import LANGUAGE_MODELS, SMALL, TRAIN, preset_flags
from tests.running import generate, hypotheses
from tests.unit.test_language_model import SMALL_LM

PAIR = ["--lang-pairs", "src-tgt", "--langs", "src,tgt"]
SIDES = ["--source-lang", "src", "--target-lang", "tgt"]
TASKS: dict[str, list[str]] = {
    "translation_multi_simple_epoch": [*PAIR, "--encoder-langtok", "src", "--decoder-langtok"],
    "translation_from_pretrained_bart": [*SIDES, "--langs", "src,tgt"],
    "denoising": ["--tokens-per-sample", "20", "--mask", "0.3"],
    "multilingual_denoising": ["--tokens-per-sample", "20", "--mask", "0.3"],
    "span_masked_lm": ["--tokens-per-sample", "20"],
}
"""The tasks for an encoder-decoder, with their flags. Online back-translation is trained by
fairseq's own test (scripts/upstream_tests.sh)."""

LM_TASKS = {
    "language_modeling": [],
    # With fairseq's default of 1 its sampling fails for every model.
    "multilingual_language_modeling": ["--multilang-sampling-alpha", "0.7"],
}


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory, cli: Callable[..., str], corpus: Path) -> Path:
    """The corpus's source, and a multilingual corpus: the same, and a smaller one."""
    folder = tmp_path_factory.mktemp("text")
    splits = ("train", "valid")
    pieces = [f"--{split}pref={corpus / f'{split}.src'}" for split in splits]
    cli("preprocess", "--only-source", *pieces, "--destdir", folder)
    small = [f"--{split}pref={corpus / 'valid.src'}" for split in splits]
    words = ["--srcdict", folder / "dict.txt", "--destdir", folder / "small"]
    shutil.copytree(folder, folder / "src")
    cli("preprocess", "--only-source", *small, *words)
    return folder


@pytest.mark.slow_presets
@pytest.mark.parametrize("task", TASKS)
def test_an_encoder_decoder_is_trained(
    preset: str, task: str, corpus: Path, text: Path, cli: Callable[..., str], tmp_path: Path
) -> None:
    data = corpus / "bin" if "translation" in task else text
    output = cli(
        "train", data, "--task", task, *TASKS[task], "--arch", preset, *SMALL, *TRAIN,
        *preset_flags(preset), "--max-update", 2, "--save-dir", tmp_path,
    )  # fmt: skip
    assert "num_updates 2" in output and "valid on 'valid' subset" in output
    if "simple" in task:
        found = generate(
            data, tmp_path / "checkpoint_last.pt", "--task", task, *TASKS[task], *SIDES,
            "--gen-subset", "test",
        )  # fmt: skip
        assert len(hypotheses(found)) == 20


@pytest.mark.slow
@pytest.mark.parametrize("task", LM_TASKS)
@pytest.mark.parametrize("arch", LANGUAGE_MODELS)
def test_a_language_model_is_trained(
    arch: str, task: str, text: Path, cli: Callable[..., str], tmp_path: Path
) -> None:
    output = cli(
        "train", text, "--task", task, *LM_TASKS[task], "--arch", arch, *SMALL_LM, *TRAIN,
        "--max-update", 2, "--tokens-per-sample", 20, "--save-dir", tmp_path,
    )  # fmt: skip
    assert "num_updates 2" in output


@pytest.mark.slow_presets
def test_a_task_for_other_models_is_refused(
    preset: str, corpus: Path, cli: Callable[..., str], tmp_path: Path
) -> None:
    """By an error that names what the task needs."""
    with pytest.raises(Exception, match="translation_lev needs a non-autoregressive model"):
        cli(
            "train", corpus / "bin", "--task", "translation_lev", "--arch", preset, *SMALL, *TRAIN,
            "--criterion", "nat_loss", "--max-update", 1, "--save-dir", tmp_path,
        )  # fmt: skip


@pytest.mark.parametrize("given, limits", [({}, (5, 6)), ({"max_target_positions": 7}, (5, 7))])
def test_back_translation_gets_the_models_limits(
    given: dict[str, int], limits: tuple[int, int]
) -> None:
    """The task reads them from its options, which a model of dataclasses does not fill."""
    task = SimpleNamespace(args=Namespace(**given))
    model = SimpleNamespace(max_positions=lambda: (5, 6))
    assert build_backtranslation_model(lambda task: model, task) is model
    assert (task.args.max_source_positions, task.args.max_target_positions) == limits
