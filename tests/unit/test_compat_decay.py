"""Weight decay and learning rate of parameters that ask for others, in every optimizer."""

from typing import Any

import numpy
import pytest
import torch
from fairseq import optim, options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim.fp16_optimizer import FP16Optimizer, MemoryEfficientFP16Optimizer
from omegaconf import DictConfig


def configuration(*flags: str) -> DictConfig:
    parser = options.get_training_parser("translation")
    args = options.parse_args_and_arch(parser, ["data", "--arch", "transformer", *flags])
    return convert_namespace_to_omegaconf(args)


def parameters(dtype: torch.dtype, asking: bool) -> list[torch.nn.Parameter]:
    first, second = (torch.nn.Parameter(torch.ones(n, dtype=dtype)) for n in (3, 2))
    if asking:
        second.optim_overrides = {"optimizer": {"weight_decay": 0.0}}
    return [first, second]


def groups(optimizer: torch.optim.Optimizer) -> list[tuple[list[int], float]]:
    return [
        ([p.numel() for p in group["params"]], group["weight_decay"])
        for group in optimizer.param_groups
    ]


@pytest.mark.parametrize("name", ["adam", "sgd", "nag", "adagrad", "adafactor", "adamw_fused"])
def test_groups(name: str) -> None:
    cfg = configuration("--optimizer", name, "--weight-decay", "0.1", "--lr", "0.1")
    split = optim.build_optimizer(cfg.optimizer, parameters(torch.float32, True))
    assert groups(split.optimizer) == [([3], 0.1), ([2], 0.0)]
    split.set_lr(0.25)
    assert [group["lr"] for group in split.optimizer.param_groups] == [0.25, 0.25]
    whole = optim.build_optimizer(cfg.optimizer, parameters(torch.float32, False))
    assert groups(whole.optimizer) == [([3, 2], 0.1)]


@pytest.mark.parametrize(
    "name, half",
    [
        ("adam", None),
        ("adamw_fused", None),
        ("adam", FP16Optimizer),
        ("adam", MemoryEfficientFP16Optimizer),
    ],
)
def test_learning_rates(name: str, half: Any) -> None:
    """The scheduler's is the first group's; a resumed training has its present factor."""
    cfg = configuration("--optimizer", name, "--weight-decay", "0.1", "--lr", "0.1")

    def build(scale: float) -> optim.FairseqOptimizer:
        dtype = torch.float32 if half is None else torch.float16
        made = [*parameters(dtype, True), torch.nn.Parameter(torch.ones(4, dtype=dtype))]
        made[2].optim_overrides = {"optimizer": {"lr_scale": scale}}
        if half is None:
            return optim.build_optimizer(cfg.optimizer, made)
        return half.build_optimizer(cfg, made)

    optimizer = build(3.0)
    optimizer.set_lr(0.25)
    rates = [([p.numel() for p in g["params"]], g["lr"]) for g in optimizer.param_groups]
    assert rates == [([3], 0.25), ([2], 0.25), ([4], 0.75)]
    assert optimizer.get_lr() == 0.25
    resumed = build(2.0)
    resumed.load_state_dict(optimizer.state_dict())
    resumed.set_lr(0.5)
    assert [group["lr"] for group in resumed.param_groups] == [0.5, 0.5, 1.0]


def test_without_decay_nothing_is_split() -> None:
    cfg = configuration("--optimizer", "adam", "--lr", "0.1")
    optimizer = optim.build_optimizer(cfg.optimizer, parameters(torch.float32, True))
    assert groups(optimizer.optimizer) == [([3, 2], 0.0)]


def test_fp16_keeps_them_apart() -> None:
    """Not in one flat buffer, which is for models without such parameters."""
    cfg = configuration("--optimizer", "adam", "--weight-decay", "0.1", "--lr", "0.1")
    fp16 = FP16Optimizer.build_optimizer(cfg, parameters(torch.float16, True))
    assert groups(fp16.fp32_optimizer.optimizer) == [([3], 0.1), ([2], 0.0)]
    assert not cfg.common.fp16_no_flatten_grads, "the user's configuration stays"


@pytest.mark.parametrize("asking", [True, False])
def test_memory_efficient_fp16(asking: bool) -> None:
    cfg = configuration("--optimizer", "adam", "--weight-decay", "0.1", "--lr", "0.1")
    memory = MemoryEfficientFP16Optimizer.build_optimizer(cfg, parameters(torch.float16, asking))
    expected = [([3], 0.1), ([2], 0.0)] if asking else [([3, 2], 0.1)]
    assert groups(memory.wrapped_optimizer.optimizer) == expected


def test_numpy_has_the_name_that_fairseq_uses() -> None:
    assert numpy.zeros(1, dtype=numpy.compat.long).dtype == numpy.int64
