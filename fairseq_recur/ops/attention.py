"""The two attention functions that an attentive recurrent network can read its source with."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_recur.ops.precision import at_least_float32, no_autocast


def additive_attention(
    query: Tensor,
    keys: Tensor,
    score: Tensor,
    values: Tensor,
    padding_mask: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """C = sum_j alpha_j v_j with alpha = softmax_j(score . tanh(query + key_j)).

    Bahdanau et al. 2015 as the ``ATT`` of Hao et al. 2019, eq. 13. The query and the keys
    come projected, so that the keys' projection is done once for all steps.

    Args:
        query: (B, N, A) projected states
        keys: (B, S, A) projected source
        score: (A,)
        values: (B, S, C) the source itself
        padding_mask: (B, S) bool, True at padding
        dropout: probability of dropping a weight (0 outside training)

    Returns:
        (B, N, C) in the dtype of *values*; softmax and sum in float32 under half precision. Of a
        sentence of padding alone, the mean of its values
    """
    energy = torch.tanh(query.unsqueeze(2) + keys.unsqueeze(1)) @ score  # (B, N, S)
    if padding_mask is not None:
        energy = energy.masked_fill(padding_mask.unsqueeze(1), torch.finfo(energy.dtype).min)
    with no_autocast(values):
        weights = F.dropout(torch.softmax(at_least_float32(energy), dim=-1), dropout)
        return torch.bmm(weights, at_least_float32(values)).to(values.dtype)


def dot_product_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    padding_mask: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Multi-head scaled dot-product attention (Vaswani et al. 2017) by torch's fused kernel.

    Args:
        query: (B, H, N, D)
        keys, values: (B, H, S, D)
        padding_mask: (B, S) bool, True at padding
        dropout: probability of dropping a weight (0 outside training)

    Returns:
        (B, H, N, D); zero for a sentence of padding alone
    """
    visible = None if padding_mask is None else ~padding_mask[:, None, None, :]
    return F.scaled_dot_product_attention(query, keys, values, visible, dropout)
