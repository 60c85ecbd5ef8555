"""The buckets of lags that share a position bias in T5 (Raffel et al. 2020)."""

import torch
from torch import Tensor


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
