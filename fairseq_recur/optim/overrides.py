"""Weight decay and learning rate as each parameter asks, in every optimizer and precision.

fairseq has one weight decay and one learning rate for all parameters. Only its composite optimizer
reads the `optim_overrides` with which a parameter asks for others; here every optimizer does.
"""

import copy
from typing import Any

import torch
from omegaconf import open_dict

from fairseq_recur.compat.registry import Function, extend

LABEL = "settings of parameters"
FP16 = "fairseq.optim.fp16_optimizer:FP16Optimizer"


@extend("fairseq.optim:build_optimizer", LABEL)
def build_optimizer(build: Function, cfg: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
    """Make a group of the parameters that ask for the same settings; the first asks for none."""
    optimizer = build(cfg, params, *args, **kwargs)
    if getattr(cfg, "_name", None) != "composite":  # which reads the overrides itself
        _split(optimizer.optimizer)
    return optimizer


@extend(f"{FP16}.build_optimizer", LABEL)
def build_fp16_optimizer(build: Function, cfg: Any, params: Any, **kwargs: Any) -> Any:
    """Keep the parameters out of one flat buffer, in which they could not be told apart."""
    params = list(params)
    decay = bool(getattr(cfg.optimizer, "weight_decay", 0))
    if any((decay and not decays) or scale != 1.0 for decays, scale in map(_asked, params)):
        cfg = copy.deepcopy(cfg)
        with open_dict(cfg):
            cfg.common.fp16_no_flatten_grads = True
    return build(cfg, params, **kwargs)


@extend(f"{FP16}.build_fp32_params", LABEL)
def build_fp32_params(build: Function, args: Any, params: Any, flatten: bool = True) -> Any:
    """Copy the overrides to the float32 parameters, which fairseq 0.12.2 does not do."""
    copies = build(args, params, flatten)
    for parameter, own in zip(params, [] if flatten else copies):
        if hasattr(parameter, "optim_overrides"):
            own.optim_overrides = parameter.optim_overrides
    return copies


@extend("fairseq.optim.fairseq_optimizer:FairseqOptimizer.set_lr", LABEL)
def set_lr(_: Function, self: Any, lr: float) -> None:
    """Set the learning rate of each group: what its parameters ask for, also after a resume."""
    for group in self.param_groups:
        group["lr"] = lr * (_asked(group["params"][0])[1] if group["params"] else 1.0)


Settings = tuple[bool, float]
"""Whether a parameter has weight decay, and the factor of its learning rate."""


def _asked(parameter: torch.nn.Parameter) -> Settings:
    overrides = getattr(parameter, "optim_overrides", None) or {}
    asked = overrides.get("optimizer", {})
    return asked.get("weight_decay") != 0, asked.get("lr_scale", 1.0)


def _split(optimizer: torch.optim.Optimizer) -> None:
    for group in list(optimizer.param_groups):
        decay = bool(group.get("weight_decay"))
        alike: dict[Settings, list[torch.nn.Parameter]] = {(decay, 1.0): []}
        for parameter in group["params"]:
            decays, scale = _asked(parameter)
            alike.setdefault((decay and decays, scale), []).append(parameter)
        (_, group["params"]), *others = alike.items()
        for (decays, _), parameters in others:
            changed = {} if decays == decay else {"weight_decay": 0.0}
            optimizer.add_param_group({**group, "params": parameters, **changed})
