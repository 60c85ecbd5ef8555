"""When Triton kernels are used, and with which blocks."""

import logging
import os
from functools import cache
from importlib import import_module

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

OLDEST_DEVICE = (8, 0)
"""Compute capability of the first GPUs with tensor cores for float32 (NVIDIA's Ampere)."""

LARGEST_WIDTH = 128
"""Largest width of a head, D: wider matrices do not fit into a program's registers."""

NEEDS = "it needs a C compiler, Python's headers and a TRITON_CACHE_DIR that it can write to"
"""What Triton itself needs to start kernels."""

SMALLEST_BLOCK = 16
"""Rows and columns of the smallest matrices that tensor cores multiply."""


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on a CPU: for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def obstacle() -> str:
    """Why Triton cannot start kernels, which is logged; empty if it can.

    Before its first kernel, Triton compiles a program with the C compiler and Python's headers.
    """
    try:
        import_module("triton")
        if not interpreted():
            import_module("triton.runtime").driver.active.get_current_target()
    except Exception as error:  # of the import, the compiler, the driver or the cache folder
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        if not isinstance(error, ImportError):
            reason += f"; {NEEDS}"
        logger.info("torch's operations are used in place of Triton kernels: %s", reason)
        return reason
    return ""


def switched_off() -> bool:
    """Whether the environment asks for torch's operations."""
    return os.environ.get("FAIRSEQ_RECUR_TRITON") == "0"


def usable(x: Tensor, widest: int | None = LARGEST_WIDTH, half: bool = False) -> bool:
    """Whether kernels can compute with *x* (..., D), by its device, dtype and width.

    They compute in float32, and with *half* also read half precision. The interpreter also knows
    float64. A graph of torch.compile gets torch's operations.
    """
    if torch.compiler.is_compiling() or switched_off():
        return False
    dtypes = {torch.float32, *((torch.float16, torch.bfloat16) if half else ())}
    if interpreted():
        known = x.device.type == "cpu" and x.dtype in dtypes | {torch.float64}
    else:
        known = x.device.type == "cuda" and x.dtype in dtypes
        known = known and torch.cuda.get_device_capability(x.device) >= OLDEST_DEVICE
    fits = widest is None or x.size(-1) <= widest
    return known and fits and x.numel() > 0 and not obstacle()


def precision() -> str:
    """How ``tl.dot`` multiplies float32: as ``torch.set_float32_matmul_precision`` says.

    ``highest`` is float32 itself. On NVIDIA's tensor cores, ``high`` is three products of
    TensorFloat-32, and ``medium`` one of them. ``torch.backends.cuda.matmul.fp32_precision``
    counts as ``high`` if it is ``tf32``.
    """
    try:
        asked = torch.get_float32_matmul_precision()
    except RuntimeError:  # that attribute was set, which this function does not know
        tf32 = torch.backends.cuda.matmul.fp32_precision == "tf32"
        asked = "high" if tf32 else "highest"
    if torch.version.hip or asked == "highest":
        return "ieee"
    return "tf32x3" if asked == "high" else "tf32"


def block(size: int, largest: int = LARGEST_WIDTH) -> int:
    """The power of two that holds *size* rows or columns, within the limits of a block."""
    return min(largest, max(SMALLEST_BLOCK, 1 << (size - 1).bit_length()))
