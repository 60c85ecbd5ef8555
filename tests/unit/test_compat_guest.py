"""With the plug-in imported, stock fairseq behaves as without it."""

from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from fairseq import checkpoint_utils, options, utils
from fairseq.data.codedataset import parse_manifest
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY, build_model
from fairseq.tasks.multilingual_translation import MultilingualTranslationTask
from fairseq.tasks.semisupervised_translation import SemisupervisedTranslationTask
from fairseq.tasks.sentence_prediction import SentencePredictionTask
from omegaconf import OmegaConf

from fairseq_recur.errors import ConfigError
from tests.conftest import SMALL
from tests.fuzzing import words_of_the_tests


@pytest.mark.parametrize(
    "value, expected",
    [(True, False), (False, False), (None, False), (1, False), ("True", True), ("0", False)],
)
def test_eval_bool_of_values_that_are_not_text(value: Any, expected: bool) -> None:
    assert utils.eval_bool(value) is expected
    assert utils.eval_bool(3.5, default="kept") == "kept"


@pytest.mark.parametrize("entries", [3, 2_001, 30_000])
def test_lines_of_data_have_any_length(tmp_path: Path, entries: int) -> None:
    words = SimpleNamespace(encode_line=lambda line, _: torch.zeros(len(line.split())))
    manifest = tmp_path / "manifest"
    manifest.write_text(f"{ {'audio': 'a.wav', 'cpc_km100': '7 ' * entries, 'speaker': 'me'} }\n")
    files, _, durations, speakers = parse_manifest(manifest, words)
    assert (files, speakers) == (["a.wav"], ["me"])
    assert durations[0][0] == torch.tensor(entries).short()


def test_lines_of_data_run_no_code(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest"
    manifest.write_text(f"open({str(tmp_path / 'trace')!r}, 'w')\n")
    with pytest.raises(ConfigError, match="Nothing in it was executed"):
        parse_manifest(manifest, None)
    assert not (tmp_path / "trace").exists()


OLD_TASK = "data --task translation_multi_simple_epoch --lang-pairs a-b --langs a,b "
OLD_TASK += "--arch transformer_biarn_tiny"


@pytest.mark.parametrize(
    "given, source, target",
    [("", 1024, 1024), ("--max-source-positions 70 --max-target-positions 90", 70, 90)],
)
@pytest.mark.parametrize("arch", ["transformer_biarn_tiny", "rsa_transformer_lm"])
def test_a_task_with_options_of_the_old_kind(
    arch: str, given: str, source: int, target: int
) -> None:
    """Its options are in no configuration, to which a model's ${task...} could refer."""
    args = options.parse_args_and_arch(
        options.get_training_parser(), [*OLD_TASK.split(), *given.split()]
    )
    before = dict(vars(args))
    cfg = convert_namespace_to_omegaconf(args)
    assert vars(args) == before
    for group in (cfg.model, cfg.task):
        assert (group.max_source_positions, group.max_target_positions) == (source, target)


@pytest.mark.parametrize("kind", [MultilingualTranslationTask, SemisupervisedTranslationTask])
def test_a_task_for_several_pairs_is_refused(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one error that says what to do. The stock model gets fairseq's own."""
    words = words_of_the_tests()
    for name in ("source_dictionary", "target_dictionary"):
        monkeypatch.setattr(kind, name, words)
    task = {
        MultilingualTranslationTask: "multilingual_translation",
        SemisupervisedTranslationTask: "semisupervised_translation",
    }[kind]
    refusals = {
        "transformer": f"^{kind.__name__} requires a FairseqMultiModel arch",
        "transformer_biarn_tiny": f"--task {task} needs a model for several pairs .*, found "
        "transformer_biarn_tiny; choose such a model, or another task: translation_multi_simple_e",
    }
    for arch, said in refusals.items():
        flags = ["data", "--task", task, "--arch", arch, "--lang-pairs", "a-b", *SMALL]
        cfg = convert_namespace_to_omegaconf(
            options.parse_args_and_arch(options.get_training_parser(), flags)
        )
        cfg.task.lang_pairs = ["a-b"]  # as the task's own preparation does
        made = kind(cfg.task, {"a": words, "b": words}, training=True)
        with pytest.raises(ValueError, match=said):
            made.build_model(cfg.model)


def test_a_model_without_classes_is_refused() -> None:
    made = SentencePredictionTask(SimpleNamespace(), words_of_the_tests(), None)
    cfg = OmegaConf.create({"_name": "srformer_bart_base"})
    with pytest.raises(ConfigError, match="a model that classifies, .*, found srformer_bart_base;"):
        made.build_model(cfg)


SIZES = {"encoder_layers": 1, "decoder_layers": 1, "encoder_embed_dim": 16}


@pytest.mark.parametrize("form", ["namespace", "dataclass", "build_model of the class"])
def test_models_are_built_without_hydra(form: str) -> None:
    """As fairseq's own tests build them; the references between options are resolved."""
    words = words_of_the_tests()
    task = SimpleNamespace(
        source_dictionary=words, target_dictionary=words, args=Namespace(max_source_positions=50)
    )
    arch = "transformer_biarn_tiny"
    kind = ARCH_MODEL_REGISTRY[arch]
    cfg = Namespace(arch=arch, **SIZES)
    if form != "namespace":
        cfg = kind.config_class.from_namespace(cfg)
        cfg._name = arch
    model = (
        build_model(cfg, task)
        if form != "build_model of the class"
        else kind.build_model(cfg, task)
    )
    assert len(model.encoder.layers) == len(model.decoder.layers) == 1
    assert model.decoder.embed_tokens.weight.shape[1] == 16
    assert model.max_positions() == (50, 1024)


def test_a_language_model_is_built_without_hydra() -> None:
    words = words_of_the_tests()
    task = SimpleNamespace(
        source_dictionary=words,
        target_dictionary=words,
        args=Namespace(),
    )
    cfg = Namespace(arch="rsa_transformer_lm", decoder_layers=1, decoder_embed_dim=16)
    assert build_model(cfg, task).max_positions() == 1024


def test_a_reference_that_nothing_resolves() -> None:
    words = words_of_the_tests()
    task = SimpleNamespace(source_dictionary=words, target_dictionary=words)
    cfg = Namespace(arch="transformer_biarn_tiny", decoder_layers="${task.nothing}")
    with pytest.raises(ConfigError, match="cannot be resolved"):
        build_model(cfg, task)


@pytest.mark.parametrize(
    "optimization", [SimpleNamespace(), SimpleNamespace(max_update=None), MagicMock()]
)
def test_a_trainer_without_max_update(
    optimization: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fairseq's own tests give load_checkpoint a mock."""
    trainer = MagicMock()
    trainer.cfg.optimization = optimization
    trainer.load_checkpoint.return_value = None
    cfg = convert_namespace_to_omegaconf(
        options.parse_args_and_arch(
            options.get_training_parser(),
            ["data", "--arch", "transformer", "--save-dir", str(tmp_path)],
        )
    ).checkpoint
    assert checkpoint_utils.load_checkpoint(cfg, trainer)[0] is None
