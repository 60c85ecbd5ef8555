"""Self-attention with learned relative positions in its keys and its values."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_recur.ops.precision import at_least_float32, no_autocast


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
    """e_ij = q_i (k_j + a^K_ij) / sqrt(D), z_i = sum_j alpha_ij (v_j + a^V_ij) (Shaw et al. 2018).

    Products with a table of 2c + 1 rows stand for those with a vector for each pair of
    positions, so that no (T, S, D) tensor is made.

    Args:
        query: (B, H, T, D), not scaled; the last query stands at the last key
        key, value: (B, H, S, D)
        key_table, value_table: (H, 2c + 1, D); row c + r belongs to a key r positions later
        mask: additive, broadcastable to (B, H, T, S), or None
        dropout: probability of dropping a weight (0 outside training)

    Returns:
        (B, H, T, D) in the dtype of *value*, and the weights (B, H, T, S)
    """
    queries, keys, rows = query.size(2), key.size(2), key_table.size(1)
    clip = rows // 2
    times = torch.arange(keys, device=query.device)
    row = (times - times[keys - queries :].unsqueeze(1)).clamp(-clip, clip) + clip  # (T, S)
    row = row.expand(*query.shape[:2], queries, keys)
    with no_autocast(value):
        # In float32 throughout: large scores would leave float16's range.
        query = at_least_float32(query) * (query.size(-1) ** -0.5 if scale is None else scale)
        scores = torch.matmul(query, at_least_float32(key).transpose(-1, -2))
        of_rows = torch.matmul(query, at_least_float32(key_table).transpose(-1, -2))
        scores = scores + of_rows.gather(-1, row)
        weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
        used = F.dropout(weights, dropout)
        per_row = used.new_zeros(*used.shape[:-1], rows).scatter_add(-1, row, used)
        out = torch.matmul(used, at_least_float32(value))
        out = out + torch.matmul(per_row, at_least_float32(value_table))
        return out.to(value.dtype), weights
