"""A criterion or an architecture for another kind of task is refused, not a traceback later."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from fairseq import options
from fairseq.criterions import build_criterion
from fairseq.data import Dictionary
from fairseq.dataclass.utils import override_module_args
from fairseq.models import build_model
from fairseq.models.roberta import RobertaModel
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import OmegaConf

from fairseq_recur.criterions import ForecastErrorCriterion
from fairseq_recur.errors import ConfigError
from fairseq_recur.tasks.regular_languages import RegularLanguagesConfig, RegularLanguagesTask
from fairseq_recur.tasks.time_series import TimeSeriesConfig, TimeSeriesTask
from tests.configuring import model_config
from tests.series import write_series

LANGUAGES, SERIES = "regular_languages", "time_series_forecasting"
OWN = {LANGUAGES: "string_accuracy", SERIES: "forecast_error"}
"""The tasks without text, with their criterions."""


def make_task(name: str, folder: Path) -> Any:
    if name == LANGUAGES:
        return RegularLanguagesTask(RegularLanguagesConfig())
    path = str(write_series(folder / "x.csv"))
    return TimeSeriesTask(TimeSeriesConfig(series_file=path, split_fractions="0.6,0.2,0.2"))


def settings(criterion: str) -> Any:
    given: dict[str, Any] = {"_name": criterion}
    if "cross_entropy" in criterion:
        given["sentence_avg"] = False
    return OmegaConf.create(given)


@pytest.mark.parametrize("task", OWN)
@pytest.mark.parametrize(
    "criterion", ["cross_entropy", "label_smoothed_cross_entropy_fused", *OWN.values()]
)
def test_a_task_refuses_criterions_of_other_tasks(
    tmp_path: Path, task: str, criterion: str
) -> None:
    made = make_task(task, tmp_path)
    made.build_criterion(settings(OWN[task]))
    if criterion == OWN[task]:
        return
    wanted = f"--task {task}; give --criterion {OWN[task]}"
    if criterion in OWN.values():
        (wanted,) = (f"give --task {name}" for name, own in OWN.items() if own == criterion)
    with pytest.raises(ConfigError, match=wanted):
        made.build_criterion(settings(criterion))


@pytest.mark.parametrize("task", OWN)
def test_a_criterion_refuses_tasks_with_text(task: str) -> None:
    text = Namespace(source_dictionary=Dictionary(), target_dictionary=Dictionary())
    with pytest.raises(ConfigError, match=f"--criterion {OWN[task]} .*; give --task {task}"):
        build_criterion(settings(OWN[task]), text)


def test_a_subclass_of_the_criterion_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Own(ForecastErrorCriterion):
        pass

    monkeypatch.setattr("fairseq.criterions.build_criterion", lambda cfg, task, **_: Own(task))
    assert type(make_task(SERIES, tmp_path).build_criterion(None)) is Own


@pytest.mark.parametrize(
    "task, arch, said",
    [
        (LANGUAGES, "transformer_biarn", "has max_source_positions, such as translation"),
        (SERIES, "transformer_biarn", "has max_target_positions, such as translation"),
        (SERIES, "rsa_transformer_lm", "has max_target_positions, such as language_modeling"),
        ("language_modeling", "srformer", "has max_source_positions, such as translation"),
        ("translation", "rsa_transformer_lm", "has tokens_per_sample, such as language_modeling"),
        ("translation", "transformer_lm", "has tokens_per_sample, such as language_modeling"),
    ],
)
def test_an_architecture_that_needs_another_task(task: str, arch: str, said: str) -> None:
    """Its defaults refer to options of the task; the message names no option that nobody gave."""
    data = [] if task in OWN else ["data"]
    parser = options.get_training_parser(task)
    args = options.parse_args_and_arch(parser, [*data, "--arch", arch])
    with pytest.raises(ConfigError, match=f"arch {arch} needs .* {said}; --task {task}") as raised:
        override_module_args(args)
    assert "give a value" not in str(raised.value)
    fitting = "needs a language model, such as --arch rsa_transformer_lm or xl_lm"
    assert (fitting in str(raised.value)) is (task == "language_modeling")


def test_a_reference_that_was_given_is_still_blamed_itself() -> None:
    parser = options.get_training_parser("language_modeling")
    args = options.parse_args_and_arch(parser, ["data", "--arch", "rsa_transformer_lm"])
    args.max_target_positions = "${task.none}"
    with pytest.raises(ConfigError, match="--max-target-positions '.*': .*give a value instead"):
        override_module_args(args)


@pytest.mark.parametrize("task, side", [(LANGUAGES, "target"), (SERIES, "source")])
def test_an_encoder_decoder_needs_dictionaries(tmp_path: Path, task: str, side: str) -> None:
    cfg = model_config("translation", "transformer_biarn_tiny", [])
    with pytest.raises(ConfigError, match=f"no dictionary of its {side}; give --task translation"):
        build_model(cfg, make_task(task, tmp_path))


@pytest.mark.parametrize("name", ["rsa_transformer_lm", "xl_lm_tiny"])
def test_a_language_model_needs_its_task(dictionary: Dictionary, name: str) -> None:
    task = TranslationTask(TranslationConfig(), dictionary, dictionary)
    cfg = model_config("language_modeling", name, [])
    with pytest.raises(ConfigError, match="--task translation needs an encoder-decoder; give --ta"):
        task.build_model(cfg)


@pytest.mark.parametrize("name", ["transformer_biarn", "transformer"])
def test_language_modeling_needs_a_language_model(dictionary: Dictionary, name: str) -> None:
    task = LanguageModelingTask(LanguageModelingConfig(), dictionary)
    said = rf"--task language_modeling needs a language model, and {name} \(.* is not one; .* an "
    with pytest.raises(ConfigError, match=f"{said}--arch such as rsa_transformer_lm"):
        task.build_model(Namespace(arch=name))


def test_fairseqs_other_language_models_are_left_to_it(
    dictionary: Dictionary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RoBERTa has the targets that fairseq asks for."""
    built = []
    monkeypatch.setattr(RobertaModel, "build_model", lambda *given: built.append(given) or model)
    model = Namespace(supported_targets={"future"})
    task = LanguageModelingTask(LanguageModelingConfig(), dictionary)
    assert task.build_model(Namespace(arch="roberta")) is model and built


@pytest.mark.parametrize(
    "arch, flags, said",
    [
        ("t5_small", [], "^T5SmallModel shares all .* differ; preprocess with --joined-dict"),
        ("srformer_bart_base", [], "^SrformerBartBaseModel shares all embeddings: the"),
        ("srformer_tiny", ["--share-all-embeddings"], "^--share-all-embeddings: .*; leave it out"),
    ],
)
def test_shared_embeddings_need_one_dictionary(arch: str, flags: list[str], said: str) -> None:
    source, target = Dictionary(), Dictionary()
    target.add_symbol("word")
    task = Namespace(source_dictionary=source, target_dictionary=target)
    with pytest.raises(ConfigError, match=said):
        build_model(model_config("translation", arch, flags), task)
