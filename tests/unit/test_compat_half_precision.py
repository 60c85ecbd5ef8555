"""Half precision: settings of float32 copies; what a resume restores of them and the scaler."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.dataclass.configs import FairseqConfig
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.optim.fp16_optimizer import FP16Optimizer
from omegaconf import OmegaConf, open_dict

from fairseq_recur.compat.half_precision import KEPT, build_fp32_params
from tests.running import assert_identical


def test_float32_copies_keep_what_parameters_ask_for() -> None:
    """Also with fairseq 0.12.2, whose copies have none of it."""
    asking, other = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    asking.optim_overrides = {"optimizer": {"weight_decay": 0}}  # type: ignore[attr-defined]

    def build(args: Any, params: Any, flatten: bool) -> Any:
        return [torch.nn.Parameter(p.detach().float()) for p in params]

    first, second = build_fp32_params(build, None, [asking, other], flatten=False)
    assert first.optim_overrides == asking.optim_overrides  # type: ignore[attr-defined]
    assert not hasattr(second, "optim_overrides")


def optimizer(values: list[torch.Tensor], half: str, flat: bool) -> Any:
    """fairseq's optimizer with copies, of parameters with these values in half precision."""
    cfg = OmegaConf.structured(FairseqConfig)
    with open_dict(cfg):
        cfg.optimizer = {"_name": "sgd", "momentum": 0.9, "weight_decay": 0.0, "lr": [0.01]}
        cfg.common.bf16, cfg.common.fp16_no_flatten_grads = half == "bfloat16", not flat
        cfg.common.fp16_init_scale, cfg.common.fp16_scale_window = 4, 3
    parameters = [torch.nn.Parameter(v.to(getattr(torch, half))) for v in values]
    return FP16Optimizer.build_optimizer(cfg, parameters)


def update(made: Any, steps: range) -> None:
    """Update with gradients that depend on the number of the step."""
    for step in steps:
        made.zero_grad()
        generator = torch.Generator().manual_seed(step)
        for p in made.fp16_params:
            p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
        made._needs_sync = True
        made.clip_grad_norm(0.0)
        made.step()


@pytest.mark.parametrize("half, flat", [("bfloat16", False), ("float16", False), ("float16", True)])
def test_resumed_equals_never_stopped(
    half: str, flat: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parameters, copies, the optimizer's state, the loss scale and its counts."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # the index of the CPU
    values = [torch.randn(5, 3), torch.randn(4)]
    once = optimizer(values, half, flat)
    update(once, range(4))
    torch.save(once.state_dict(), tmp_path / "state.pt")
    rounded = [p.detach().clone() for p in once.fp16_params]
    update(once, range(4, 9))
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    resumed = optimizer(rounded, half, flat)
    resumed.load_state_dict(copy.deepcopy(state))
    update(resumed, range(4, 9))
    assert_identical(resumed.state_dict(), once.state_dict())
    assert all(a.equal(b) for a, b in zip(resumed.fp16_params, once.fp16_params))
    without = optimizer(rounded, half, flat)
    without.load_state_dict({name: x for name, x in state.items() if name != KEPT})
    update(without, range(4, 9))
    assert not without.state_dict()[KEPT]["copies"][0].equal(once.state_dict()[KEPT]["copies"][0])


def test_copies_of_other_weights_are_left_out() -> None:
    """Such as an average of checkpoints that still has the optimizer's state."""
    first = optimizer([torch.randn(5, 3)], "bfloat16", False)
    update(first, range(3))
    other = optimizer([torch.ones(5, 3)], "bfloat16", False)
    other.load_state_dict(first.state_dict())
    assert other.fp32_params[0].equal(torch.ones(5, 3))


def amp_optimizer(values: torch.Tensor, window: int) -> Any:
    """fairseq's optimizer of --amp, with a loss scaler that works on a CPU."""
    cfg = OmegaConf.structured(FairseqConfig)
    with open_dict(cfg):
        cfg.optimizer = {"_name": "sgd", "momentum": 0.9, "weight_decay": 0.0, "lr": [0.01]}
        cfg.common.fp16_init_scale, cfg.common.amp_scale_window = 4, window
    made = AMPOptimizer.build_optimizer(cfg, [torch.nn.Parameter(values.clone())])
    scale = {"init_scale": 4.0, "growth_interval": window}
    made._grad_scaler = torch.amp.GradScaler("cpu", **scale)
    return made


def amp_updates(made: Any, steps: range) -> None:
    """Update by the gradients of a scaled loss, which overflow in the third."""
    (parameter,) = made.optimizer.param_groups[0]["params"]
    for step in steps:
        made.zero_grad()
        made.backward((parameter * (step + 1 if step != 2 else torch.inf)).sum())
        made.clip_grad_norm(1.0)
        made.step()


def test_the_loss_scale_of_amp_is_resumed(tmp_path: Path) -> None:
    """Halved by an overflow, and doubled after three finite updates, the first before the stop."""
    values = torch.randn(5)
    once = amp_optimizer(values, 3)
    amp_updates(once, range(4))
    torch.save(once.state_dict(), tmp_path / "state.pt")
    assert once.scaler.get_scale() == 2
    (stopped,) = (p.detach().clone() for p in once.optimizer.param_groups[0]["params"])
    amp_updates(once, range(4, 7))
    assert once.scaler.get_scale() == 4
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    resumed = amp_optimizer(stopped, 3)
    resumed.load_state_dict(copy.deepcopy(state))
    amp_updates(resumed, range(4, 7))
    assert_identical(resumed.state_dict(), once.state_dict())
    other = amp_optimizer(stopped, 50)
    other.load_state_dict(copy.deepcopy(state))
    assert other.scaler.get_growth_interval() == 50
    without = amp_optimizer(stopped, 3)
    without._grad_scaler = torch.amp.GradScaler("cpu", enabled=False)  # as on a CPU
    without.load_state_dict(copy.deepcopy(state))
    assert "loss_scaler" not in without.state_dict()
