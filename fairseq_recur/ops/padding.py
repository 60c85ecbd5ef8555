"""Means and orders of the real tokens of a batch that is padded on the left or on the right."""

import torch
from torch import Tensor

from fairseq_recur.ops.precision import at_least_float32


def masked_mean(x: Tensor, padding_mask: Tensor | None) -> Tensor:
    """The mean of each sentence's real tokens: h_0 of Hao et al. 2019, section 3.1.

    Args:
        x: (B, S, C)
        padding_mask: (B, S) bool, True at padding, or None

    Returns:
        (B, C) in the dtype of *x*, summed in float32 under half precision; zero for a sentence
        without real tokens
    """
    if padding_mask is None:
        return x.mean(dim=1)  # torch sums in float32 in any dtype
    real = (~padding_mask).unsqueeze(-1)
    total = at_least_float32(x).masked_fill(~real, 0.0).sum(dim=1)
    return (total / real.sum(dim=1).clamp(min=1)).to(x.dtype)


def visible_keys(padding_mask: Tensor | None) -> Tensor | None:
    """A padding mask (B, S) as the bool mask of `dot_product_attention`: (B, 1, 1, S) or None."""
    return None if padding_mask is None else ~padding_mask[:, None, None, :]


def real_tokens_first(padding_mask: Tensor) -> tuple[Tensor, Tensor]:
    """The order that moves each sentence's real tokens to the front, and the true lengths.

    fairseq pads sources on the left by default, but packed recurrent networks and segments need
    the padding at the end.

    Args:
        padding_mask: (B, S) bool, True at padding

    Returns:
        order: (B, S) int64, positions of the real tokens in their order, then of the padding
        lengths: (B,) int64
    """
    order = padding_mask.to(torch.uint8).argsort(dim=1, stable=True)
    return order, (~padding_mask).sum(dim=1)


def restore_order(x: Tensor, order: Tensor, dim: int) -> Tensor:
    """Undo a gather along *dim*: what stands at place j moves to the place *order*[j].

    Args:
        x: a tensor that was gathered by *order*, such as that of `real_tokens_first`
        order: int64, expandable to the shape of *x*
        dim: of *x*
    """
    return torch.zeros_like(x).scatter(dim, order.expand_as(x), x)
