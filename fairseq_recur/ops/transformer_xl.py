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
    """Scores by lag as scores by key (Dai et al. 2019, appendix B), without a gather.

    Args:
        scores: (B, H, T, N), for the lags S - 1, S - 2, ..., S - N in this order, N >= S
        keys: S

    Returns:
        (B, H, T, S): entry (i, j) is the score of the lag S - T + i - j. Where that lag is below
        S - N, so that *scores* lacks it, the entry is arbitrary but finite.
    """
    queries, lags = scores.shape[-2:]
    # With one more column per row, the window of row i begins N places after that of row i - 1.
    flat = F.pad(scores, (0, 1)).flatten(-2)[..., queries - 1 : queries - 1 + queries * lags]
    return flat.view(*scores.shape)[..., :keys]


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
        content = torch.matmul(query + content_bias.unsqueeze(1), key.transpose(-1, -2))
        position = torch.matmul(query + position_bias.unsqueeze(1), position_keys.transpose(-1, -2))
        scores = content + relative_shift(position, keys)
        scores = scores * (width**-0.5 if scale is None else scale)
        return torch.softmax(scores if mask is None else scores + mask, dim=-1)
