"""Weight decay and learning rate of parameters that ask for others, in every optimizer."""

from copy import deepcopy
from typing import Any

import numpy
import pytest
import torch
from fairseq import optim, options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim.composite import FairseqCompositeOptimizer
from fairseq.optim.fp16_optimizer import FP16Optimizer, MemoryEfficientFP16Optimizer
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, distributed
from torch.testing._internal.distributed.fake_pg import FakeStore

from fairseq_recur.errors import ConfigError


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


ASKED: list[dict[str, float]] = [
    {"lr_scale": 3.0, "weight_decay": 0.0}, {}, {"weight_decay": 0.0}, {"lr_scale": 3.0}, {},
]  # fmt: skip
"""What parameters of 2, 3, ... numbers ask for."""


def mixed(decay: str, name: str = "adam", half: bool = False, earlier: bool = False) -> Any:
    """An optimizer of such parameters, or as earlier versions grouped them without decay."""
    cfg = configuration("--optimizer", name, "--weight-decay", decay, "--lr", "0.1")
    made = [torch.nn.Parameter(torch.ones(n + 2)) for n in range(len(ASKED))]
    for parameter, asked in zip(made, ASKED):
        kept = {key: value for key, value in asked.items() if key == "lr_scale" or not earlier}
        parameter.optim_overrides = {"optimizer": kept}
        if half:
            parameter.data = parameter.data.half()
    if half:
        return MemoryEfficientFP16Optimizer.build_optimizer(cfg, made)
    return optim.build_optimizer(cfg.optimizer, made)


def update(optimizer: Any) -> dict[int, Tensor]:
    """Let each parameter's gradients depend on its size; return the parameters by size."""
    optimizer.set_lr(0.1)
    for parameter in optimizer.params:
        parameter.grad = torch.linspace(-1, 1, parameter.numel()).type_as(parameter)
    optimizer.step()
    return {parameter.numel(): parameter.detach().clone() for parameter in optimizer.params}


def test_without_decay_the_groups_are_the_same() -> None:
    """So a training may be resumed with another decay."""
    expected = [[3, 6], [2], [4], [5]]
    for decay in ("0", "0.1"):
        optimizer = mixed(decay).optimizer
        assert groups(optimizer) == list(zip(expected, [float(decay), 0.0, 0.0, float(decay)]))


@pytest.mark.parametrize("name, half, earlier, decays", [
    ("adam", False, False, ("0", "0.1")),
    ("adam", False, False, ("0.1", "0")),
    *(
        (*kind, True, ("0", decay))
        for kind in (("adam", False), ("adamw_fused", False), ("adam", True))
        for decay in ("0", "0.1")
    ),
])  # fmt: skip
def test_a_training_resumes_with_another_decay(
    name: str, half: bool, earlier: bool, decays: tuple[str, str]
) -> None:
    """As in stock fairseq, with the decay that it began with; also from an earlier version."""
    first = mixed(decays[0], name, half, earlier)
    weights = update(first)
    state = deepcopy(first.state_dict())
    resumed = mixed(decays[1], name, half)
    for parameter in resumed.params:
        parameter.data.copy_(weights[parameter.numel()])
    resumed.load_state_dict(state)
    assert [decay for _, decay in groups(resumed.optimizer)] == [
        float(decays[0]), 0.0, 0.0, float(decays[0]),
    ]  # fmt: skip
    for kept in resumed.optimizer.state.values():
        assert kept["exp_avg"].dtype == torch.float32
    expected, found = update(first), update(resumed)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[size], expected[size]) for size in expected)
    assert not any(torch.equal(expected[size], weights[size]) for size in expected)


def test_a_process_resumes_its_share_of_an_earlier_version() -> None:
    """--zero-sharding os: the state of a process's parameters is theirs in the new groups, too."""
    first = mixed("0", earlier=True)
    update(first)
    expected = {len(p): state["exp_avg"] for p, state in first.optimizer.state.items()}
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        resumed = mixed("0.1")
        optim.shard_(resumed, distributed.group.WORLD)
        resumed.load_state_dict(deepcopy(first.state_dict()))
    finally:
        distributed.destroy_process_group()
    found = {len(p): state["exp_avg"] for p, state in resumed.optimizer.optim.state.items()}
    assert 0 < len(found) < len(expected)
    assert all(torch.equal(found[size], expected[size]) for size in found)


def test_other_groups_are_refused() -> None:
    """Such as the one of fp16's flat buffer, which a training without decay has."""
    state = optim.build_optimizer(
        configuration("--optimizer", "adam", "--lr", "0.1").optimizer,
        [torch.nn.Parameter(torch.ones(20))],
    ).state_dict()
    with pytest.raises(ConfigError, match=r"of \[1\] parameters, expected \[2, 1, 1, 1\]; give"):
        mixed("0.1").load_state_dict(state)


def test_an_overridden_decay_is_not_that_of_parameters_without() -> None:
    """--optimizer-overrides of fairseq sets what all groups have."""
    optimizer = mixed("0.1")
    optimizer.load_state_dict(mixed("0.1").state_dict(), {"weight_decay": 0.2})
    assert [decay for _, decay in groups(optimizer.optimizer)] == [0.2, 0.0, 0.0, 0.2]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("asked", [{"weight_decay": 0.0}, {"lr_scale": 0.1}])
def test_composite_is_refused(
    asked: dict[str, float], dynamic: bool, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It decays the one, and teaches all parameters, or some of them twice, at the other's rate."""
    for name in ("optimizers", "lr_schedulers"):  # which all of them share
        monkeypatch.setattr(FairseqCompositeOptimizer, name, {})
    adam = configuration("--optimizer", "adam", "--weight-decay", "0.1", "--lr", "0.1").optimizer
    group = {"optimizer": OmegaConf.to_container(adam), "lr_scheduler": {"_name": "fixed"}}
    group["lr_scheduler"] |= {"warmup_updates": 0, "force_anneal": None, "lr_shrink": 0.1}
    cfg = OmegaConf.create({
        "optimizer": {
            "_name": "composite", "groups": {"default": group}, "dynamic_groups": dynamic,
        },
        "common": {"fp16_no_flatten_grads": False},
    })  # fmt: skip
    made = parameters(torch.float32, False)
    whole = optim.build_optimizer(cfg.optimizer, made)
    assert [len(g["params"]) for g in whole.param_groups] == [2]
    made[1].optim_overrides = {"optimizer": asked}
    with pytest.raises(ConfigError, match="--optimizer composite: 1 parameters ask.*use another"):
        if half:
            FP16Optimizer.build_optimizer(cfg, made)
        else:
            optim.build_optimizer(cfg.optimizer, made)
    if "weight_decay" in asked:  # which there is none of
        cfg.optimizer.groups.default.optimizer.weight_decay = 0.0
        optim.build_optimizer(cfg.optimizer, made)


def test_fp16_keeps_them_apart() -> None:
    """Not in one flat buffer, which is for models without such parameters."""
    cfg = configuration("--optimizer", "adam", "--weight-decay", "0.1", "--lr", "0.1")
    fp16 = FP16Optimizer.build_optimizer(cfg, parameters(torch.float16, True))
    assert groups(fp16.fp32_optimizer.optimizer) == [([3], 0.1), ([2], 0.0)]
    assert not cfg.common.fp16_no_flatten_grads, "the user's configuration stays"


def test_fp16_keeps_learning_rates_apart_also_without_decay() -> None:
    cfg = configuration("--optimizer", "adam", "--weight-decay", "0", "--lr", "0.1")
    made = [torch.nn.Parameter(torch.ones(n, dtype=torch.float16)) for n in (3, 4)]
    made[1].optim_overrides = {"optimizer": {"lr_scale": 3.0}}
    fp16 = FP16Optimizer.build_optimizer(cfg, made)
    fp16.set_lr(0.25)
    found = fp16.fp32_optimizer.param_groups
    rates = [([p.numel() for p in group["params"]], group["lr"]) for group in found]
    assert rates == [([3], 0.25), ([4], 0.75)]


@pytest.mark.parametrize("asking", [True, False])
def test_memory_efficient_fp16(asking: bool) -> None:
    cfg = configuration("--optimizer", "adam", "--weight-decay", "0.1", "--lr", "0.1")
    memory = MemoryEfficientFP16Optimizer.build_optimizer(cfg, parameters(torch.float16, asking))
    expected = [([3], 0.1), ([2], 0.0)] if asking else [([3, 2], 0.1)]
    assert groups(memory.wrapped_optimizer.optimizer) == expected


def test_numpy_has_the_name_that_fairseq_uses() -> None:
    assert numpy.zeros(1, dtype=numpy.compat.long).dtype == numpy.int64
