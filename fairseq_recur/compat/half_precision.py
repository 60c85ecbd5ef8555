"""What a training in half precision has beside its parameters: float32 copies, a loss scale."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_recur.compat.registry import Function, mend, source_of

FLOAT32_COPIES = "fairseq.optim.fp16_optimizer:FP16Optimizer.build_fp32_params"

float32_copies = mend(
    "settings of parameters in float16",
    reason="with --fp16 the optimizer has float32 copies of the parameters, which lack what the "
    "parameters ask of it, such as no weight decay",
    until="fairseq newer than 0.12.2",
    needed=lambda: "optim_overrides" not in source_of(FLOAT32_COPIES),
)


@float32_copies.patch(FLOAT32_COPIES)
def build_fp32_params(build: Function, args: Any, params: Any, flatten: bool = True) -> Any:
    """Give each copy what its parameter asks for; one flat buffer for all has nothing of it."""
    copies = build(args, params, flatten)
    for parameter, own in zip(params, [] if flatten else copies):
        if hasattr(parameter, "optim_overrides"):
            own.optim_overrides = parameter.optim_overrides
    return copies


KEPT = "half_precision"
"""What `state_dict` adds."""

COUNTS = ("_iter", "_last_overflow_iter", "_last_rescale_iter", "_overflows_since_rescale")
"""What the loss scaler of --fp16 counts."""

OPTIMIZER = "fairseq.optim.fp16_optimizer:_FP16OptimizerMixin"
MEMORY_EFFICIENT = "fairseq.optim.fp16_optimizer:_MemoryEfficientFP16OptimizerMixin"

over_a_resume = mend(
    "half precision over a resume",
    reason="with --fp16 and --bf16 a checkpoint has only the rounded parameters. A training that "
    "is resumed has lost what its float32 copies had beyond them; and the loss scaler, also that "
    "of --memory-efficient-fp16, begins to count anew",
    until="a fairseq that keeps the float32 parameters and the counts in the checkpoint",
)


def copies_of(optimizer: Any) -> Sequence[Tensor]:
    """Return the copies: one of each parameter, one flat one of all on each device, or none."""
    found = getattr(optimizer, "fp32_params", [])
    return list(found.values()) if isinstance(found, dict) else list(found)


@over_a_resume.patch(f"{OPTIMIZER}.state_dict")
@over_a_resume.patch(f"{MEMORY_EFFICIENT}.state_dict")
def state_dict(state: Function, self: Any) -> dict[str, Any]:
    """Add the copies, and the counts of the loss scaler."""
    counts = {} if self.scaler is None else {name: getattr(self.scaler, name) for name in COUNTS}
    copies = [copy.detach() for copy in copies_of(self)]
    return {**state(self), KEPT: {"copies": copies, "counts": counts}}


def restore(own: Sequence[Tensor], saved: Sequence[Tensor], half: torch.dtype) -> None:
    """Copy in place each saved copy of which rounding makes the same parameter."""
    with torch.no_grad():
        for mine, copy in zip(own, saved):
            there = copy.to(mine.device)  # one at a time: together they are as large as the model
            if there.to(half).equal(mine.to(half)):
                mine.copy_(there)


@over_a_resume.patch(f"{OPTIMIZER}.load_state_dict")
@over_a_resume.patch(f"{MEMORY_EFFICIENT}.load_state_dict")
def load_state_dict(
    load: Function, self: Any, state: dict[str, Any], optimizer_overrides: Any = None
) -> None:
    """Restore them. Copies of other parameters, which round to other values, are left out."""
    kept = state.get(KEPT, {"copies": [], "counts": {}})
    load(self, {k: v for k, v in state.items() if k != KEPT}, optimizer_overrides)
    restore(copies_of(self), kept["copies"], torch.bfloat16 if self.scaler is None else torch.half)
    if self.scaler is not None:
        vars(self.scaler).update(kept["counts"])


AMP_OPTIMIZER = "fairseq.optim.amp_optimizer:AMPOptimizer"
SCALER = "loss_scaler"
"""What `state_dict_of_amp` adds."""

amp_over_a_resume = mend(
    "loss scale of amp over a resume",
    reason="with --amp a checkpoint does not hold the loss scale. A training that is resumed on a "
    "GPU begins with --fp16-init-scale again, and repeats updates until the gradients are finite",
    until="a fairseq that keeps the state of the GradScaler in the checkpoint",
)


@amp_over_a_resume.patch(f"{AMP_OPTIMIZER}.state_dict")
def state_dict_of_amp(state: Function, self: Any) -> dict[str, Any]:
    """Add the loss scale, and how many updates it has been finite; nothing on a CPU."""
    kept = {SCALER: self.scaler.state_dict()} if self.scaler.is_enabled() else {}
    return {**state(self), **kept}


@amp_over_a_resume.patch(f"{AMP_OPTIMIZER}.load_state_dict")
def load_state_dict_of_amp(
    load: Function, self: Any, state: dict[str, Any], optimizer_overrides: Any = None
) -> None:
    """Restore them; the interval of growth is the one that is given now."""
    load(self, {k: v for k, v in state.items() if k != SCALER}, optimizer_overrides)
    if SCALER in state and self.scaler.is_enabled():
        interval = self.scaler.get_growth_interval()
        self.scaler.load_state_dict({**state[SCALER], "growth_interval": interval})
