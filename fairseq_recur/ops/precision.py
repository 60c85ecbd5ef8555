"""Which arithmetic sums over the source: float32, also in half precision."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """*x* in float32 if it is float16 or bfloat16, else unchanged (float64 stays float64)."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def no_autocast(x: Tensor) -> AbstractContextManager:
    """A context in which autocast leaves the arithmetic on *x*'s device alone."""
    if x.is_meta:  # shapes without numbers, as `fairseq-recur plan` computes: torch refuses them
        return nullcontext()
    return torch.autocast(device_type=x.device.type, enabled=False)
