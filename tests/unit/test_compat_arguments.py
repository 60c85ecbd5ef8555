"""Precision flags and a missing task, as each command reads them."""

import importlib.util
import sys
from argparse import Namespace
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from fairseq import options

from fairseq_recur.errors import ConfigError

PARSERS: dict[str, tuple[Callable, list[str]]] = {
    "train": (options.get_training_parser, ["data", "--arch", "transformer"]),
    "generate": (options.get_generation_parser, ["data", "--path", "m.pt"]),
    "interactive": (options.get_interactive_generation_parser, ["data", "--path", "m.pt"]),
    "validate": (options.get_validation_parser, ["data", "--path", "m.pt"]),
    "eval_lm": (options.get_eval_lm_parser, ["data", "--path", "m.pt"]),
}


def parse(command: str, *flags: str, **settings: Any) -> Namespace:
    make, needed = PARSERS[command]
    return options.parse_args_and_arch(make(), [*needed, *flags], **settings)


@pytest.mark.parametrize("command", PARSERS)
@pytest.mark.parametrize("flag", ["--bf16", "--memory-efficient-bf16"])
def test_bf16_is_not_tpu(command: str, flag: str) -> None:
    args = parse(command, flag)
    assert args.bf16 is True and args.tpu is False


@pytest.mark.parametrize("command", PARSERS)
def test_nothing_else_changes(command: str) -> None:
    args = parse(command)
    assert (args.bf16, args.tpu, args.fp16) == (False, False, False)
    assert parse(command, "--bf16", "--tpu").tpu is True


def test_the_command_line_is_read_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for flags, tpu in ((["--bf16"], False), (["--bf16", "--tpu"], True)):
        monkeypatch.setattr(sys, "argv", ["fairseq-generate", "data", "--path", "m", *flags])
        args = options.parse_args_and_arch(options.get_generation_parser())
        assert args.tpu is tpu


def test_with_torch_xla_bf16_stays_as_fairseq_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from fairseq.distributed import utils as distributed_utils

    monkeypatch.setattr(distributed_utils, "xm", object())
    assert parse("train", "--bf16").tpu is True


@pytest.mark.parametrize("command", ["generate", "interactive"])
def test_replacing_unknown_words_is_refused(command: str) -> None:
    """fairseq would end in a traceback, at the first unknown word."""
    for flags in (["--replace-unk"], ["--replace-unk", "file"]):
        with pytest.raises(ConfigError, match="fairseq fails at the first output with <unk>"):
            parse(command, *flags)


def test_known_arguments_only() -> None:
    args, rest = parse("train", "--bf16", "--unknown", parse_known=True)
    assert args.tpu is False and rest == ["--unknown"]


def test_validate_without_a_task() -> None:
    assert parse("validate").task == "translation"
    given = parse("validate", "--bf16", suppress_defaults=True)
    assert not hasattr(given, "task")  # so the checkpoint's own task is used
    assert parse("validate", "--task", "language_modeling").task == "language_modeling"


def test_fp16_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="torch finds none. Leave --fp16 out, or use --bf16"):
        parse("train", "--fp16")
    parse("train", "--memory-efficient-fp16")
    parse("generate", "--fp16")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    parse("train", "--fp16")
    with pytest.raises(ConfigError, match="--cpu is given"):
        parse("train", "--fp16", "--cpu")


def test_fp16_without_a_gpu_through_hydra(monkeypatch: pytest.MonkeyPatch) -> None:
    from fairseq.dataclass.configs import FairseqConfig
    from fairseq.trainer import Trainer
    from omegaconf import OmegaConf

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cfg = OmegaConf.structured(FairseqConfig)
    cfg.common.fp16 = True
    with pytest.raises(ConfigError, match="--fp16 trains on a CUDA device"):
        Trainer(cfg, None, None, None)


def test_back_ends_that_need_fairscale(monkeypatch: pytest.MonkeyPatch) -> None:
    from fairseq.dataclass.configs import FairseqConfig
    from fairseq.trainer import Trainer
    from omegaconf import OmegaConf

    find, installed = importlib.util.find_spec, False
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *args: installed or None if name == "fairscale" else find(name, *args),
    )
    refused = "needs fairscale, which is not installed.*Use pytorch_ddp"
    for backend in ("fully_sharded", "slowmo"):
        with pytest.raises(ConfigError, match=f"--ddp-backend {backend} {refused}"):
            parse("train", "--ddp-backend", backend)
    cfg = OmegaConf.structured(FairseqConfig)
    cfg.distributed_training.ddp_backend = "fully_sharded"
    with pytest.raises(ConfigError, match=refused):
        Trainer(cfg, None, None, None)
    installed = True
    parse("train", "--ddp-backend", "fully_sharded")


@pytest.mark.parametrize(
    "flags, error",
    [
        ("--use-bmuf", "--use-bmuf: expected one optimizer"),
        ("--optimizer composite", "--optimizer composite: expected one optimizer"),
        ("--ddp-backend fully_sharded", "--ddp-backend fully_sharded: expected one optimizer"),
        ("--fp16", "--fp16: expected parameters that can be divided.*add --fp16-no-flatten-grads"),
        ("--fp16 --fp16-no-flatten-grads", None),
        ("--memory-efficient-fp16", None),
        ("--bf16", None),
        ("--optimizer adam --ddp-backend legacy_ddp", None),
    ],
)
def test_what_zero_sharding_cannot_divide(
    monkeypatch: pytest.MonkeyPatch, flags: str, error: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: True)
    parse("train", *flags.split())
    with nullcontext() if error is None else pytest.raises(ConfigError, match=f"os with {error}"):
        parse("train", "--zero-sharding", "os", *flags.split())


def test_what_zero_sharding_cannot_divide_through_hydra() -> None:
    from fairseq.dataclass.configs import FairseqConfig
    from fairseq.trainer import Trainer
    from omegaconf import OmegaConf

    for section, values, error in (
        ("optimization", {"use_bmuf": True}, "--use-bmuf"),
        ("optimizer", {"_name": "composite"}, "--optimizer composite"),
    ):
        cfg = OmegaConf.structured(FairseqConfig)
        cfg.distributed_training.zero_sharding = "os"
        OmegaConf.set_struct(cfg, False)
        cfg[section] = OmegaConf.merge(cfg[section] or {}, values)
        with pytest.raises(ConfigError, match=f"os with {error}"):
            Trainer(cfg, None, None, None)


def test_a_model_without_base_layers_through_hydra_1_0() -> None:
    """omegaconf 2.0 gives None for a missing key, and fairseq compares it with 0."""
    from fairseq.dataclass.configs import FairseqConfig
    from fairseq.trainer import Trainer
    from omegaconf import OmegaConf

    cfg = OmegaConf.structured(FairseqConfig)
    OmegaConf.set_struct(cfg, False)
    cfg.model = OmegaConf.create({"_name": "any"})
    OmegaConf.set_struct(cfg.model, False)
    cfg.distributed_training.distributed_world_size = 1
    with pytest.raises(AttributeError):  # the trainer goes on until it needs the model
        Trainer(cfg, None, None, None)
    assert not getattr(cfg.model, "base_layers", 0)
    assert getattr(cfg.model, "base_layers", 0) is not None


def test_a_polynomial_decay_ends_with_the_training() -> None:
    decay = ["--lr-scheduler", "polynomial_decay"]
    assert parse("train", *decay, "--max-update", "30").total_num_update == 30
    given = parse("train", *decay, "--max-update", "30", "--total-num-update", "40")
    assert float(given.total_num_update) == 40
    assert parse("train", "--max-update", "30").lr_scheduler == "fixed"
    with pytest.raises(ConfigError, match="give --max-update or --total-num-update"):
        parse("train", *decay, "--max-epoch", "3")
