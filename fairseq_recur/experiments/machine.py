"""The machine and the versions with which a measurement was made."""

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from fairseq_recur.experiments.steps import Run

PACKAGES = ("torch", "fairseq", "ve-fairseq", "fairseq-fixed", "sacrebleu", "fairseq-recur")

COMMIT = "FAIRSEQ_RECUR_COMMIT"
"""The variable that has the commit of a copy without git's files."""

UNRECORDED = "a machine that was not recorded"
"""Recorded for a training that an earlier version made."""


def commit() -> str:
    """Return the plug-in's commit, with a plus if files were changed.

    Outside of its git repository it is what the environment says, or "unknown".
    """
    file = Path(__file__)

    def git(*words: str) -> str:
        call = ["git", "-C", str(file.parent), *words]
        return subprocess.run(call, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", file.name)  # else it is what an environment is in
        return git("describe", "--always", "--abbrev=7", "--dirty=+")
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get(COMMIT, "unknown")


def machine() -> str:
    """Describe the processors and the GPUs."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        names = re.findall(r"^model name\s*: (.*)$", text, re.M) or [platform.processor()]
    except OSError:
        names = [platform.processor()]
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    found = [f"{os.cpu_count()} cores, {names[0]}, {platform.system()}"]
    return ", ".join(found + [f"{gpus.count(gpu)} x {gpu}" for gpu in dict.fromkeys(gpus)])


def gpus_for(metrics: Sequence[str]) -> int:
    """The number of GPUs for these metrics: COMET takes one, if there is one."""
    return int("comet" in metrics and torch.cuda.is_available())


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that matter."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def trained_with(runs: Sequence["Run"]) -> dict[str, Any]:
    """Return the machine and the versions of the finished trainings: if they differ, all of them.

    Without a finished training they are those of this process.
    """
    states = [run.state().get("train", {}) for run in runs if run.trained()]
    return united(states or [{"machine": machine(), "versions": versions()}])


def united(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what several records have as ``machine`` and as ``versions`` of packages.

    Where they differ, all of them are in one string; so may be what a record has already.
    """
    known = [record.get("versions", {}) for record in records]
    names = dict.fromkeys(name for of_one in known for name in of_one)
    return {
        "machine": _once("; ", [record.get("machine", UNRECORDED) for record in records]),
        "versions": {
            name: _once(", ", [of_one[name] for of_one in known if name in of_one])
            for name in names
        },
    }


def _once(separator: str, texts: Sequence[str]) -> str:
    """Join the parts of some texts, each once."""
    return separator.join(dict.fromkeys(x for text in texts for x in text.split(separator)))
