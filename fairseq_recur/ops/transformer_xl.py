"""The attention map of Transformer-XL: sinusoids of the lag as keys (Dai et al. 2019).

The last query stands at the last key: with T queries and S keys, query i has the position
S - T + i. Scores are computed in float32 or higher.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_recur.ops.precision import at_least_float32, no_autocast


def sinusoids(lags: Tensor, width: int) -> Tensor:
    """R: the sinusoidal encoding of each lag (Vaswani et al. 2017; Dai et al. 2019, section 3.3).

    Channel k < C/2 is sin(lag / 10000^(2k / C)), the other half holds the cosines in this order.

    Args:
        lags: (N,) floating point; negative for later keys
        width: C; if it is odd there is one sine more than cosines

    Returns:
        (N, C) in the dtype of *lags*
    """
    channels = torch.arange(0, width, 2, dtype=lags.dtype, device=lags.device)
    angles = torch.outer(lags, 10000 ** (-channels / width))
    return torch.cat([angles.sin(), angles[:, : width // 2].cos()], dim=1)


def relative_shift(scores: Tensor, keys: int) -> Tensor:
    """Scores by lag as scores by key (Dai et al. 2019, appendix B): a view, without a gather.

    Args:
        scores: contiguous (B, H, T, N + 1), for the lags S - 1, S - 2, ..., S - N in this order,
            N >= S; the last column is for no lag, and may hold any finite numbers
        keys: S

    Returns:
        (B, H, T, S): entry (i, j) is the score of the lag S - T + i - j. Where that lag is below
        S - N, so that *scores* lacks it, the entry is arbitrary but finite.
    """
    queries, columns = scores.shape[-2:]
    # Row i begins N + 1 places after row i - 1, and its window, of N columns, N places.
    lags = columns - 1
    flat = scores.flatten(-2)[..., queries - 1 : queries - 1 + queries * lags]
    return flat.view(*scores.shape[:-1], lags)[..., :keys]


def xl_map(
    query: Tensor,
    key: Tensor,
    position_keys: Tensor,
    content_bias: Tensor,
    position_bias: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """softmax(((q + u) k^T + (q + v) (W_r R)^T) / sqrt(D) + mask) (Dai et al. 2019, section 3.3).

    Args:
        query: (B, H, T, D), unscaled
        key: (B, H, S, D)
        position_keys: W_r R, (H, N, D), for the lags S - 1, S - 2, ... in this order. N = S ends at
            lag 0: *mask* must hide later keys. N = S + T - 1 covers both directions.
        content_bias, position_bias: u and v, (H, D)
        mask: additive, broadcastable to (B, H, T, S), or None
        scale: factor of the scores in place of 1 / sqrt(D), or None

    Returns:
        (B, H, T, S) in float32 or higher

    Raises:
        ValueError: *position_keys* has neither S nor S + T - 1 rows
    """
    (queries, width), keys, lags = query.shape[2:], key.size(2), position_keys.size(1)
    if lags not in (keys, keys + queries - 1):
        raise ValueError(
            f"found keys for {lags} lags; expected {keys} for causal attention or "
            f"{keys + queries - 1} for both directions; pass one row per lag, from {keys - 1} down"
        )
    with no_autocast(query):
        query = at_least_float32(query)
        key, position_keys, content_bias, position_bias = (
            at_least_float32(x) for x in (key, position_keys, content_bias, position_bias)
        )
        scale = width**-0.5 if scale is None else scale
        content = (query + content_bias.unsqueeze(1)) * scale
        position = (query + position_bias.unsqueeze(1)) * scale
        # A map is large, and its time goes into memory. So the factor is in what is small, the
        # column that the shift needs comes from a row of zeros, and a product adds to its sum.
        by_lag = torch.matmul(position, F.pad(position_keys, (0, 0, 0, 1)).transpose(-1, -2))
        terms = relative_shift(by_lag, keys)
        terms = (terms if mask is None else terms + mask).flatten(0, 1)
        products = torch.baddbmm(terms, content.flatten(0, 1), key.flatten(0, 1).transpose(-1, -2))
        return torch.softmax(products.unflatten(0, query.shape[:2]), dim=-1)
