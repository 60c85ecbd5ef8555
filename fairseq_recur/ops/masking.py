"""Means and orders over the real tokens of a padded batch, on whichever side it is padded."""

import torch
from torch import Tensor

from fairseq_recur.ops.precision import at_least_float32


def masked_mean(x: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Mean of the real tokens of each sentence: h_0 of Hao et al. 2019, section 3.1.

    Args:
        x: (B, S, C)
        padding_mask: (B, S) bool, True at padding; None if there is none

    Returns:
        (B, C) in the dtype of *x*, summed in float32 under half precision; zero for a sentence of
        padding alone
    """
    if padding_mask is None:
        return x.mean(dim=1)  # which torch sums in float32 whatever the dtype
    real = (~padding_mask).unsqueeze(-1)
    total = at_least_float32(x).masked_fill(~real, 0.0).sum(dim=1)
    return (total / real.sum(dim=1).clamp(min=1)).to(x.dtype)


def real_tokens_first(padding_mask: Tensor) -> tuple[Tensor, Tensor]:
    """The order that moves each sentence's real tokens to the front, and the lengths.

    fairseq pads sources on the left by default; packed recurrent networks want the
    padding at the end.

    Args:
        padding_mask: (B, S) bool, True at padding

    Returns:
        order: (B, S) int64, positions of the real tokens in their order, then the others
        lengths: (B,) int64, numbers of real tokens
    """
    order = padding_mask.to(torch.uint8).argsort(dim=1, stable=True)
    return order, (~padding_mask).sum(dim=1)


def to_their_places(states: Tensor, order: Tensor) -> Tensor:
    """Undo `real_tokens_first`: state j (B, S, C) to where the sentence's j-th token stands."""
    index = order.unsqueeze(-1).expand_as(states)
    return torch.zeros_like(states).scatter(1, index, states)
