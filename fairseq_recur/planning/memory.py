"""The memory that a training needs on one accelerator."""

import math
from typing import NamedTuple

from fairseq_recur.planning.building import Built, sample
from fairseq_recur.planning.tracing import trace


class BytesPerParameter(NamedTuple):
    """Bytes that fairseq keeps for each parameter.

    Attributes:
        weights, gradients: of the model
        masters: fp32 copies of both, used by fairseq's fp16 and bf16 optimizers
        optimizer: Adam's two averages, in float32
        traffic: bytes that an update reads and writes: gradient norm, Adam, and the copies
    """

    weights: int
    gradients: int
    masters: int
    optimizer: int
    traffic: int


BYTES = {
    "fp32": BytesPerParameter(4, 4, 0, 8, 4 + 28),
    "half": BytesPerParameter(2, 2, 8, 8, 6 + 4 + 28 + 6),
    "memory-efficient-half": BytesPerParameter(2, 2, 0, 8, 2 + 24),
}


def bytes_per_parameter(precision: str, memory_efficient: bool) -> BytesPerParameter:
    """Return the bytes for a precision, with or without fairseq's --memory-efficient options."""
    if precision == "fp32":
        return BYTES["fp32"]
    return BYTES["memory-efficient-half" if memory_efficient else "half"]


class Memory(NamedTuple):
    """Bytes on one accelerator: a fixed part, and a part that grows with the batch.

    Attributes:
        weights, gradients, masters, optimizer: for all parameters
        buckets: DistributedDataParallel's copy of the gradients; 0 with one process
        reserve: for the CUDA context, libraries and fragmentation
        capacity: of the accelerator
        fixed, slope: a batch of n tokens needs fixed + slope n bytes for activations
    """

    weights: int
    gradients: int
    masters: int
    optimizer: int
    buckets: int
    reserve: int
    capacity: int
    fixed: float
    slope: float

    @property
    def static(self) -> int:
        """Everything except activations and reserve."""
        return self.weights + self.gradients + self.masters + self.optimizer + self.buckets

    def activations(self, tokens: int) -> int:
        """Peak bytes of a batch with that many tokens, in sentences of the longest length."""
        return math.ceil(self.fixed + self.slope * tokens)

    @property
    def largest(self) -> int:
        """The largest --max-tokens that fits; 0 or less if none does."""
        free = self.capacity - self.reserve - self.static - self.fixed
        return math.floor(free / self.slope)


def measure(
    built: Built,
    parameters: int,
    of_each: BytesPerParameter,
    processes: int,
    capacity: float,
    reserve: float,
    longest: int,
) -> Memory:
    """Trace two batches of the longest sentences; memory is linear in the batch.

    Args:
        processes: of the whole training
        capacity: bytes of the accelerator
        reserve: share of the capacity that is left free
        longest: length of both sides, in tokens
    """
    sizes = [max(1, round(tokens / longest)) for tokens in (2048, 8192)]
    if sizes[0] == sizes[1]:
        sizes[1] += 1
    peaks = [trace(built, sample(built, n, longest, longest)).peak for n in sizes]
    slope = (peaks[1] - peaks[0]) / (sizes[1] - sizes[0]) / longest
    return Memory(
        weights=parameters * of_each.weights,
        gradients=parameters * of_each.gradients,
        masters=parameters * of_each.masters,
        optimizer=parameters * of_each.optimizer,
        buckets=parameters * of_each.gradients if processes > 1 else 0,
        reserve=round(reserve * capacity),
        capacity=round(capacity),
        fixed=peaks[0] - slope * sizes[0] * longest,
        slope=slope,
    )


def divided(batch: int, processes: int, limit: int) -> tuple[int, int]:
    """Return --max-tokens and --update-freq: the largest steps that add up to the batch exactly.

    processes x max-tokens x update-freq equals *batch*, and max-tokens is at most *limit*. The
    result is (0, 0) if that needs steps below a quarter of *limit*, or if the batch is not a
    multiple of the processes.
    """
    share, rest = divmod(batch, processes)
    if rest or limit < 1:
        return 0, 0
    fewest = math.ceil(share / limit)
    most = 4 * fewest
    if fewest < limit:
        divisors = (n for n in range(fewest, most + 1) if share % n == 0)
        steps = next(divisors, 0)
    else:  # of few tokens: there are fewer numbers of tokens than of steps
        sizes = range(share // fewest, math.ceil(share / most) - 1, -1)
        steps = next((share // n for n in sizes if share % n == 0), 0)
    return (share // steps, steps) if steps else (0, 0)
