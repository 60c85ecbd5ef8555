"""``--optimizer adamw_fused``: torch's fused AdamW, with the flags of fairseq's ``adam``.

fairseq's own Adam is a Python loop over the parameters. torch's fused kernel computes the same
update for all of them at once, on CPU and CUDA, with one difference: torch adds ``--adam-eps``
after the bias correction, fairseq before it.
"""

import ast
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from omegaconf import II
from torch.optim.adamw import adamw

from fairseq_recur.errors import ConfigError

LOW_PRECISION = (torch.float16, torch.bfloat16)


@dataclass
class FusedAdamWConfig(FairseqDataclass):
    """The flags of ``--optimizer adamw_fused``."""

    adam_betas: Any = field(
        default=(0.9, 0.999),
        metadata={
            "help": "decay rates of the two averages, such as '(0.9, 0.98)' (default: (0.9, 0.999))"
        },
    )
    adam_eps: float = field(
        default=1e-8,
        metadata={"help": "added to the denominator after the bias correction (default: 1e-8)"},
    )
    weight_decay: float = field(
        default=0.0, metadata={"help": "decoupled weight decay, as in AdamW (default: 0)"}
    )
    lr: list[float] = II("optimization.lr")


class FusedAdamW(torch.optim.AdamW):
    """torch's fused AdamW, with float32 averages for half-precision parameters.

    torch itself keeps averages in the parameters' dtype, where bfloat16 averages stop moving:
    ``0.999 v + 0.001 g^2`` rounds back to v.
    """

    supports_memory_efficient_fp16 = True
    supports_flat_params = True

    def __init__(self, params: Iterable[Any], **settings: Any) -> None:
        super().__init__(params, fused=True, **settings)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; return the result of ``closure``."""
        parameters = [p for group in self.param_groups for p in group["params"]]
        if not any(p.dtype in LOW_PRECISION for p in parameters):
            return super().step(closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._step_in_float32(p, p.grad.float(), group)
        return loss

    def _step_in_float32(
        self, p: torch.nn.Parameter, grad: torch.Tensor, group: dict[str, Any]
    ) -> None:
        weight, state = p.float(), self.state[p]
        if not state:
            state["step"] = torch.zeros((), device=p.device)
            state["exp_avg"] = torch.zeros_like(weight)
            state["exp_avg_sq"] = torch.zeros_like(weight)
        for name, value in state.items():  # a resumed state arrives on the CPU
            state[name] = value.to(device=p.device, dtype=torch.float32)
        adamw(
            [weight],
            [grad],
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [],
            [state["step"]],
            fused=True,
            amsgrad=False,
            maximize=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
        )
        p.copy_(weight)


def _require_kernel(dtype: torch.dtype, device: torch.device) -> None:
    """Take one step with one value: only then torch reports a missing kernel."""
    try:
        probe = torch.nn.Parameter(torch.zeros(1, dtype=dtype, device=device))
        probe.grad = torch.zeros_like(probe)
        FusedAdamW([probe]).step()
    except RuntimeError as error:
        raise ConfigError(
            f"--optimizer adamw_fused: this torch has no fused kernel for {dtype} "
            f"on {device.type} ({error}). Use --optimizer adam"
        ) from error


@register_optimizer("adamw_fused", dataclass=FusedAdamWConfig)
class FairseqFusedAdamW(FairseqOptimizer):
    """fairseq's wrapper of `FusedAdamW`.

    Raises:
        ConfigError: torch has no fused kernel for the parameters' device or dtype,
            ``--adam-betas`` is not a pair of numbers in [0, 1), or another setting is negative
            or not finite.
    """

    def __init__(self, cfg: FusedAdamWConfig, params: Iterable[Any]) -> None:
        super().__init__(cfg)
        params = list(params)
        tensors = [p for g in params for p in (g["params"] if isinstance(g, dict) else [g])]
        for dtype, device in dict.fromkeys((p.dtype, p.device) for p in tensors):
            _require_kernel(dtype, device)
        self._optimizer = FusedAdamW(params, **self.optimizer_config)

    @property
    def optimizer_config(self) -> dict[str, Any]:
        """The settings of torch's optimizer. A training that resumes keeps those it began with."""
        betas = self.cfg.adam_betas
        numbers = {"--lr": self.learning_rate(), "--adam-eps": self.cfg.adam_eps}
        numbers["--weight-decay"] = self.cfg.weight_decay
        wrong = [f"{flag} {x}" for flag, x in numbers.items() if not 0 <= x < math.inf]
        if wrong:
            raise ConfigError(f"{', '.join(wrong)}: expected finite numbers of at least 0")
        if isinstance(betas, str):
            try:
                betas = ast.literal_eval(betas)
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                betas = ()
        betas = tuple(betas) if isinstance(betas, Collection) else ()
        if len(betas) != 2 or not all(isinstance(b, (int, float)) and 0 <= b < 1 for b in betas):
            raise ConfigError(
                f"--adam-betas {self.cfg.adam_betas}: expected two numbers, at least 0 and below "
                '1, such as "(0.9, 0.98)"'
            )
        return {
            "lr": numbers["--lr"],
            "betas": betas,
            "eps": self.cfg.adam_eps,
            "weight_decay": self.cfg.weight_decay,
        }

    def learning_rate(self) -> float:
        """Return the first learning rate; the scheduler sets those of later epochs."""
        rates = self.cfg.lr
        if not isinstance(rates, Sequence):
            return rates
        if not rates:
            raise ConfigError("--lr: found no number, expected one or several, comma-separated")
        return rates[0]

    def average_params(self) -> None:
        """Refuse ``--use-bmuf``, which averages the optimizer's state across processes."""
        raise ConfigError("--use-bmuf does not work with adamw_fused. Use --optimizer adam")
