"""From FLOPs and bytes to seconds."""

from typing import NamedTuple

from fairseq_recur.planning.hardware import Device
from fairseq_recur.planning.tracing import Operation


class Assumptions(NamedTuple):
    """Efficiencies that no data sheet states.

    Attributes:
        matmul: share of the peak that matrix products reach
        bandwidth: share of the bandwidth that memory and links reach
        overhead: minimum seconds per operation: the call through Python and torch, and the start
            of a kernel
        mfu: if not 0, only FLOPs count, at this share of the peak
    """

    matmul: float
    bandwidth: float
    overhead: float
    mfu: float = 0.0


class Seconds(NamedTuple):
    """Seconds per update, by what limits the speed.

    Attributes:
        products: operations limited by FLOPs
        traffic: operations limited by memory bandwidth
        latency: operations limited by overhead
        optimizer: the update of the parameters
        exchange: the all-reduce of the gradients
    """

    products: float
    traffic: float
    latency: float
    optimizer: float
    exchange: float

    @property
    def total(self) -> float:
        """The sum; this model assumes no overlap."""
        return sum(self)


def step_seconds(
    operations: list[Operation], device: Device, precision: str, assumed: Assumptions
) -> dict[str, float]:
    """Seconds of one step; each operation takes the longest of three limits."""
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
    """Seconds of a ring all-reduce of *gradients* bytes without overlap.

    Args:
        gpus: per node
        link: bytes per second between the accelerators of a node
        network: bytes per second per node
    """
    processes = gpus * nodes
    if processes == 1:
        return 0.0
    slowest = link if nodes == 1 else min(link, network) if gpus > 1 else network
    return 2 * (processes - 1) / processes * gradients / (slowest * assumed.bandwidth)
