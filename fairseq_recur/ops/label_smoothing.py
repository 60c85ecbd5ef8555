"""The label-smoothed cross-entropy with one tensor of the logits' size: its gradient.

fairseq's form makes four: the logarithmic softmax and, in the backward pass, the gradient of the
likelihood, its sum with that of the smoothing, and the gradient of the logits. Here rows are read
in blocks that fit into a cache, and the gradient is computed with the loss, from the same
exponentials. torch's `linear_cross_entropy` (torch 2.13) saves the logits, too, but it takes the
hidden states, which fairseq's criterions do not get, and returns no likelihood besides the loss.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_recur.ops.precision import at_least_float32

BLOCK = {"cpu": 2**19, "cuda": 2**26}
"""Logits that are processed at once: 2 MiB in a CPU's cache; on a GPU enough for all its cores."""


def label_smoothed_loss(
    logits: Tensor, target: Tensor, epsilon: float, padding: int
) -> tuple[Tensor, Tensor]:
    """Sum the label-smoothed cross-entropy over all tokens but the padding.

    The target word has the weight 1 - epsilon, and every other word epsilon / (V - 1).

    Args:
        logits: (N, V)
        target: (N), int64
        epsilon: weight of all other words together, from 0 to 1
        padding: the index of the padding, which does not count

    Returns:
        The loss, and the negative log-likelihood, which has no gradient: scalars, at least
        float32.
    """
    return _Loss.apply(logits, target, epsilon, padding)  # type: ignore[no-untyped-call]


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, epsilon: float, padding: int
    ) -> tuple[Tensor, Tensor]:
        words = logits.size(-1)
        other = epsilon / (words - 1)
        # float16 would lose small probabilities before the loss scale is applied.
        ctx.dtype = logits.dtype
        precise = torch.float32 if ctx.dtype == torch.float16 else ctx.dtype
        gradient = torch.empty_like(logits, dtype=precise) if ctx.needs_input_grad[0] else None
        sums = at_least_float32(logits.new_zeros(2))
        block = max(1, BLOCK.get(logits.device.type, BLOCK["cpu"]) // words)
        for first in range(0, logits.size(0), block):
            rows = slice(first, first + block)
            x, y = at_least_float32(logits[rows]), target[rows, None]
            real = (y != padding).to(x.dtype)
            place = None if gradient is None or gradient.dtype != x.dtype else gradient[rows]
            softmax = torch.softmax(x, dim=-1, out=place)
            # The largest probability is at least 1 / V, so its logarithm is exact enough.
            log_normalizer = x.amax(-1, keepdim=True) - softmax.amax(-1, keepdim=True).log()
            likelihood = log_normalizer - x.gather(-1, y)
            smooth = words * log_normalizer - x.sum(-1, keepdim=True)
            both = torch.cat([(1 - epsilon - other) * likelihood + other * smooth, likelihood], 1)
            sums += (both * real).sum(0)
            if gradient is not None:
                # The derivative by a logit is its probability less its weight in the target.
                weight = torch.full_like(likelihood, 1 - epsilon - other)
                softmax.sub_(other).scatter_add_(-1, y, -weight).mul_(real)
                if place is None:
                    gradient[rows] = softmax
        ctx.save_for_backward(gradient)
        loss, likelihood = sums.unbind()
        ctx.mark_non_differentiable(likelihood)
        return loss, likelihood

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_loss: Tensor, _: Tensor) -> tuple[Tensor | None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        # Only on a CPU is it free to look whether the factor is 1, as without a loss scale. Then
        # the saved tensor is returned itself; if it is changed, a second backward pass is refused.
        if of_loss.device.type != "cpu" or of_loss.item() != 1:
            gradient = gradient * of_loss.to(gradient.dtype)
        return gradient.to(ctx.dtype), None, None, None
