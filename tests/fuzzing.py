"""Command lines with hostile values for every flag, and their permitted outcomes."""

import argparse
import re
import signal
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from fairseq import options
from fairseq.data import Dictionary
from fairseq.dataclass import utils as dataclass_utils
from fairseq.models import ARCH_MODEL_REGISTRY
from omegaconf import OmegaConf

from fairseq_recur.errors import ConfigError
from fairseq_recur.models.config import APART, part_fields
from fairseq_recur.tasks.time_series import TimeSeriesConfig, TimeSeriesTask
from tests.configuring import group_config
from tests.conftest import FORECASTERS, LANGUAGE_MODELS, MEMORY_MODELS, SEGMENTS, SMALL
from tests.series import SIZES, write_series

SECONDS = 20
"""Time limit of a refusal, generous enough for a busy machine."""

HOSTILE: list[str] = [
    *("x", "", " ", "é\u202e漢", "none", "True", "[1,2]", "1,2", "(1", "{}", "a'b", "a=b"),
    *("x\\", "${nope}", "${model.dropout}", "__import__('os')", "../x/y", "\n", "-"),
    *("0", "-1", "-7", "1", "2", "3", "7", "64", "1_0", "-0.0", "0.5", "1.5", "1e-30", "1e30"),
    *("nan", "inf", "-inf", "1e400", "nan,nan", "1,nan", "-1,1", "1,0,0,1,0,0", "2147483648"),
    *("1000000000", "9223372036854775808", "1" + "0" * 30, "-1" + "0" * 30, "1" * 5000),
]
"""Wrong types, values at and beyond the ends of ranges, and text that breaks parsers."""

SMALL_LM: list[str] = (
    "--decoder-embed-dim 16 --decoder-ffn-embed-dim 24 --decoder-layers 2 "
    "--decoder-attention-heads 2 --tokens-per-sample 64"
).split()


class TooLong(BaseException):
    """Not an `Exception`, so that no handler catches it by mistake."""


@contextmanager
def within(seconds: int = SECONDS) -> Iterator[None]:
    """Raise `TooLong` if the block takes longer than *seconds*."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLong(f"{seconds} seconds have passed")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def flag(action: argparse.Action) -> str:
    """The longest name of a flag; "" for a positional argument."""
    return max(action.option_strings, key=len, default="")


def lines_of(action: argparse.Action, values: Sequence[str] = HOSTILE) -> Iterator[list[str]]:
    """The flag without a value if it takes none, otherwise with each value and each choice.

    A flag that takes several values is also given each value repeated as often as it needs.
    """
    name = flag(action)
    if action.nargs == 0:
        yield [name]
        return
    for value in [*values, *(action.choices or ())]:
        yield [f"{name}={value}"]
    if isinstance(action.nargs, int) or action.nargs == "+":
        count = action.nargs if isinstance(action.nargs, int) else 2
        for value in values:
            if not value.startswith("-"):
                yield [name, *[value] * count]


def names_a_flag_of(message: str, words: Sequence[str]) -> bool:
    """Whether a message names one of the flags of a command line."""
    given = re.findall(r"(?<!\S)--[a-z][\w-]*", " ".join(words))
    return any(re.search(rf"{name}(?![\w-])", message) for name in given)


class System:
    """A small architecture with options: the plug-in's flags, and the outcome of a command line.

    fairseq judges the values of its own flags.
    """

    def __init__(self, arch: str, *given: str) -> None:
        self.arch = arch
        self.kind = kind_of(arch)
        self.task, data, sizes = KINDS[self.kind]
        self.given = [*data, "--arch", arch, *sizes, *given]
        self.parser = options.get_training_parser(self.task)
        options.parse_args_and_arch(self.parser, self.given)
        self.dataclass = getattr(ARCH_MODEL_REGISTRY[arch], "__dataclass")
        parsed = {a.dest for a in self.parser._actions}
        self.unparsed = {f.name for f in fields(self.dataclass)} - parsed - {"_name"}
        names = {name for name, *_ in part_fields(ARCH_MODEL_REGISTRY[arch].slots())} & parsed
        names |= {f.name for options_ in APART[self.kind] for f in fields(options_)}
        self.flags = [a for a in self.parser._actions if a.dest in names]

    def attempt(self, words: Sequence[str], whole: bool = False) -> str:
        """Parse, check, build and compute.

        Args:
            words: the flags
            whole: let fairseq compose the whole configuration

        Returns:
            "built", or the message of the refusal

        Raises:
            AssertionError: the logits are not finite
            Exception: any other error than ConfigError and SystemExit is a defect
        """
        line = [*self.given, *words]
        try:
            args = self.parser.parse_args(line)
        except SystemExit as error:
            assert error.code == 2
            return f"parser: {words}"
        try:
            return self.build(args, line, whole)
        except ConfigError as error:
            return str(error)

    def build(self, args: Namespace, line: list[str], whole: bool) -> str:
        """Build the model of a parsed command line and compute its logits."""
        try:
            assert not whole
            cfg = group_config("model", args, fallback=False)
        except Exception:  # fairseq's own function must refuse it with a clear message
            args = options.parse_args_and_arch(options.get_training_parser(self.task), line)
            cfg = dataclass_utils.convert_namespace_to_omegaconf(args).model
        if self.kind == "forecaster":
            task = task_of_the_tests()
        else:
            task = Namespace(source_dictionary=words_of_the_tests())
            task.target_dictionary = task.source_dictionary
        torch.manual_seed(1)
        model = ARCH_MODEL_REGISTRY[self.arch].build_model(cfg, task).eval()
        with torch.no_grad():
            found = model(*inputs_of(self.kind))
        if self.kind != "forecaster":
            found = found[0]
        assert found.isfinite().all(), "the logits are not finite"
        return "built"


def kind_of(arch: str) -> str:
    """The kind of model: a name in `APART`."""
    if arch in FORECASTERS:
        return "forecaster"
    return "language_model" if arch in LANGUAGE_MODELS + MEMORY_MODELS else "encoder_decoder"


KINDS: dict[str, tuple[str, list[str], list[str]]] = {
    "encoder_decoder": ("translation", ["data"], SMALL),
    "language_model": ("language_modeling", ["data"], SMALL_LM),
    "forecaster": ("time_series_forecasting", [], SIZES),
}
"""The task of each kind, its arguments, and flags that make a model small."""


def inputs_of(kind: str) -> list[torch.Tensor]:
    """A batch of two."""
    if kind == "forecaster":
        return [torch.randn(2, 12, 2), torch.randn(2, 12, 4), torch.randn(2, 4, 4)]
    source = torch.tensor([[1, 1, 9, 5, 2], [8, 7, 6, 5, 2]])
    previous = torch.tensor([[2, 5, 9], [2, 7, 8]])
    return [previous] if kind == "language_model" else [source, torch.tensor([3, 5]), previous]


@cache
def task_of_the_tests() -> TimeSeriesTask:
    """Forecasting two variables."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(write_series(Path(folder) / "x.csv"))
        cfg = TimeSeriesConfig(series_file=path, input_length=12, label_length=6, horizon=4)
        cfg.split_fractions = "0.6,0.2,0.2"
        return TimeSeriesTask.setup_task(OmegaConf.structured(cfg))


@cache
def _words() -> Dictionary:
    words = Dictionary()
    for i in range(60):
        words.add_symbol(f"w{i}")
    return words


def words_of_the_tests() -> Dictionary:
    """A dictionary of 64 entries; --merge-src-tgt-embed changes it."""
    return deepcopy(_words())


SYSTEMS: dict[str, list[str]] = {
    "biarn": ["transformer_biarn"],
    "gated": ["transformer_biarn", "--recurrence-fusion", "gated_sum"],
    "birnn": ["transformer_biarn", "--recurrence", "birnn"],
    "multicolumn": ["transformer_rnn_multicolumn", "--recurrence-layers", "1"],
    "srformer": ["srformer", *SEGMENTS],
    "ratio": ["srformer", "--target-length-mode", "ratio"],
    "xl": ["srformer", "--cross-attention", "xl"],
    "global": ["srformer", "--cross-attention", "global"],
    "rsa": ["rsa_transformer"],
    "dilated": ["rsa_transformer", *"--rsa-heads 0,0,0,1,0,1 --rsa-dilations 2,3".split()],
    "toeplitz": [
        "rsa_transformer",
        *"--encoder-self-attention toeplitz --decoder-self-attention full_matrix".split(),
    ],
    "relative": ["transformer_relpos"],
    "directional": ["transformer_disan"],
    "sparse": [
        "rsa_transformer",
        *"--encoder-self-attention prob_sparse --encoder-self-attention-mixture rsa".split(),
        *"--cross-attention-mixture rsa".split(),
    ],
    "bart": ["srformer_bart_base"],
    "t5": ["t5_small"],
    "language model": ["rsa_transformer_lm"],
    "memory": ["xl_lm_tiny"],
    "latent": ["tlb_lm_tiny"],
    "block recurrent": ["brt_lm_tiny", "--recurrent-layer", "1"],
    "xl map": ["rsa_transformer", "--encoder-self-attention", "xl"],
    "forecaster": ["rsa_informer"],
    "sparse forecaster": ["rsa_log_sparse"],
    "remembering forecaster": ["xl_forecaster"],
}
"""One system for each part, so that every option has an effect in at least one of them."""


@cache
def system(name: str) -> System:
    """One of `SYSTEMS`."""
    return System(*SYSTEMS[name])


def reads(name: str, words: Sequence[str]) -> Any:
    """Whether a system uses flags, that is, does not refuse them as without effect."""
    return "has no effect" not in system(name).attempt(words)
