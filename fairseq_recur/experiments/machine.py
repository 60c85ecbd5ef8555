"""What a measurement was made on."""

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

import torch

PACKAGES = ("torch", "fairseq", "ve-fairseq", "fairseq-fixed", "sacrebleu", "fairseq-recur")


def commit() -> str:
    """The plug-in's commit, with a plus where files differ from it; "unknown" outside of git."""
    call = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--abbrev=7",
        "--dirty=+",
    ]
    try:
        return subprocess.run(call, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def machine() -> str:
    """The processors, and the GPUs if there are any."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        names = re.findall(r"^model name\s*: (.*)$", text, re.M) or [platform.processor()]
    except OSError:
        names = [platform.processor()]
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    found = [f"{os.cpu_count()} cores, {names[0]}, {platform.system()}"]
    return ", ".join(found + [f"{gpus.count(gpu)} x {gpu}" for gpu in dict.fromkeys(gpus)])


def versions() -> dict[str, str]:
    """Versions of Python, torch, fairseq, sacrebleu and this plug-in, as far as installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
