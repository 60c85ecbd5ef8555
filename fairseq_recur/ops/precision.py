"""The precision of sums over the source: float32, also in half precision."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """*x* in float32 if it is float16 or bfloat16, otherwise unchanged (float64 stays float64)."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def no_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """A context that disables autocast on the device of *x*."""
    if x.is_meta:  # `fairseq-recur plan` computes shapes on this device; torch.autocast refuses it
        return nullcontext()
    return torch.autocast(device_type=x.device.type, enabled=False)
