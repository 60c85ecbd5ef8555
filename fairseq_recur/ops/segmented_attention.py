"""Attention over segments of the source, and what neurons make of the rest of it.

Long et al. 2023, eqs. 6, 13 and 16, by torch's own differentiation: for every option of the part,
and for incremental decoding. `segmented_recurrent` is faster where it applies.

Letters: M segments, N steps, n queries a step.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_recur.ops.accumulate_fire import accumulate_fire
from fairseq_recur.ops.precision import at_least_float32, no_autocast


def segmented(x: Tensor, size: int) -> Tensor:
    """(..., S, D) cut into segments, the last one filled up with zeros: (..., M, s, D)."""
    missing = -x.size(-2) % size
    x = F.pad(x, (0, 0, 0, missing)) if missing else x  # pad copies in any case
    return x.unflatten(-2, (-1, size))


def visited(x: Tensor, segments: Tensor | None, steps: int) -> Tensor:
    """The segments that are read at the steps: (B, H, M, s, D) to (B, H, N, s, D).

    Args:
        segments: (B, N) int64, or None: the first ones
        steps: N
    """
    if segments is None:
        return x[:, :, :steps]
    index = segments[:, None, :, None, None].expand(-1, x.size(1), -1, *x.size()[3:])
    return x.gather(2, index)


def attend_segments(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """O_S: each block of queries attends to its own keys.

    Args:
        queries: (B, H, N, n, D), scaled
        keys, values: (B, H, N, s, D)
        mask: (B, 1, N, 1, s), added to the scores, or None
        dropout: probability of dropping a weight (0 outside training)

    Returns:
        (B, H, N, n, D) in the dtype of *values*, and the weights (B, H, N, n, s)
    """
    with no_autocast(values):
        # As torch's fused attention does: large scores would leave float16's range.
        long_queries, long_keys = at_least_float32(queries), at_least_float32(keys)
        scores = torch.matmul(long_queries, long_keys.transpose(-1, -2))
        weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
    return torch.matmul(F.dropout(weights, dropout).to(values.dtype), values), weights


def partial_products(
    keys: Tensor,
    values: Tensor,
    segments: Tensor | None,
    steps: int,
    rest: bool = True,
    clamp: float = 0.0,
) -> Tensor:
    """P_i for each step (eq. 16).

    Args:
        keys, values: (B, H, M, s, D) in float32 or more, zero at padding
        segments, steps: as for `visited`
        rest: of the segments that are not read; False: of the one that is (ablation IV)
        clamp: bound c on the entries of K^T V and of K_i^T V_i, as the published code has for
            BART; 0: none

    Returns:
        (B, H, N, D, D)
    """
    products = torch.matmul(keys.transpose(-1, -2), values)
    own = visited(products, segments, steps)
    whole = products.sum(2, keepdim=True)
    if clamp:
        own, whole = own.clamp(-clamp, clamp), whole.clamp(-clamp, clamp)
    return whole - own if rest else own


def neurons(
    partial: Tensor, weight: Tensor, leak: Tensor, threshold: Tensor, surrogate: bool = False
) -> Tensor:
    """RAF(P_i) for each step: (B, H, N, D, D) of the same."""
    inputs = torch.matmul(partial, weight.t())
    memory, outputs = torch.zeros_like(inputs[:, :, 0]), []
    for x in inputs.unbind(2):
        out, memory = accumulate_fire(x, memory, leak, threshold, surrogate)
        outputs.append(out)
    return torch.stack(outputs, dim=2)
