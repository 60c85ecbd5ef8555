"""The optimizer of --zero-sharding os, as the first of two processes that send nothing."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from fairseq import optim
from torch import distributed, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from fairseq_recur.errors import ConfigError
from fairseq_recur.optim.adamw_fused import FairseqFusedAdamW, FusedAdamWConfig

SIZES = (10, 6, 4)
"""Of the parameters: the first process has the first one, the second process the others."""


@pytest.fixture
def group() -> Iterator[Any]:
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield distributed.group.WORLD
    distributed.destroy_process_group()


def made(group: Any = None, dtype: torch.dtype = torch.float32) -> FairseqFusedAdamW:
    torch.manual_seed(1)
    parameters = [nn.Parameter(torch.randn(size).to(dtype)) for size in SIZES]
    optimizer = FairseqFusedAdamW(FusedAdamWConfig(lr=[0.1], weight_decay=0.01), parameters)
    optim.shard_(optimizer, group)
    return optimizer


def update(optimizer: FairseqFusedAdamW, count: int) -> None:
    for number in range(count):
        for parameter in optimizer.params:
            parameter.grad = torch.linspace(-1, number + 1, len(parameter)).to(parameter.dtype)
        optimizer.step()


def test_a_process_updates_its_own_parameters(group: Any) -> None:
    plain, sharded = made(), made(group)
    before = [p.detach().clone() for p in sharded.params]
    for rate in (0.1, 0.01):
        for optimizer in (plain, sharded):
            optimizer.set_lr(rate)
            update(optimizer, 2)
    (own, *others), (expected, *_) = list(sharded.params), list(plain.params)
    assert torch.equal(own, expected) and not torch.equal(own, before[0])
    assert all(map(torch.equal, others, before[1:]))
    assert [len(p) for p in sharded.optimizer.optim.state] == [SIZES[0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_process_resumes_with_its_own_state(group: Any, dtype: torch.dtype) -> None:
    plain, sharded = made(dtype=dtype), made(group, dtype)
    plain.set_lr(0.05)
    update(plain, 3)
    saved = deepcopy(plain.state_dict())
    sharded.load_state_dict(saved)
    assert sharded.get_lr() == 0.05
    ((own, state),) = sharded.optimizer.optim.state.items()
    assert own is next(iter(sharded.params))
    assert state.keys() == saved["state"][0].keys()
    for name, value in plain.state_dict()["state"][0].items():
        assert state[name].dtype == value.dtype == torch.float32 and torch.equal(state[name], value)
    with torch.no_grad():
        own.copy_(next(iter(plain.params)))
    update(plain, 1), update(sharded, 1)
    assert torch.equal(own, next(iter(plain.params)))


def test_the_state_of_other_groups_is_refused(group: Any) -> None:
    saved = made().state_dict()
    saved["param_groups"][0]["params"] = [0, 1]
    with pytest.raises(ConfigError, match=r"groups of \[2\] .*expected \[3\]; give"):
        made(group).load_state_dict(saved)


def test_an_error_of_one_process_is_raised_at_once(group: Any) -> None:
    """The trainer asks for all states to save what it has, but the other process has no error."""
    sharded = made(group)
    with pytest.raises(KeyError, match="own"):
        try:
            raise KeyError("own")
        except KeyError:
            sharded.optimizer.consolidate_state_dict()
