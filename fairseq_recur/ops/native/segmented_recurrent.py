"""Segmented recurrent attention in C: `segmented_recurrent.c` as a torch function.

Letters as in `ops/segmented_recurrent.py`.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_recur.ops.arguments import check_tensors
from fairseq_recur.ops.native.build import library
from fairseq_recur.ops.segment_products import SegmentSoftmax
from fairseq_recur.ops.segmented_attention import SMALLEST_NORM, norm_of_squares

NAME = "segmented_recurrent"
LANES = 16
"""The head width must be a multiple of this."""

_INTEGERS = "rows heads segments steps size room width rest local_too"
_NUMBERS = "scale leak threshold kept_scale"
_FORWARD = "queries keys values weight mask kept scratch"
_SIZES = "threads scratch_size"
_REST = (
    "local recurrent squares grad_local grad_recurrent unit along_keys grad_queries grad_keys "
    "grad_values grad_weight grad_leak"
)


class Job(ctypes.Structure):
    """The arguments of the C functions, which the C file describes."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in _INTEGERS.split()),
        *((name, ctypes.c_double) for name in _NUMBERS.split()),
        *((name, ctypes.c_void_p) for name in _FORWARD.split()),
        *((name, ctypes.c_int64) for name in _SIZES.split()),
        *((name, ctypes.c_void_p) for name in _REST.split()),
        ("sum_along", ctypes.c_int64),
    ]

    def put(self, **tensors: Tensor | None) -> None:
        """Set pointers to contiguous tensors, which must stay alive during `run`.

        Raises:
            ValueError: a tensor is not contiguous, or not in CPU memory
        """
        for name, tensor in tensors.items():
            if tensor is not None:
                if not tensor.is_contiguous() or tensor.device.type != "cpu":
                    raise ValueError(f"{name}: expected a contiguous tensor in CPU memory")
                setattr(self, name, tensor.data_ptr())

    def run(self, name: str, example: Tensor) -> None:
        """Call a C function with scratch memory in the dtype of *example*."""
        functions: Any = library(NAME, example.dtype)
        functions.scratch_size.restype = ctypes.c_int64
        backward = ctypes.c_int64(name == "backward")
        self.scratch_size = functions.scratch_size(ctypes.byref(self), backward)
        scratch = example.new_empty(self.threads, self.scratch_size)
        self.put(scratch=scratch)
        getattr(functions, name)(ctypes.byref(self))


def supports(queries: Tensor) -> bool:
    """Whether compiled code is available for queries of this device, dtype and width."""
    known = queries.device.type == "cpu" and queries.dtype in (torch.float32, torch.float64)
    known = known and queries.size(-1) % LANES == 0 and queries.numel() > 0
    return known and library(NAME, queries.dtype) is not None


class CompiledSegmentedRecurrent(torch.autograd.Function):
    """As `ops.segmented_recurrent.SegmentedRecurrent`, for unscaled queries and their *scale*.

    The mask is (B, N, 1, s), shared by all heads of a sentence.
    """

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        weight: Tensor,
        leak: Tensor,
        threshold: Tensor,
        scale: float,
        norm: str,
        rest: bool,
        softmax: SegmentSoftmax | None,
    ) -> tuple[Tensor | None, Tensor]:
        """O_S and O_R, (R, N, n, D) each; O_S is None without *softmax*."""
        weight = weight.contiguous()
        recurrent = torch.empty_like(queries)
        local = None if softmax is None else torch.empty_like(queries)
        squares = keys.new_empty(keys.size(0), keys.size(3))
        options = scale, float(leak), float(threshold), rest
        job = new_job(queries, keys, values, weight, *options, softmax)
        job.put(local=local, recurrent=recurrent, squares=squares)
        job.run("forward", queries)
        norms = norm_of_squares(squares, norm)
        unit = torch.full_like(squares, scale / options[2])
        if norms is not None:
            unit /= norms
        recurrent *= unit[:, None, None]
        ctx.options, ctx.norm = options, norm
        ctx.dropout = None if softmax is None else softmax.dropout
        saved = SegmentSoftmax.parts(softmax)
        ctx.save_for_backward(queries, keys, values, weight, unit, norms, *saved)
        return local, recurrent

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_local: Tensor | None, grad_recurrent: Tensor) -> tuple[Any, ...]:
        """The gradients of the first six arguments."""
        queries, keys, values, weight, unit, norms, mask, kept = ctx.saved_tensors
        softmax = None if ctx.dropout is None else SegmentSoftmax(mask, kept, ctx.dropout)
        options: tuple[float, float, float, bool] = ctx.options
        grads = [torch.empty_like(x) for x in (queries, keys, values)]
        job = new_job(queries, keys, values, weight, *options, softmax)
        along = None
        if norms is not None:
            along = (-(norms**-2)).masked_fill(norms <= SMALLEST_NORM, 0.0)
            along = along.expand_as(unit).contiguous()
        job.sum_along = ctx.norm == "frobenius"
        grad_weight = weight.new_zeros(job.threads, *weight.size())
        grad_leak = weight.new_zeros(job.threads)
        grad_local = None if grad_local is None else grad_local.contiguous()
        grad_recurrent = grad_recurrent.contiguous()
        job.put(
            grad_local=grad_local, grad_recurrent=grad_recurrent, unit=unit, along_keys=along,
            grad_queries=grads[0], grad_keys=grads[1], grad_values=grads[2],
            grad_weight=grad_weight, grad_leak=grad_leak,
        )  # fmt: skip
        job.run("backward", queries)
        grad_weight = grad_weight.sum(0)
        # O_R does not change when W and thr are scaled by the same factor (Euler's theorem).
        grad_threshold = -(weight * grad_weight).sum() / options[2]
        return (*grads, grad_weight, grad_leak.sum(), grad_threshold, None, None, None, None)


def new_job(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    weight: Tensor,
    scale: float,
    leak: float,
    threshold: float,
    rest: bool,
    softmax: SegmentSoftmax | None,
) -> Job:
    """The arguments that forward and backward pass share.

    Raises:
        ValueError: a tensor has another shape or dtype than the C code reads
    """
    (rows, steps, room, width), (_, segments, size, _) = queries.size(), keys.size()
    none = softmax is None
    softmax = softmax or SegmentSoftmax(None, None, 0.0)
    mask, kept = softmax.mask, softmax.kept
    check_tensors(
        queries.dtype, keys=(keys, (rows, segments, size, width)),
        values=(values, keys.size()), weight=(weight, (width, width)),
    )  # fmt: skip
    if steps > segments:
        raise ValueError(f"the queries have {steps} steps, expected at most {segments}; give fewer")
    if mask is not None:
        sentences = mask.size(0)
        if sentences == 0 or rows % sentences:
            raise ValueError(f"mask has {sentences} sentences, expected a divisor of {rows} rows")
        check_tensors(queries.dtype, mask=(mask, (sentences, steps, 1, size)))
    if kept is not None:
        check_tensors(torch.bool, kept=(kept, (rows, steps, room, size)))
    job = Job(
        rows=rows, heads=1 if mask is None else rows // mask.size(0), segments=segments,
        steps=steps, size=size, room=room, width=width, rest=rest, local_too=not none,
        scale=scale, leak=leak,
        threshold=threshold, kept_scale=softmax.kept_scale,
        threads=min(rows, torch.get_num_threads()),
    )  # fmt: skip
    job.put(queries=queries, keys=keys, values=values, weight=weight, mask=mask, kept=kept)
    return job
