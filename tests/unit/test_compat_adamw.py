"""The fused AdamW against fairseq's Adam and against float32."""

from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.optim import OPTIMIZER_REGISTRY
from fairseq.optim.adam import Adam

from fairseq_recur.errors import ConfigError
from fairseq_recur.optim.adamw_fused import FairseqFusedAdamW, FusedAdamW

SETTINGS = {"lr": 0.01, "betas": (0.9, 0.98), "eps": 1e-9, "weight_decay": 0.1}


def config(**changes: Any) -> Namespace:
    settings = {"adam_betas": "(0.9, 0.98)", "adam_eps": 1e-9, "weight_decay": 0.1, "lr": [0.01]}
    return Namespace(**{**settings, **changes})


def parameters(dtype: torch.dtype) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((7, 5), (5,), (3, 2, 2))
    return [
        torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes
    ]


def train(optimizer: torch.optim.Optimizer, steps: int, seed: int = 1) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    for _ in range(steps):
        for p in weights:
            p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
        optimizer.step()
    return [p.detach().clone() for p in weights]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_it_does_what_fairseqs_adam_does(dtype: torch.dtype) -> None:
    ours = train(FusedAdamW(parameters(dtype), **SETTINGS), 20)
    theirs = train(Adam(parameters(dtype), **SETTINGS), 20)
    for a, b in zip(ours, theirs):
        if dtype in (torch.float32, torch.float64):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
        else:  # one rounding of the parameter's own type, at most
            torch.testing.assert_close(a, b, rtol=2 * torch.finfo(dtype).eps, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_its_averages_in_float32(dtype: torch.dtype) -> None:
    optimizer = FusedAdamW(parameters(dtype), **SETTINGS)
    weights = optimizer.param_groups[0]["params"]
    train(optimizer, 3)
    assert all(p.dtype == dtype for p in weights)
    for p in weights:
        assert {v.dtype for v in optimizer.state[p].values()} == {torch.float32}
        assert optimizer.state[p]["step"] == 3


def test_the_averages_move_where_bfloat16_would_stand_still() -> None:
    """v = 0.999 v + 0.001 g^2 with g = 1: after n steps 1 - 0.999^n."""
    p = torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    optimizer = FusedAdamW([p], lr=0.0, betas=(0.9, 0.999))
    for _ in range(2000):
        p.grad = torch.ones_like(p)
        optimizer.step()
    assert optimizer.state[p]["exp_avg_sq"].item() == pytest.approx(1 - 0.999**2000, rel=1e-3)


def test_a_parameter_without_gradient_stays() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        first, second = parameters(dtype)[:2]
        before = second.detach().clone()
        optimizer = FusedAdamW([first, second], **SETTINGS)
        first.grad = torch.ones_like(first)
        optimizer.step()
        assert torch.equal(second, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_closure_is_called(dtype: torch.dtype) -> None:
    weights = parameters(dtype)
    optimizer = FusedAdamW(weights, **SETTINGS)

    def closure() -> torch.Tensor:
        loss = sum((p.float() ** 2).sum() for p in weights)
        loss.backward()
        return loss

    first, second = optimizer.step(closure), optimizer.step(closure)
    assert second < first


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_continues_where_it_was(dtype: torch.dtype) -> None:
    whole = FusedAdamW(parameters(dtype), **SETTINGS)
    train(whole, 5)
    expected = train(whole, 5, seed=2)
    first = FusedAdamW(parameters(dtype), **SETTINGS)
    weights = train(first, 5)
    second = FusedAdamW([torch.nn.Parameter(w) for w in weights], **SETTINGS)
    second.load_state_dict(first.state_dict())
    if dtype == torch.bfloat16:  # as fairseq's memory-efficient optimizer does after loading
        for p, old in zip(second.param_groups[0]["params"], first.param_groups[0]["params"]):
            second.state[p] = first.state[old]
    for a, b in zip(train(second, 5, seed=2), expected):
        assert torch.equal(a, b)


def test_loaded_averages_are_float32_again() -> None:
    """torch gives what it loads the type of the parameters."""
    first, second = (FusedAdamW(parameters(torch.bfloat16), **SETTINGS) for _ in range(2))
    train(first, 2)
    second.load_state_dict(first.state_dict())
    train(second, 1)
    kept = [value for state in second.state.values() for value in state.values()]
    assert {value.dtype for value in kept} == {torch.float32}


def test_it_is_registered_with_fairseqs_flags() -> None:
    assert OPTIMIZER_REGISTRY["adamw_fused"] is FairseqFusedAdamW
    optimizer = FairseqFusedAdamW(config(), iter(parameters(torch.float32)))
    assert optimizer.supports_memory_efficient_fp16 and optimizer.supports_flat_params
    group = optimizer.param_groups[0]
    assert {k: group[k] for k in SETTINGS} == SETTINGS and group["fused"]
    assert FairseqFusedAdamW(config(lr=0.5), parameters(torch.float32)).get_lr() == 0.5


@pytest.mark.parametrize("betas", ["0.9", "(0.9)", "(0.9, 1.0)", "(0.9, 'a')", "(0.9,", "x()", 0.9])
def test_betas_that_are_no_pair(betas: Any) -> None:
    with pytest.raises(ConfigError, match="expected two numbers, at least 0 and below"):
        FairseqFusedAdamW(config(adam_betas=betas), parameters(torch.float32))


def test_no_learning_rate() -> None:
    with pytest.raises(ConfigError, match="--lr: found no number, expected one or several"):
        FairseqFusedAdamW(config(lr=[]), parameters(torch.float32))


def test_a_device_without_the_kernel() -> None:
    weights = [torch.nn.Parameter(torch.zeros(2, device="meta"))]
    with pytest.raises(ConfigError, match="kernel for torch.float32 on meta .*--optimizer adam"):
        FairseqFusedAdamW(config(), weights)


def test_a_type_without_the_kernel() -> None:
    weights = [torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))]
    with pytest.raises(ConfigError, match="torch.complex64 on cpu"):
        FairseqFusedAdamW(config(), [{"params": weights}])


def test_bmuf_is_refused() -> None:
    with pytest.raises(ConfigError, match="--use-bmuf"):
        FairseqFusedAdamW(config(), parameters(torch.float32)).average_params()
