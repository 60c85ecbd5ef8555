"""Attention within segments of the source, and the products of its other segments.

Long et al. 2023, eqs. 6, 13 and 16, differentiated by torch: for every option of SRformer, and for
incremental decoding. `segmented_recurrent` is faster where it applies.

Letters: M segments, N steps, n queries per step.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_recur.ops.precision import at_least_float32, no_autocast


def segments_at_steps(x: Tensor, segments: Tensor | None, steps: int) -> Tensor:
    """The segment that each step reads: (B, H, M, s, D) to (B, H, N, s, D).

    Args:
        x: (B, H, M, s, D)
        segments: (B, N) int64, as in `SegmentSchedule.step_segments`
        steps: N
    """
    if segments is None:
        return x[:, :, :steps]
    index = segments[:, None, :, None, None].expand(-1, x.size(1), -1, *x.size()[3:])
    return x.gather(2, index)


def attend_segments(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """O_S: each block of queries attends to its own keys (Long et al. 2023, eq. 6).

    Args:
        queries: (B, H, N, n, D), scaled
        keys, values: (B, H, N, s, D)
        mask: additive (B, 1, N, 1, s), or None
        dropout: probability of dropping a weight (0 outside training)

    Returns:
        (B, H, N, n, D) in the dtype of *values*, and the weights (B, H, N, n, s)
    """
    with no_autocast(values):
        # As in torch's fused attention: large scores exceed float16's range.
        long_queries, long_keys = at_least_float32(queries), at_least_float32(keys)
        scores = torch.matmul(long_queries, long_keys.transpose(-1, -2))
        weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
        out = torch.matmul(F.dropout(weights, dropout), at_least_float32(values))
    return out.to(values.dtype), weights


def partial_products(
    keys: Tensor,
    values: Tensor,
    segments: Tensor | None,
    steps: int,
    rest: bool = True,
    clamp: float = 0.0,
) -> Tensor:
    """P_i for each step (Long et al. 2023, eq. 16).

    Args:
        keys, values: (B, H, M, s, D) in float32 or higher, zero at padding
        segments, steps: as in `segments_at_steps`
        rest: P_i sums over all segments but i; false: over segment i only (ablation IV)
        clamp: bound on the entries of K^T V and of K_i^T V_i, as in the published code for BART;
            0 for none

    Returns:
        (B, H, N, D, D)
    """
    products = torch.matmul(keys.transpose(-1, -2), values)
    own = segments_at_steps(products, segments, steps)
    whole = products.sum(2, keepdim=True)
    if clamp:
        own, whole = own.clamp(-clamp, clamp), whole.clamp(-clamp, clamp)
    return whole - own if rest else own


NORMS = ("key", "frobenius", "none")
"""Norms at the paper's scale; `unit_scale` has one more."""
SMALLEST_NORM = 1e-6


def key_norm(keys: Tensor, kind: str) -> Tensor | None:
    """norm(K), the L2 norm that replaces the softmax's divisor (Long et al. 2023, eq. 13).

    At the paper's scale the norm of key channel j divides channel j of the output.

    Args:
        keys: (..., S, D) in float32 or higher, zero at padding
        kind: "key": over the positions, for each key channel, as in the published code;
            "frobenius": over positions and channels; "none": ablation II of Table 3; "sum": the sum
            of absolute values over the positions, for each key channel

    Returns:
        (..., 1, D), (..., 1, 1) or None; at least 1e-6
    """
    if kind == "none":
        return None
    if kind == "sum":
        return keys.abs().sum(-2, keepdim=True).clamp_min(SMALLEST_NORM)
    return norm_of_squares(torch.linalg.vecdot(keys, keys, dim=-2).unsqueeze(-2), kind)


def norm_of_squares(squares: Tensor, kind: str) -> Tensor | None:
    """As `key_norm`, given the sums of K^2 over the positions, (..., D)."""
    if kind == "none":
        return None
    if kind == "frobenius":
        squares = squares.sum(-1, keepdim=True)
    return squares.clamp_min(SMALLEST_NORM**2).sqrt()  # in this order, no gradient is NaN


def spread(weights: Tensor, segments: Tensor, order: Tensor | None, length: int) -> Tensor:
    """Turn weights within segments into weights over the source.

    Args:
        weights: (B, H, T, s)
        segments: (B, T) int64, the segment that each query reads
        order: (B, S') int64, where the real tokens came from, or None if they did not move
        length: S

    Returns:
        (B, H, T, S)
    """
    size = weights.size(3)
    place = segments.unsqueeze(2) * size + torch.arange(size, device=weights.device)
    real = length if order is None else order.size(1)
    missing = place >= real  # of the last segment; their weights are 0
    place = place.masked_fill(missing, 0)
    if order is not None:
        place = order[:, None].expand(-1, place.size(1), -1).gather(2, place)
    place = place.unsqueeze(1).expand_as(weights)
    weights = weights.masked_fill(missing.unsqueeze(1), 0.0)
    return weights.new_zeros(*weights.size()[:3], length).scatter_add(3, place, weights)
