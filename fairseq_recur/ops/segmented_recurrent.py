"""Segmented recurrent attention with a backward pass of its own (Long et al. 2023).

    O_S[t] = softmax(Q_t K_i^T) V_i        x_i = (K^T V - K_i^T V_i) W^T        (eqs. 6, 13, 16)
    O_R[t] = Q_t RAF(x_i) / norm(K)

Nothing with a matrix for each segment stays from the forward to the backward pass, which scans
again, see `segmented_recurrent_backward`. On a CPU the same is done by code in C where it can be
compiled, see `native/segmented_recurrent.c`.

Letters: R = B H rows, one for each head of a sentence; M segments, of which N are steps of the
scan; n queries at each step.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_recur.ops.accumulate_fire import scan_
from fairseq_recur.ops.key_norm import key_norm
from fairseq_recur.ops.native.segmented_recurrent import CompiledSegmentedRecurrent, runs_on
from fairseq_recur.ops.segment_products import Neuron, SegmentSoftmax, Source
from fairseq_recur.ops.segmented_recurrent_backward import Backward


class SegmentedRecurrent(torch.autograd.Function):
    """See `segmented_recurrent`; the arguments with their heads in the rows."""

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
        softmax: SegmentSoftmax,
    ) -> tuple[Tensor, Tensor]:
        """O_S and O_R, (R, N, n, D) each."""
        neuron, steps = Neuron(float(leak), float(threshold)), queries.size(1)
        source = Source(keys, values, weight, rest)
        recurrent, norms = torch.empty_like(queries), None
        if norm != "none":
            norms = torch.cat([key_norm(keys[g].flatten(1, 2), norm) for g in source.groups()])
        for part in source.groups():
            scan_forward(source.of_rows(part), neuron, queries[part], recurrent[part])
        recurrent /= neuron.threshold if norms is None else neuron.threshold * norms.unsqueeze(1)
        weights = softmax.weights(queries, keys[:, :steps])
        local = torch.matmul(softmax.drop(weights), values[:, :steps])
        ctx.save_for_backward(queries, keys, values, weight, norms)
        ctx.neuron, ctx.softmax, ctx.rest = neuron, softmax, rest
        return local, recurrent

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_local: Tensor, grad_recurrent: Tensor) -> tuple[Any, ...]:
        """The gradients of the first six arguments."""
        queries, keys, values, weight, norms = ctx.saved_tensors
        source = Source(keys, values, weight, ctx.rest)
        work = Backward(source, ctx.neuron, ctx.softmax, queries, norms)
        return (*work.run(grad_local, grad_recurrent), None, None, None)


def scan_forward(source: Source, neuron: Neuron, queries: Tensor, out: Tensor) -> None:
    """Q_t relu(mem - thr) for a group of rows, into *out* (R', N, n, D)."""
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
) -> tuple[Tensor, Tensor]:
    """O_S and O_R for queries in blocks, of which block i reads segment i.

    Args:
        queries: (B, H, N, n, D); keys, values: (B, H, M, s, D), zero at padding, with M >= N;
            all in float32 or more
        weight: W (D, D)
        leak, threshold: scalars, the threshold positive
        norm: one of `key_norm.NORMS`
        rest: scan over the rest of the source at each step (eq. 16), or over the segment
            itself (the ablation IV of Table 3)
        mask: (B, 1, N, 1, s), added to the scores of O_S, or None
        dropout: probability of dropping a weight of O_S (0 outside training)
        scale: what the queries are multiplied with
        compiled: use the code in C where there is any for these queries

    Returns:
        (B, H, N, n, D) each
    """
    shape, size = queries.size(), keys.size(3)
    queries, keys, values = (x.flatten(0, 1).contiguous() for x in (queries, keys, values))
    kept = None
    if dropout > 0:
        kept = torch.rand(*queries.size()[:3], size, device=queries.device) >= dropout
    if compiled and runs_on(queries):
        mask = None if mask is None else mask.flatten(0, 1).to(queries.dtype).contiguous()
        form, options = CompiledSegmentedRecurrent, [scale]
    else:
        queries, form, options = queries * scale, SegmentedRecurrent, []
        if mask is not None:
            mask = mask.expand(-1, shape[1], -1, -1, -1).flatten(0, 1)
    local, recurrent = form.apply(
        queries, keys, values, weight, leak, threshold, *options, norm, rest,
        SegmentSoftmax(mask, kept, dropout),
    )  # fmt: skip
    return local.view(shape), recurrent.view(shape)
