"""Attention maps that depend on relative positions: Shaw et al., Transformer-XL and T5's buckets.

In every function the last query stands at the last key: with T queries and S keys, query i has
the position S - T + i. This covers self-attention, memory of earlier segments and incremental
decoding. Scores are computed in float32 or higher, as in torch's fused attention: large scores
exceed float16's range.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_recur.ops.precision import at_least_float32, no_autocast

# ---- Shaw et al. 2018: learned vectors for clipped lags, in the keys and in the values


def table_rows(queries: int, keys: int, rows: int, device: torch.device) -> Tensor:
    """The row of a table of 2c + 1 clipped lags for each pair of positions: (T, S) int64."""
    clip = rows // 2
    positions = torch.arange(keys, device=device)
    return (positions - positions[keys - queries :].unsqueeze(1)).clamp(-clip, clip) + clip


def relative_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_table: Tensor,
    value_table: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """z_i = sum_j alpha_ij (v_j + a^V_ij), alpha = softmax(q_i (k_j + a^K_ij) / sqrt(D) + mask).

    Shaw et al. 2018, eqs. 3 and 4. All products are with the tables of 2c + 1 rows. A vector for
    each pair of positions, a tensor (T, S, D), is never built.

    Args:
        query: (B, H, T, D), unscaled
        key, value: (B, H, S, D)
        key_table, value_table: (H, 2c + 1, D); row c + r belongs to a key r positions later
        mask: additive, broadcastable to (B, H, T, S), or None
        dropout: probability of dropping a weight (0 outside training)
        scale: factor of the scores in place of 1 / sqrt(D), or None

    Returns:
        (B, H, T, D) in the dtype of *value*, and the map (B, H, T, S)
    """
    rows = key_table.size(1)
    row = table_rows(query.size(2), key.size(2), rows, query.device)
    with no_autocast(query):
        query = at_least_float32(query) * (query.size(-1) ** -0.5 if scale is None else scale)
        scores = torch.matmul(query, at_least_float32(key).transpose(-1, -2))
        of_rows = torch.matmul(query, at_least_float32(key_table).transpose(-1, -2))
        scores = scores + of_rows.gather(-1, row.expand_as(scores))
        weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
        used = F.dropout(weights, dropout)
        per_row = used.new_zeros(*used.shape[:-1], rows)
        per_row = per_row.scatter_add(-1, row.expand_as(used), used)
        out = torch.matmul(used, at_least_float32(value))
        out = out + torch.matmul(per_row, at_least_float32(value_table))
        return out.to(value.dtype), weights


# ---- Transformer-XL (Dai et al. 2019): sinusoids of the lag, projected and compared with queries


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


# ---- T5 (Raffel et al. 2020): one bias per bucket of lags


def bucket_starts(buckets: int, max_distance: int) -> list[int]:
    """The shortest distance of each bucket but the first, which starts at 0.

    The first e = buckets // 2 buckets hold one distance each. The other buckets divide
    e ... max_distance evenly on a logarithmic scale: bucket e + k starts at
    e (max_distance / e)^(k / (buckets - e)). The last bucket holds all longer distances, too.
    Integer arithmetic keeps the result independent of the device's logarithm. See Raffel et al.
    2020, section 2.1.

    Args:
        buckets: at least 2
        max_distance: more than half of the buckets

    Returns:
        buckets - 1 distances in ascending order, possibly with repetitions
    """
    exact = buckets // 2
    steps = buckets - exact
    starts = list(range(1, exact + 1))
    for k in range(1, steps):
        bound = max_distance**k * exact ** (steps - k)
        distance = starts[-1]
        while distance**steps < bound:
            distance += 1
        starts.append(distance)
    return starts


def relative_buckets(lag: Tensor, starts: Tensor, bidirectional: bool) -> Tensor:
    """The bucket of each lag (Raffel et al. 2020, section 2.1).

    Args:
        lag: int64, the key's position minus the query's
        starts: int64 (N - 1,), from `bucket_starts`
        bidirectional: later keys have N further buckets of their own; if false, they share the
            bucket of lag 0

    Returns:
        int64, in the shape of *lag*: 0 to N - 1, or to 2N - 1 if bidirectional
    """
    distance = lag.abs() if bidirectional else (-lag).clamp(min=0)
    bucket = torch.bucketize(distance, starts, right=True)
    return bucket + (lag > 0) * (starts.numel() + 1) if bidirectional else bucket
