"""Attention with learned vectors for clipped lags, in keys and values (Shaw et al. 2018).

The last query stands at the last key: with T queries and S keys, query i has the position
S - T + i. This covers self-attention, memory of earlier segments and incremental decoding. Scores
are computed in float32 or higher, as in torch's fused attention: large scores exceed float16's
range.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_recur.ops.precision import at_least_float32, no_autocast


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
    row: Tensor,
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
        row: (T, S) int64, that of each pair: `table_rows`
        mask: additive, broadcastable to (B, H, T, S), or None
        dropout: probability of dropping a weight (0 outside training)
        scale: factor of the scores in place of 1 / sqrt(D), or None

    Returns:
        (B, H, T, D) in the dtype of *value*, and the map (B, H, T, S)
    """
    rows = key_table.size(1)
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
