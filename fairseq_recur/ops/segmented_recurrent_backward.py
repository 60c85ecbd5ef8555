"""The backward pass of segmented recurrent attention.

It repeats the scan and needs two D x D matrices per segment. They use the memory of the gradients
of K and V, s D numbers per segment each, until these gradients are computed. Hence it needs little
more memory than full attention. Where s < D the matrices do not fit. Then W is folded into V, one
matrix is enough, and groups of rows share one buffer.

With dP_i the gradient of P_i = sum_j K_j^T V_j - K_i^T V_i and E_i = sum_j dP_j - dP_i:

    dK_i = V_i E_i^T        dV_i = K_i E_i        dW = sum_i dx_i^T P_i

Letters as in `segmented_recurrent`.
"""

import torch
from torch import Tensor

from fairseq_recur.ops.accumulate_fire import scan_
from fairseq_recur.ops.segment_products import (
    GROUPS,
    Neuron,
    SegmentSoftmax,
    SourceTensors,
    add_bmm,
    bmm,
)
from fairseq_recur.ops.segmented_attention import SMALLEST_NORM

where_fired = torch.ops.aten.threshold_backward.grad_input
"""(x, fired, 0, grad_input=x): set x to 0 where *fired* is not positive, in one pass."""


class Backward:
    """The gradients of Q, K, V, W, leak and threshold.

    Args:
        source, neuron, softmax: as in the forward pass; no softmax if O_S is not wanted
        queries: (R, N, n, D)
        norms: norm(K), (R, 1, D or 1), or None
    """

    def __init__(
        self,
        source: SourceTensors,
        neuron: Neuron,
        softmax: SegmentSoftmax | None,
        queries: Tensor,
        norms: Tensor | None,
    ) -> None:
        self.source, self.neuron, self.softmax = source, neuron, softmax
        self.queries, self.norms = queries, norms
        self.grad_queries, self.grad_keys, self.grad_values, self.grad_weight = (
            torch.empty_like(x) for x in (queries, source.keys, source.values, source.weight)
        )
        self.grad_leak = queries.new_zeros(())
        self.grad_weight.zero_()

    def run(self, grad_local: Tensor | None, grad_recurrent: Tensor) -> tuple[Tensor, ...]:
        """The six gradients, given those of O_S and O_R, (R, N, n, D) each."""
        for part in self.source.groups():
            group = self.source.of_rows(part)
            spaces = self.buffers(group, part)
            norm_factor = self.recurrence(group, part, grad_recurrent[part], *spaces)
            self.products(group, part, *spaces, norm_factor)
            if self.softmax is not None and grad_local is not None:
                self.softmaxes(part, self.softmax.of_rows(part), grad_local[part])
        # O_R does not change when W and thr are scaled by the same factor (Euler's theorem).
        along_weight = (self.source.weight * self.grad_weight).sum()
        self.grad_threshold = -along_weight / self.neuron.threshold
        return (
            self.grad_queries, self.grad_keys, self.grad_values, self.grad_weight,
            self.grad_leak, self.grad_threshold,
        )  # fmt: skip

    def buffers(self, group: SourceTensors, part: slice) -> tuple[Tensor, Tensor]:
        """Memory for P_i and for x_i, (R', M, D, D) each; one tensor twice where W is folded in."""
        rows, segments, _, width = group.keys.size()
        if group.folds:
            space = group.keys.new_empty(rows, segments, width, width)
            return space, space
        used = rows * segments * width**2
        keys, values = (
            grad[part].view(-1)[:used].view(rows, segments, width, width)
            for grad in (self.grad_keys, self.grad_values)
        )
        return keys, values

    def recurrence(
        self, group: SourceTensors, part: slice, grad: Tensor, partial: Tensor, inputs: Tensor
    ) -> Tensor | None:
        """The gradients of Q, W, leak and threshold through the neurons; leaves dP_i in *partial*.

        Args:
            group, part: the rows
            grad: gradient of O_R, (R', N, n, D)
            partial, inputs: buffers for P_i and x_i

        Returns:
            the factor of K in its gradient through norm(K), (R', 1, 1, D or 1), or None
        """
        steps, threshold = self.queries.size(1), self.neuron.threshold
        group.inputs(partial, out=inputs)
        states = inputs[:, :steps]
        scan_(states, self.neuron.leak, threshold)
        scale = threshold.to(grad.dtype).reciprocal().view(1, 1, 1)
        if self.norms is not None:
            scale = scale / self.norms[part]
        along = self.scan_back(self.queries[part], grad, scale, states, self.grad_queries[part])
        inputs[:, steps:] = 0
        if not group.folds:
            dx, p = inputs.flatten(1, 2), partial.flatten(1, 2)
            self.grad_weight += torch.bmm(dx.transpose(1, 2), p).sum(0)
            torch.mm(dx.flatten(0, 1), group.weight, out=p.flatten(0, 1))
        if self.norms is None:
            return None
        norm = self.norms[part]
        along = along if norm.size(-1) > 1 else along.sum(-1, keepdim=True)
        return (-along / norm**2).masked_fill(norm <= SMALLEST_NORM, 0.0).unsqueeze(1)

    def scan_back(
        self, queries: Tensor, grad: Tensor, scale: Tensor, states: Tensor, grad_queries: Tensor
    ) -> Tensor:
        """Backpropagation through time; replaces the memory by dx_i.

        Args:
            queries: (R', N, n, D)
            grad: gradient of O_R, (R', N, n, D)
            scale: 1 / (thr norm(K)), (R', 1, D or 1), or (1, 1, 1)
            states: the memory before its reset, (R', N, D, D)
            grad_queries: receives the gradient of Q

        Returns:
            sum_t grad[t] O_R[t], (R', 1, D)
        """
        leak, threshold = self.neuron.leak, self.neuron.threshold
        fired, spare, along, decay = (torch.zeros_like(states[:, 0]) for _ in range(4))
        carried = torch.zeros_like(fired)
        for step in reversed(range(states.size(1))):
            state, asked, of_step = states[:, step], queries[:, step], grad[:, step] * scale
            torch.sub(state, threshold, out=fired).relu_()
            if step < states.size(1) - 1:
                reset = torch.sub(state, torch.sign(fired, out=spare).mul_(threshold), out=spare)
                decay.addcmul_(reset, carried)
            grad_queries[:, step] = torch.bmm(of_step, fired.transpose(1, 2))
            fresh = torch.bmm(asked.transpose(1, 2), of_step, out=spare)
            where_fired(fresh, fired, 0, grad_input=fresh)
            along.addcmul_(fresh, fired)
            carried = torch.addcmul(fresh, carried, leak, out=state)
        self.grad_leak += decay.sum()
        return along.sum(1, keepdim=True)

    def products(
        self,
        group: SourceTensors,
        part: slice,
        partial: Tensor,
        product: Tensor,
        factor: Tensor | None,
    ) -> None:
        """The gradients of K and V through O_R, and the gradient of W where it is folded in.

        Args:
            group, part: the rows
            partial: dP_i, (R', M, D, D), possibly in the memory of the gradients of K
            product: buffer for E_i, possibly in the memory of the gradients of V
            factor: from `recurrence`
        """
        if group.rest:
            torch.sub(partial.sum(1, keepdim=True), partial, out=product)
        elif product is not partial:
            product.copy_(partial)
        grad_keys = bmm(group.values, product.transpose(2, 3), out=self.grad_keys[part])
        if factor is not None:
            grad_keys.addcmul_(group.keys, factor)
        # From the last rows to the first, so that no row is overwritten before it is read.
        rows, width = len(product), product.size(-1)
        at_once = -(-rows // GROUPS)
        for first in reversed(range(0, rows, at_once)):
            some = slice(first, first + at_once)
            grad_values = bmm(group.keys[some], product[some])
            if group.folds:
                unfolded = self.source.values[part][some].view(-1, width)
                self.grad_weight.addmm_(grad_values.view(-1, width).t(), unfolded)
                grad_values = torch.matmul(grad_values, group.weight)
            self.grad_values[part][some] = grad_values.view_as(group.keys[some])

    def softmaxes(self, some: slice, softmax: SegmentSoftmax, grad: Tensor) -> None:
        """Add the gradients of Q, K and V through O_S, given that of O_S, (R', N, n, D)."""
        steps = self.queries.size(1)
        queries = self.queries[some]
        keys, values = (x[some, :steps] for x in (self.source.keys, self.source.values))
        weights = softmax.weights(queries, keys)
        grad_weights = softmax.drop(torch.matmul(grad, values.transpose(2, 3)))
        grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
        self.grad_queries[some] += torch.matmul(grad_scores, keys)
        add_bmm(self.grad_keys[some, :steps], grad_scores.transpose(2, 3), queries)
        add_bmm(self.grad_values[some, :steps], softmax.drop(weights).transpose(2, 3), grad)
