"""Self-attention whose heads look one way: half of them back, half of them ahead."""

import torch
import torch.nn.functional as F
from torch import Tensor


def hidden_keys(length: int, device: torch.device) -> Tensor:
    """What each half of the heads does not see: (2, T, T) bool, True at hidden keys.

    The first half sees a position itself and earlier ones, the second itself and later ones.
    """
    later = torch.ones(length, length, dtype=torch.bool, device=device).triu(1)
    return torch.stack([later, later.t()])


def one_way_masks(query: Tensor, mask: Tensor | None) -> list[Tensor]:
    """*mask* of `directional_attention` for each half of the heads, what it does not see hidden.

    Args:
        query: (B, H, T, D), for its sizes, dtype and device
        mask: additive, broadcastable to (B, H, T, T), or None

    Returns:
        two additive masks, broadcastable to (B, H / 2, T, T)
    """
    lowest = torch.finfo(query.dtype).min
    masks = [query.new_zeros(1, 1)] * 2 if mask is None else [mask.to(query.dtype)] * 2
    if mask is not None and mask.dim() > 2 and mask.size(-3) > 1:
        masks = list(masks[0].chunk(2, dim=-3))
    hidden = hidden_keys(query.size(2), query.device)
    return [one.masked_fill(away, lowest) for one, away in zip(masks, hidden)]


def directional_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """softmax(Q K^T / sqrt(D) + mask + M) V by torch's fused attention, M a mask for each half.

    M is 0 for the keys j <= i in the first half of the heads and for j >= i in the second, and
    hides the others: the forward and the backward mask of Shen et al. 2018, to which the
    position itself is added.

    Args:
        query, key, value: (B, H, T, D), the queries not scaled, H even
        mask: additive, finite, broadcastable to (B, H, T, T), or None
        dropout: probability of dropping a weight (0 outside training)

    Returns:
        (B, H, T, D)
    """
    halves = zip(*(x.chunk(2, dim=1) for x in (query, key, value)), one_way_masks(query, mask))
    return torch.cat(
        [F.scaled_dot_product_attention(*half, dropout_p=dropout, scale=scale) for half in halves],
        dim=1,
    )
