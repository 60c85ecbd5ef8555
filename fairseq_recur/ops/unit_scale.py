"""SRformer's recurrent term at the scale of one: its inputs hardly grow with the source.

    phi(x) = relu(x)^2         K' = phi(K) / norm(phi(K))        P_i = K'^T V - K'_i^T V_i
    x_i = (1 - leak) P_i W^T   y, mem as in `accumulate_fire`
    O_R[t] = phi(Q_t) thr relu(y) / sqrt(D)

Long et al. 2023 derive their term from phi(Q) (phi(K)^T V) / c (eqs. 20 to 22) and leave phi out.
Then K^T V grows with the source, the memory with the segments, and 1 / thr multiplies both.

With the norm "sum", c of each key channel, K'^T V is a weighted mean of the values: no entry is
larger than the largest value, whatever the source's length.
"""

import torch
from torch import Tensor

from fairseq_recur.ops.segmented_attention import NORMS, key_norm

UNIT_NORMS = (*NORMS, "sum")
"""Norms at the unit scale."""


def features(x: Tensor) -> Tensor:
    """phi(x) = relu(x)^2 of each number, in any shape: like exp, not negative, and steep."""
    return torch.relu(x).square()


def unit_queries(queries: Tensor) -> Tensor:
    """phi(Q) / sqrt(D) for queries (..., D) that are not scaled."""
    return features(queries) * queries.size(-1) ** -0.5


def unit_keys(keys: Tensor, norm: str) -> Tensor:
    """K' = phi(K) / norm(phi(K)), zero at padding like the keys.

    Args:
        keys: (B, H, M, s, D) in float32 or higher, zero at padding
        norm: one of `UNIT_NORMS`
    """
    found = features(keys)
    divisor = key_norm(found.flatten(2, 3), norm)
    return found if divisor is None else found / divisor.unsqueeze(2)
