"""The buckets of T5's relative positions (Raffel et al. 2020, section 2.1)."""

import torch
from torch import Tensor


def bucket_starts(buckets: int, max_distance: int) -> list[int]:
    """The shortest distance of each bucket after the first, which begins at 0.

    The first half of the buckets hold one distance each, 0 ... e - 1 with e = buckets // 2.
    The others divide e ... max_distance evenly on a logarithmic scale, and the last takes
    what lies beyond: bucket e + k begins at e (max_distance / e)^(k / (buckets - e)). Found
    in whole numbers, so that no device's logarithm decides where a distance belongs.

    Args:
        buckets: at least 2
        max_distance: more than half of the buckets

    Returns:
        buckets - 1 distances, none shorter than the one before it
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
    """The bucket of each lag.

    Args:
        lag: int64, the key's position minus the query's
        starts: int64 (N - 1,), from `bucket_starts`
        bidirectional: later keys have N buckets of their own after those of the earlier
            ones and of the query itself; else they share the bucket of lag 0

    Returns:
        int64, in the shape of *lag*, from 0 to N - 1, or to 2N - 1 if bidirectional
    """
    distance = lag.abs() if bidirectional else (-lag).clamp(min=0)
    bucket = torch.bucketize(distance, starts, right=True)
    return bucket + (lag > 0) * (starts.numel() + 1) if bidirectional else bucket
