"""From FLOPs and bytes to seconds."""

from typing import NamedTuple

from fairseq_recur.planning.hardware import Device
from fairseq_recur.planning.tracing import Operation


class Assumptions(NamedTuple):
    """What no data sheet says.

    Attributes:
        matmul: share of the peak that matrix products reach
        bandwidth: share of the memory's bandwidth that is reached, and of the links'
        overhead: seconds that an operation takes at least: the way through Python and torch,
            and the start of a kernel
        mfu: if given, FLOPs alone decide, at this share of the peak
    """

    matmul: float
    bandwidth: float
    overhead: float
    mfu: float = 0.0


class Seconds(NamedTuple):
    """Of one update, by what sets the pace.

    Attributes:
        products: operations as slow as their FLOPs
        traffic: operations as slow as the memory
        latency: operations as slow as their start
        optimizer: the update of the parameters
        exchange: the sum of the gradients over all processes
    """

    products: float
    traffic: float
    latency: float
    optimizer: float
    exchange: float

    @property
    def total(self) -> float:
        """Nothing overlaps in this model."""
        return sum(self)


def step_seconds(
    operations: list[Operation], device: Device, precision: str, assumed: Assumptions
) -> dict[str, float]:
    """Seconds of one step: each operation takes what the slowest of three limits asks."""
    peak = device.peak[precision]
    if assumed.mfu:
        total = sum(operation.flops for operation in operations)
        return {"products": total / (peak * assumed.mfu), "traffic": 0.0, "latency": 0.0}
    seconds = {"products": 0.0, "traffic": 0.0, "latency": assumed.overhead}
    sums = dict.fromkeys(seconds, 0.0)
    for operation in operations:
        seconds["products"] = operation.flops / (peak * assumed.matmul)
        seconds["traffic"] = operation.bytes / (device.bandwidth * assumed.bandwidth)
        slowest = max(seconds, key=seconds.__getitem__)
        sums[slowest] += seconds[slowest]
    return sums


def exchange_seconds(
    gradients: int, gpus: int, nodes: int, link: float, network: float, assumed: Assumptions
) -> float:
    """Seconds of a ring all-reduce of *gradients* bytes, not hidden behind anything.

    Args:
        gpus: of a node
        link: bytes a second between the accelerators of a node
        network: bytes a second of a node
    """
    processes = gpus * nodes
    if processes == 1:
        return 0.0
    slowest = link if nodes == 1 else min(link, network) if gpus > 1 else network
    return 2 * (processes - 1) / processes * gradients / (slowest * assumed.bandwidth)
