"""Segmented recurrent attention with a custom backward pass (Long et al. 2023).

    O_S[t] = softmax(Q_t K_i^T) V_i        x_i = (K^T V - K_i^T V_i) W^T        (eqs. 6, 13, 16)
    O_R[t] = Q_t RAF(x_i) / norm(K)

No matrix per segment is kept for the backward pass, which repeats the scan: see
`segmented_recurrent_backward`. On a CPU with a C compiler, `native/segmented_recurrent.c` computes
the same, and on a GPU with Triton, `triton/segmented_recurrent.py`.

Letters: R = B H rows, one per head of a sentence; M segments, of which N are steps of the scan;
n queries per step.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_recur.ops.accumulate_fire import scan_
from fairseq_recur.ops.native.segmented_recurrent import CompiledSegmentedRecurrent, supports
from fairseq_recur.ops.precision import no_autocast
from fairseq_recur.ops.segment_products import Neuron, SegmentSoftmax, SourceTensors
from fairseq_recur.ops.segmented_attention import key_norm
from fairseq_recur.ops.segmented_recurrent_backward import Backward
from fairseq_recur.ops.triton.dispatch import usable
from fairseq_recur.ops.triton.segment_softmax import segment_softmax
from fairseq_recur.ops.triton.segmented_recurrent import fired_sums


class SegmentedRecurrent(torch.autograd.Function):
    """As `segmented_recurrent`, with batch and heads in one dimension, the rows."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        weight: Tensor,
        leak: Tensor,
        threshold: Tensor,
        norm: str,
        rest: bool,
        softmax: SegmentSoftmax | None,
    ) -> tuple[Tensor | None, Tensor]:
        """O_S and O_R, (R, N, n, D) each; O_S is None without *softmax*."""
        neuron, steps = Neuron(leak, threshold), queries.size(1)
        source = SourceTensors(keys, values, weight, rest)
        recurrent, local = torch.empty_like(queries), None
        with no_autocast(queries):  # the buffers have the dtype of the queries
            of_groups = [key_norm(keys[group].flatten(1, 2), norm) for group in source.groups()]
            known = [x for x in of_groups if x is not None]  # none of them if *norm* is "none"
            norms = torch.cat(known) if known else None
            for part in source.groups():
                scan_forward(source.of_rows(part), neuron, queries[part], recurrent[part])
            recurrent /= threshold if norms is None else threshold * norms.unsqueeze(1)
            if softmax is not None:
                weights = softmax.weights(queries, keys[:, :steps])
                local = torch.matmul(softmax.drop(weights), values[:, :steps])
        saved = SegmentSoftmax.parts(softmax)
        ctx.save_for_backward(queries, keys, values, weight, leak, threshold, norms, *saved)
        ctx.rest = rest
        ctx.dropout = None if softmax is None else softmax.dropout
        return local, recurrent

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_local: Tensor | None, grad_recurrent: Tensor) -> tuple[Any, ...]:
        """The gradients of the first six arguments."""
        queries, keys, values, weight, leak, threshold, norms, mask, kept = ctx.saved_tensors
        softmax = None if ctx.dropout is None else SegmentSoftmax(mask, kept, ctx.dropout)
        source = SourceTensors(keys, values, weight, ctx.rest)
        with no_autocast(queries):  # the buffers have the dtype of the queries
            work = Backward(source, Neuron(leak, threshold), softmax, queries, norms)
            return (*work.run(grad_local, grad_recurrent), None, None, None)


def scan_forward(source: SourceTensors, neuron: Neuron, queries: Tensor, out: Tensor) -> None:
    """Write Q_t relu(mem - thr) for a group of rows into *out* (R', N, n, D)."""
    (rows, segments, _, width), steps = source.keys.size(), queries.size(1)
    partial = queries.new_empty(rows, segments, width, width)
    spare = torch.empty_like(partial)
    source.inputs(partial, out=spare)
    inputs, fired = (partial, spare) if source.folds else (spare, partial)
    scan_(inputs[:, :steps], neuron.leak, neuron.threshold, out=fired[:, :steps])
    torch.matmul(queries, fired[:, :steps], out=out)


def segmented_recurrent(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    weight: Tensor,
    leak: Tensor,
    threshold: Tensor,
    norm: str = "key",
    rest: bool = True,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    scale: float = 1.0,
    compiled: bool = True,
    together: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """O_S and O_R for queries in blocks, where block i reads segment i.

    Args:
        queries: (B, H, N, n, D) in float32 or higher
        keys, values: (B, H, M, s, D), zero at padding, with M >= N, in the dtype of *queries*
        weight: W (D, D)
        leak, threshold: scalars, the threshold positive
        norm: one of `segmented_attention.NORMS`
        rest: at each step scan the rest of the source (eq. 16); false: the segment itself
            (ablation IV of Table 3)
        mask: additive (B, 1, N, 1, s), for the scores of O_S, or None
        dropout: probability of dropping a weight of O_S (0 outside training)
        scale: factor of the queries
        compiled: use the C code or the Triton kernels if they support these queries
        together: return O_S + O_R and None; with the Triton kernels it is one pass

    Returns:
        (B, H, N, n, D) each
    """
    shape, size = queries.size(), keys.size(3)
    queries, keys, values = (x.flatten(0, 1).contiguous() for x in (queries, keys, values))
    if compiled and usable(queries):
        queries = queries * scale
        fired = fired_sums(queries, keys, values, weight, leak, threshold, rest)
        divisor = key_norm(keys.flatten(1, 2), norm)  # (R, 1, D), (R, 1, 1) or None
        unit = (threshold if divisor is None else threshold * divisor).reciprocal()
        unit = unit.expand(len(keys), 1, shape[4])
        mask = None if mask is None else mask[:, 0, :, 0].to(queries.dtype)
        terms = (fired, unit.squeeze(1)) if together else (None, None)
        local = segment_softmax(queries, keys, values, mask, shape[1], dropout, *terms).view(shape)
        return local, None if together else (fired * unit.unsqueeze(1)).view(shape)
    kept = None
    if dropout > 0:
        kept = torch.rand(*queries.size()[:3], size, device=queries.device) >= dropout
    form: Any  # torch.autograd.Function.apply has no types
    if compiled and supports(queries):
        mask = None if mask is None else mask.flatten(0, 1).to(queries.dtype).contiguous()
        form, options = CompiledSegmentedRecurrent, [scale]
    else:
        form, options, queries = SegmentedRecurrent, [], queries * scale
        if mask is not None:
            mask = mask.expand(-1, shape[1], -1, -1, -1).flatten(0, 1)
    local, recurrent = form.apply(
        queries, keys, values, weight, leak, threshold, *options, norm, rest,
        SegmentSoftmax(mask, kept, dropout),
    )  # fmt: skip
    local, recurrent = local.view(shape), recurrent.view(shape)
    return (local + recurrent, None) if together else (local, recurrent)


def recurrent_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    weight: Tensor,
    leak: Tensor,
    threshold: Tensor,
    rest: bool = True,
    compiled: bool = True,
) -> Tensor:
    """Q_t RAF(x_i) alone: O_R without norm(K), (B, H, N, n, D); see `segmented_recurrent`."""
    shape = queries.size()
    queries, keys, values = (x.flatten(0, 1).contiguous() for x in (queries, keys, values))
    if compiled and usable(queries):
        found = fired_sums(queries, keys, values, weight, leak, threshold, rest) / threshold
        return found.view(shape)
    c_code = compiled and supports(queries)
    form: Any = CompiledSegmentedRecurrent if c_code else SegmentedRecurrent
    scale = [1.0] if c_code else []
    arguments = queries, keys, values, weight, leak, threshold, *scale, "none", rest, None
    return form.apply(*arguments)[1].view(shape)
