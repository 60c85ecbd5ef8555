"""How much of a GPU a system uses while it works, as Table 4 of Long et al. 2023 has it.

nvidia-smi samples three shares: of the time in which any kernel runs, of the time in which the
memory is read or written, and of the limit of the power.
"""

import shutil
import statistics
import subprocess
import time
from collections.abc import Iterable

import torch
from measuring import Run, synchronise
from tables import Row

QUERY = "utilization.gpu,utilization.memory,power.draw,power.limit"
"""In percent, percent, watts and watts."""

SETTLING, SAMPLING, INTERVAL = 1.5, 4.0, 0.1
"""Seconds before the first sample, of all samples, and from one to the next.

A share of nvidia-smi is that of the last second, so earlier work must be over by then."""


def repeat(run: Run, seconds: float, device: str) -> None:
    """Call a function again and again, for at least so many seconds."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        run()
        synchronise(device)


def usage(run: Run, device: str) -> Row:
    """Return the means of the shares, in percent, while a function is called again and again.

    Args:
        run: the work of a system; one call should take less than a second
        device: "cuda"; a CPU has no such shares

    Returns:
        `busy_percent`, `access_percent` and `power_percent`; without those that the driver does
        not report, and empty on a CPU or without nvidia-smi
    """
    program = shutil.which("nvidia-smi")
    if device == "cpu" or program is None:
        return {}
    gpu = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    repeat(run, SETTLING, device)
    command = [program, f"--id={gpu}", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits",
               f"--loop-ms={round(1000 * INTERVAL)}"]  # fmt: skip
    sampler = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        repeat(run, SAMPLING, device)
    finally:
        sampler.terminate()
        output, _ = sampler.communicate()
    # The last line may be cut off.
    return shares(output.split("\n")[:-1])


def shares(lines: Iterable[str]) -> Row:
    """Average the samples; values that are no numbers ("[N/A]") are left out."""
    found: dict[str, list[float]] = {}
    for line in lines:
        busy, access, draw, limit = (number(word) for word in line.split(","))
        power = 100 * draw / limit if draw is not None and limit else None
        row = {"busy_percent": busy, "access_percent": access, "power_percent": power}
        for name, value in row.items():
            if value is not None:
                found.setdefault(name, []).append(value)
    return {name: round(statistics.mean(values), 1) for name, values in found.items()}


def number(word: str) -> float | None:
    """Read a number; None for anything else."""
    try:
        return float(word)
    except ValueError:
        return None
