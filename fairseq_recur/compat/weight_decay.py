"""Weight decay as each parameter asks for it, in every optimizer and precision."""

import copy
from typing import Any

import torch

from fairseq_recur.compat.registry import Function, mend

weight_decay = mend(
    "weight decay",
    reason="fairseq has one weight decay for all parameters; only its composite optimizer reads "
    "the optim_overrides with which a parameter asks for another",
    until="a fairseq whose optimizers all read optim_overrides",
)

FP16 = "fairseq.optim.fp16_optimizer:FP16Optimizer"


@weight_decay.patch("fairseq.optim:build_optimizer")
def build_optimizer(build: Function, cfg: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
    """Move the parameters that ask for no weight decay into a group without it."""
    optimizer = build(cfg, params, *args, **kwargs)
    if getattr(cfg, "_name", None) != "composite":  # which reads the overrides itself
        _split_exempt(optimizer.optimizer)
    return optimizer


@weight_decay.patch(f"{FP16}.build_optimizer")
def build_fp16_optimizer(build: Function, cfg: Any, params: Any, **kwargs: Any) -> Any:
    """Keep the parameters out of one flat buffer, in which they could not be told apart."""
    from omegaconf import open_dict

    params = list(params)
    if getattr(cfg.optimizer, "weight_decay", 0) and any(map(_asks_for_no_decay, params)):
        cfg = copy.deepcopy(cfg)
        with open_dict(cfg):
            cfg.common.fp16_no_flatten_grads = True
    return build(cfg, params, **kwargs)


@weight_decay.patch(f"{FP16}.build_fp32_params")
def build_fp32_params(build: Function, args: Any, params: Any, flatten: bool = True) -> Any:
    """Copy the overrides to the float32 parameters, which fairseq 0.12.2 does not do."""
    copies = build(args, params, flatten)
    for parameter, own in zip(params, [] if flatten else copies):
        if hasattr(parameter, "optim_overrides"):
            own.optim_overrides = parameter.optim_overrides
    return copies


def _asks_for_no_decay(parameter: torch.nn.Parameter) -> bool:
    overrides = getattr(parameter, "optim_overrides", None) or {}
    return bool(overrides.get("optimizer", {}).get("weight_decay") == 0)


def _split_exempt(optimizer: torch.optim.Optimizer) -> None:
    for group in list(optimizer.param_groups):
        exempt = [p for p in group["params"] if _asks_for_no_decay(p)]
        if not group.get("weight_decay") or not exempt:
            continue
        group["params"] = [p for p in group["params"] if not _asks_for_no_decay(p)]
        optimizer.add_param_group({**group, "params": exempt, "weight_decay": 0.0})
