"""Weight decay and learning rate as each parameter asks, in every optimizer and precision.

fairseq has one weight decay and one learning rate for all parameters. Only its composite optimizer
reads the `optim_overrides` with which a parameter asks for others, and of these no weight decay.
Here every other optimizer reads them, and composite is refused.
"""

import copy
from collections.abc import Callable, Hashable, Iterable, Mapping
from itertools import chain
from typing import Any

import torch
from omegaconf import open_dict

from fairseq_recur.compat.registry import Function, extend
from fairseq_recur.errors import ConfigError

LABEL = "settings of parameters"
FP16 = "fairseq.optim.fp16_optimizer:FP16Optimizer"


@extend("fairseq.optim:build_optimizer", LABEL)
def build_optimizer(build: Function, cfg: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
    """Make a group of the parameters that ask for the same settings; the first asks for none.

    Raises:
        ConfigError: the optimizer is composite, and parameters ask for settings
    """
    params = list(params)
    _refuse_composite(cfg, params)
    optimizer = build(cfg, params, *args, **kwargs)
    if getattr(cfg, "_name", None) != "composite":
        for place, parameter in enumerate(optimizer.params):
            parameter.optim_place = place
        _split(optimizer.optimizer)
    return optimizer


@extend(f"{FP16}.build_optimizer", LABEL)
def build_fp16_optimizer(build: Function, cfg: Any, params: Any, **kwargs: Any) -> Any:
    """Keep the parameters out of one flat buffer, in which they could not be told apart."""
    params = list(params)
    _refuse_composite(cfg.optimizer, params)
    decay = bool(getattr(cfg.optimizer, "weight_decay", 0))
    if any((decay and not decays) or scale != 1.0 for decays, scale in map(_asked, params)):
        cfg = copy.deepcopy(cfg)
        with open_dict(cfg):
            cfg.common.fp16_no_flatten_grads = True
    return build(cfg, params, **kwargs)


@extend("fairseq.optim.fairseq_optimizer:FairseqOptimizer.set_lr", LABEL)
def set_lr(_: Function, self: Any, lr: float) -> None:
    """Set the learning rate of each group: what its parameters ask for, also after a resume."""
    for group in self.param_groups:
        group["lr"] = lr * _scale(group)


@extend("fairseq.optim.fairseq_optimizer:FairseqOptimizer.load_state_dict", LABEL)
def load_state_dict(load: Function, self: Any, state_dict: Any, *args: Any, **kwargs: Any) -> None:
    """Load a state with the present groups, or with those that earlier versions made.

    Raises:
        ConfigError: it is that of other groups of parameters
    """
    _regroup(state_dict, self.param_groups)
    load(self, state_dict, *args, **kwargs)
    for group in self.param_groups:  # --optimizer-overrides sets the weight decay of all groups
        if group["params"] and not _asked(group["params"][0])[0]:
            group["weight_decay"] = 0.0


Settings = tuple[bool, float]
"""Whether a parameter has weight decay, and the factor of its learning rate."""


def _asked(parameter: torch.nn.Parameter) -> Settings:
    overrides = getattr(parameter, "optim_overrides", None) or {}
    asked = overrides.get("optimizer", {})
    return asked.get("weight_decay") != 0, asked.get("lr_scale", 1.0)


def _scale(group: Mapping[str, Any]) -> float:
    """The factor of a group's learning rate."""
    return _asked(group["params"][0])[1] if group["params"] else 1.0


def _refuse_composite(cfg: Any, params: Iterable[torch.nn.Parameter]) -> None:
    if getattr(cfg, "_name", None) != "composite":
        return
    decay = any(group["optimizer"].get("weight_decay") for group in cfg.groups.values())
    asked = [(decays or not decay, scale) for decays, scale in map(_asked, params)]
    asking = sum(one != (True, 1.0) for one in asked)
    if asking:
        raise ConfigError(
            f"--optimizer composite: {asking} parameters ask for no weight decay (as those of RSA) "
            "or a learning rate of their own (--recurrence-lr-scale), which it does not give "
            "them; use another optimizer, such as --optimizer adam"
        )


def _alike(
    parameters: Iterable[torch.nn.Parameter], key: Callable[[Settings], Hashable]
) -> dict[Hashable, list[torch.nn.Parameter]]:
    """The parameters by a key of what they ask for; first, if empty, those that ask for nothing."""
    found: dict[Hashable, list[torch.nn.Parameter]] = {key((True, 1.0)): []}
    for parameter in parameters:
        found.setdefault(key(_asked(parameter)), []).append(parameter)
    return found


def _split(optimizer: torch.optim.Optimizer) -> None:
    """Make the groups, also without weight decay: a resumed training may have one."""
    for group in list(optimizer.param_groups):
        (_, group["params"]), *others = _alike(group["params"], lambda asked: asked).items()
        for _, parameters in others:
            changed = {} if _asked(parameters[0])[0] else {"weight_decay": 0.0}
            optimizer.add_param_group({**group, "params": parameters, **changed})


def _regroup(state: dict[str, Any], groups: list[dict[str, Any]]) -> None:
    """Give a saved state the present groups; without weight decay, there once were fewer."""
    saved = state["param_groups"]
    sizes, expected = ([len(group["params"]) for group in each] for each in (saved, groups))
    if sizes == expected:
        return
    parameters = [parameter for group in groups for parameter in group["params"]]
    in_order = sorted(parameters, key=lambda p: getattr(p, "optim_place", 0))
    earlier = _alike(in_order, lambda asked: asked[1])
    if sizes != [len(alike) for alike in earlier.values()]:
        raise ConfigError(
            f"the checkpoint's optimizer has groups of {sizes} parameters, expected {expected}; "
            "give the options that it was saved with, such as --weight-decay with --fp16 and "
            "--recurrence-lr-scale, or --reset-optimizer"
        )
    numbers = dict(zip(chain(*earlier.values()), chain(*(group["params"] for group in saved))))
    values, settings = state["state"], dict(zip(earlier, saved))
    state["state"] = {
        place: values[numbers[parameter]]
        for place, parameter in enumerate(parameters)
        if numbers[parameter] in values
    }
    places = iter(range(len(parameters)))
    state["param_groups"] = [
        {**settings[_scale(group)], "params": [next(places) for _ in group["params"]]}
        for group in groups
    ]
