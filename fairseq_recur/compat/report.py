"""What ``fairseq-recur check`` reports of this machine: versions and known problems."""

import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from fairseq_recur.compat import safe_loading
from fairseq_recur.compat.registry import FAILED, MENDS
from fairseq_recur.compat.safe_loading import UNSAFE_VARIABLE, torch_version


def version(distribution: str) -> str:
    """Return the installed version of a distribution, or "not installed"."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def fairseq_distribution() -> tuple[str, str]:
    """Return the distribution that provides `fairseq` and its version: ("ve-fairseq", "0.12.3")."""
    for name in ("ve-fairseq", "fairseq-fixed", "fairseq"):
        if version(name) != "not installed":
            return name, version(name)
    return "fairseq", "not installed"


def environment_report() -> list[tuple[str, str]]:
    """Return names and versions of everything that a run depends on, in printing order."""
    cuda = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if cuda else f"CPU, {torch.get_num_threads()} threads"
    packages = ("hydra-core", "omegaconf", "numpy", "sacrebleu", "sentencepiece", "subword-nmt")
    return [
        ("python", platform.python_version()),
        ("platform", platform.platform()),
        ("torch", torch.__version__),
        ("CUDA", str(torch.version.cuda) if cuda else "not available"),
        ("device", device),
        ("fairseq", " ".join(fairseq_distribution())),
        *((name, version(name)) for name in packages),
    ]


@dataclass(frozen=True)
class Problem:
    """A problem of this machine; its severity is error, warning or note."""

    title: str
    remedy: str
    severity: str


def _apex_problems() -> Iterator[Problem]:
    """A wrong or incomplete apex, found without importing it; none is installed by default."""
    spec = importlib.util.find_spec("apex")
    if spec is None:
        return
    folders = [Path(p) for p in spec.submodule_search_locations or ()]
    if not any((f / "normalization").is_dir() for f in folders):
        yield Problem(
            f"the installed apex ({version('apex')}) is not NVIDIA's: PyPI's `apex` is a toolkit "
            "for the Pyramid web framework",
            "pip uninstall apex; fairseq and this plug-in do not need it",
            "warning",
        )
        return
    missing = [m for m in ("fused_layer_norm_cuda", "amp_C") if importlib.util.find_spec(m) is None]
    if missing:
        yield Problem(
            f"apex is incomplete: its extensions {', '.join(missing)} are missing, and on a GPU "
            "fairseq fails when it builds a LayerNorm",
            "pip uninstall apex, or build NVIDIA's sources with the C++ and CUDA extensions",
            "error" if torch.cuda.is_available() else "warning",
        )


def _fairseq_problems() -> Iterator[Problem]:
    """Versions of fairseq, hydra and Python that do not work together."""
    name, release = fairseq_distribution()
    official = name == "fairseq" and release == "0.12.2"
    hydra = tuple(int(n) for n in re.findall(r"\d+", version("hydra-core"))[:3])
    low, high = ((1, 0, 7), (1, 1)) if official else ((1, 3, 2), (1, 4))
    if not low <= hydra < high:
        wanted = "hydra-core>=1.0.7,<1.1" if official else "hydra-core>=1.3.2,<1.4"
        title = f"hydra-core {version('hydra-core')} does not work with {name} {release}"
        yield Problem(title, f'pip install "{wanted}"', "error")
    if official and sys.version_info >= (3, 11):
        alternatives = "ve-fairseq==0.12.3 (3.11, 3.12) or fairseq-fixed==0.12.3.1"
        remedy = f"pip uninstall fairseq; pip install {alternatives}"
        title = f"fairseq 0.12.2 cannot be imported by Python {platform.python_version()}"
        yield Problem(title, remedy, "error")


def _safety_problems() -> Iterator[Problem]:
    """Versions and settings that let a checkpoint run code."""
    if torch_version() < (2, 6):
        title = (
            f"torch {torch.__version__}: below 2.6 even weights_only=True lets a crafted "
            "checkpoint run code (CVE-2025-32434)"
        )
        remedy = "pip install --upgrade torch; until then load only checkpoints that you trust"
        yield Problem(title, remedy, "warning")
    if UNSAFE_VARIABLE in safe_loading.removed_variables or UNSAFE_VARIABLE in os.environ:
        title = f"{UNSAFE_VARIABLE} is set: every torch.load may run code from the file"
        yield Problem(title, f"unset {UNSAFE_VARIABLE}", "warning")


def known_problems() -> list[Problem]:
    """Return what is wrong on this machine, each with its remedy."""
    found = [*_apex_problems(), *_fairseq_problems(), *_safety_problems()]
    for mend in MENDS:
        if mend.status == FAILED:
            remedy = "install the versions listed in docs/compatibility.md"
            found.append(Problem(f"the mend {mend.name!r} failed: {mend.error}", remedy, "error"))
    if importlib.util.find_spec("fairscale") is not None:
        title = "fairscale is installed, but fully_sharded and slowmo are not supported"
        found.append(Problem(title, "use --ddp-backend pytorch_ddp or legacy_ddp", "note"))
    return found
