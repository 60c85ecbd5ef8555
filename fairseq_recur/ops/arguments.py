"""The check of tensors that compiled code is about to read."""

from collections.abc import Sequence

import torch
from torch import Tensor


def check_tensors(dtype: torch.dtype, **tensors: tuple[Tensor, Sequence[int]]) -> None:
    """Check tensors before C code or a kernel, which checks nothing, reads their memory.

    Args:
        dtype: of all of them
        tensors: by name, each with the shape that it must have

    Raises:
        ValueError: one has another dtype or shape
    """
    for name, (tensor, shape) in tensors.items():
        if tensor.dtype != dtype or tuple(tensor.size()) != tuple(shape):
            raise ValueError(
                f"{name} is {tensor.dtype} {tuple(tensor.size())}, expected {dtype} "
                f"{tuple(shape)}; convert or reshape it"
            )
