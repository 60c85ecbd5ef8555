"""What a training keeps in the memory of one accelerator."""

import math
from typing import NamedTuple

from fairseq_recur.planning.building import Built, sample
from fairseq_recur.planning.tracing import trace


class BytesAParameter(NamedTuple):
    """Bytes that fairseq keeps for each parameter.

    Attributes:
        weights: of the model
        gradients: of the model
        masters: fp32 copies of both, from which fairseq's fp16 and bf16 optimizer computes
        optimizer: Adam's two averages, in float32
        traffic: read and written by an update: gradient norm, Adam, and the copies
    """

    weights: int
    gradients: int
    masters: int
    optimizer: int
    traffic: int


BYTES = {
    "fp32": BytesAParameter(4, 4, 0, 8, 4 + 28),
    "half": BytesAParameter(2, 2, 8, 8, 6 + 4 + 28 + 6),
    "memory-efficient-half": BytesAParameter(2, 2, 0, 8, 2 + 24),
}


def bytes_a_parameter(precision: str, memory_efficient: bool) -> BytesAParameter:
    """Of "fp32", or of "fp16" and "bf16" with or without fairseq's --memory-efficient form."""
    if precision == "fp32":
        return BYTES["fp32"]
    return BYTES["memory-efficient-half" if memory_efficient else "half"]


class Memory(NamedTuple):
    """Bytes of one accelerator: what is there at all lengths, and what grows with the batch.

    Attributes:
        weights, gradients, masters, optimizer: of all parameters
        buckets: DistributedDataParallel's copy of the gradients; 0 with one process
        reserve: left for the CUDA context, libraries and fragmentation
        capacity: of the accelerator
        fixed, slope: activations of a batch of n tokens are fixed + slope n bytes
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
        """All but activations and reserve."""
        return self.weights + self.gradients + self.masters + self.optimizer + self.buckets

    def activations(self, tokens: int) -> int:
        """Peak bytes of a batch of so many tokens, in sentences of the longest length."""
        return math.ceil(self.fixed + self.slope * tokens)

    @property
    def largest(self) -> int:
        """The largest --max-tokens that fits; 0 or less: none does."""
        free = self.capacity - self.reserve - self.static - self.fixed
        return math.floor(free / self.slope)


def measure(
    built: Built,
    parameters: int,
    of_each: BytesAParameter,
    processes: int,
    capacity: float,
    reserve: float,
    longest: int,
) -> Memory:
    """Trace two batches of the longest sentences, between and beyond which memory is a line.

    Args:
        built: the model
        parameters: their number
        of_each: bytes of each
        processes: of the whole training
        capacity: bytes of the accelerator
        reserve: share of them that is left free
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
    """--max-tokens and --update-freq: the most words at a time that make the batch exactly.

    processes x max-tokens x update-freq is *batch*. Returns (0, 0) if no parts of a quarter
    of *limit* or more do, or if the batch is no multiple of the processes.
    """
    share, rest = divmod(batch, processes)
    if rest or limit < 1:
        return 0, 0
    least = math.ceil(share / limit)
    for steps in range(least, 4 * least + 1):
        if share % steps == 0:
            return share // steps, steps
    return 0, 0
