"""The tests' shortcut to fairseq's configuration gives the same result as hydra."""

from argparse import Namespace
from collections.abc import Callable

import pytest
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from tests.configuring import composing_directly, group_config
from tests.conftest import LANGUAGE_MODELS, PRESETS, SMALL, SYSTEMS, TRAIN

pytestmark = pytest.mark.hydra

Parser = Callable[[], object]
COMMANDS: dict[str, tuple[Parser, list[str]]] = {
    "train": (
        options.get_training_parser,
        [
            *SYSTEMS["srformer-ratio-sigma-pre-norm"], *SMALL, *TRAIN, "--lr", "0.1,0.2",
            "--eval-bleu-args", '{"beam": 2, "max_len_b": 12}', "--adam-betas", "(0.9,0.98)",
        ],
    ),
    "train-stock": (options.get_training_parser, ["--arch", "transformer", *SMALL, *TRAIN]),
    "train-language-model": (
        lambda: options.get_training_parser("language_modeling"),
        ["--arch", "rsa_transformer_lm", "--tokens-per-sample", "32", "--optimizer", "adamw_fused"],
    ),
    "generate": (
        options.get_generation_parser,
        ["--path", "x.pt", "--scoring", "rouge", "--beam", "3", "--lenpen", "0.5"],
    ),
    "interactive": (
        options.get_interactive_generation_parser,
        ["--path", "x.pt", "--bpe", "subword_nmt", "--bpe-codes", "codes", "--buffer-size", "7"],
    ),
    "eval_lm": (options.get_eval_lm_parser, ["--path", "x.pt", "--context-window", "3"]),
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_whole_configurations_are_equal(command: str) -> None:
    make, flags = COMMANDS[command]
    args = options.parse_args_and_arch(make(), ["data", *flags])
    expected = convert_namespace_to_omegaconf(args)
    with composing_directly(fallback=False):
        found = convert_namespace_to_omegaconf(args)
    assert found == expected and list(found) == list(expected)


def arguments(arch: str) -> Namespace:
    """The parsed arguments of a training of an architecture with its defaults."""
    task = "language_modeling" if arch in LANGUAGE_MODELS else "translation"
    parser = options.get_training_parser(task)
    return options.parse_args_and_arch(parser, ["data", "--arch", arch])


@pytest.mark.parametrize(
    "arch",
    [
        "t5_small",
        "transformer",
        *(pytest.param(p, marks=pytest.mark.slow) for p in (*PRESETS, *LANGUAGE_MODELS)),
    ],
)
def test_models_configurations_are_equal(arch: str) -> None:
    args = arguments(arch)
    expected = convert_namespace_to_omegaconf(args).model
    found = group_config("model", args, fallback=False)
    assert type(found) is type(expected) and found == expected


def test_what_is_refused_is_refused_by_hydra() -> None:
    args = arguments("transformer_biarn")
    args.dropout = "${nowhere}"
    with pytest.raises(Exception) as by_hydra:
        convert_namespace_to_omegaconf(args)
    with pytest.raises(Exception) as directly:
        group_config("model", args)
    assert str(directly.value) == str(by_hydra.value)
