"""Accelerators: memory, bandwidth and speed, from the manufacturers' data sheets."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fairseq_recur.errors import refuse

GIGA = 1e9

PRECISIONS = ("fp32", "fp16", "bf16")


@dataclass(frozen=True)
class Device:
    """One accelerator.

    Attributes:
        name: as in the data sheet
        memory: bytes
        bandwidth: of its memory, in bytes per second
        peak: FLOP/s per supported precision, dense, accumulated in float32
        link: to the other accelerators of its node, in bytes per second in one direction
        source: origin of the figures
    """

    name: str
    memory: float
    bandwidth: float
    peak: Mapping[str, float]
    link: float
    source: str


def _gpu(
    name: str,
    memory: float,
    bandwidth: float,
    fp32: float,
    half: float,
    link: float,
    source: str,
    bf16: bool = True,
) -> Device:
    """A row of the table, in GB, GB/s and TFLOP/s."""
    peak = {"fp32": fp32 * 1e12, "fp16": half * 1e12}
    if bf16:
        peak["bf16"] = half * 1e12
    return Device(name, memory * GIGA, bandwidth * GIGA, peak, link * GIGA, source)


GPUS: dict[str, Device] = {
    "p100-16": _gpu("Tesla P100 SXM2 16 GB", 16, 732, 10.6, 21.2, 80, "P100 data sheet", False),
    "v100-16": _gpu("Tesla V100 SXM2 16 GB", 16, 900, 15.7, 125, 150, "V100 data sheet", False),
    "v100-32": _gpu("Tesla V100 SXM2 32 GB", 32, 900, 15.7, 125, 150, "V100 data sheet", False),
    "t4": _gpu("T4", 16, 320, 8.1, 65, 16, "T4 data sheet", False),
    "a10": _gpu("A10", 24, 600, 31.2, 125, 32, "A10 data sheet"),
    "a100-40": _gpu("A100 SXM4 40 GB", 40, 1555, 19.5, 312, 300, "A100 data sheet"),
    "a100-80": _gpu("A100 SXM4 80 GB", 80, 2039, 19.5, 312, 300, "A100 data sheet"),
    "l4": _gpu("L4", 24, 300, 30.3, 121, 32, "L4 data sheet, without sparsity"),
    "h100": _gpu("H100 SXM5 80 GB", 80, 3350, 67, 989, 450, "H100 data sheet, without sparsity"),
    "h200": _gpu("H200 SXM5 141 GB", 141, 4800, 67, 989, 450, "H200 data sheet, without sparsity"),
    "rtx3090": _gpu("GeForce RTX 3090", 24, 936, 35.6, 71, 32, "Ampere GA102 whitepaper"),
    "rtx4090": _gpu("GeForce RTX 4090", 24, 1008, 82.6, 165.2, 32, "Ada whitepaper"),
}
"""fp32 without TF32, torch's default; half precision on tensor cores with float32 accumulation."""


COMMON = set("nvidia tesla geforce sxm sxm2 sxm4 sxm5 hbm3 hbm3e".split())
"""Words in names of GPUs that do not change what the table says."""


def short_name(name: str) -> str:
    """Return the table's name of a GPU that ``nvidia-smi`` calls *name*, else *name* itself.

    A name with any other word, such as "PCIe", "NVL", "Laptop", "Ti" or "MIG", means another card,
    or a part of one.
    """
    text = re.sub(r"(?<=\d) gb\b", "gb", name.lower().replace("rtx ", "rtx"))
    words = set(re.sub(r"[^a-z0-9]+", " ", text).split()) - COMMON
    for known, device in GPUS.items():
        kind, _, memory = known.partition("-")
        if words == {kind, f"{device.memory / GIGA:.0f}gb"} or (words == {kind} and not memory):
            return known
    return name


def device_problems(
    name: str, flops: float | None, memory: float | None, bandwidth: float | None
) -> Iterator[str]:
    """Yield all that is wrong with the arguments of `own_device`."""
    given = {"--flops": flops, "--memory": memory, "--bandwidth": bandwidth}
    wrong = [f"{flag} {x}" for flag, x in given.items() if x is not None and not x > 0]
    if wrong:
        yield f"{', '.join(wrong)}: expected more than 0"
    missing = [flag for flag, value in given.items() if value is None]
    if name == "custom" and missing:
        yield f"--gpu custom needs {', '.join(missing)} as well"
    if name != "custom" and short_name(name) not in GPUS:
        yield (
            f"--gpu {name} is unknown; expected one of {', '.join(GPUS)}, or custom with --flops, "
            "--memory and --bandwidth"
        )


def own_device(
    name: str, flops: float | None, memory: float | None, bandwidth: float | None
) -> Device:
    """Return a device of the table, or one described in TFLOP/s, GB and GB/s.

    Values replace those of the table; ``custom`` needs all three. A device of the table keeps the
    precisions that it supports.

    Raises:
        ConfigError: the name is unknown, or a value is missing or not positive
    """
    refuse("unusable device", device_problems(name, flops, memory, bandwidth))
    name = short_name(name)
    known = GPUS.get(name)
    if known is None:
        known = Device("custom", 0.0, 0.0, dict.fromkeys(PRECISIONS, 0.0), 10 * GIGA, "")
    elif flops is None and memory is None and bandwidth is None:
        return known
    peak = known.peak if flops is None else dict.fromkeys(known.peak, flops * 1e12)
    return Device(
        f"{known.name}, changed" if name in GPUS else "custom",
        known.memory if memory is None else memory * GIGA,
        known.bandwidth if bandwidth is None else bandwidth * GIGA,
        peak,
        known.link,
        "given by options",
    )
