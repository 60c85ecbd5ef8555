"""Report what is installed, what this plug-in registered and mended, and what is wrong.

The exit status is 1 if a problem would make training or decoding fail.
"""

import argparse
import importlib.util
import json
import textwrap
from collections import Counter
from typing import Any

import torch

import fairseq_recur
import fairseq_recur.compat as compat  # "from fairseq_recur" would register everything
from fairseq_recur.errors import InstallationError
from fairseq_recur.ops.native import build, segmented_recurrent
from fairseq_recur.ops.triton import dispatch

PACKAGE = "fairseq_recur"
WIDTH = 96


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `check`."""
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="give the reason for each mend, a correction of fairseq or torch",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def is_ours(cls: type) -> bool:
    """Return whether this package has a class."""
    return cls.__module__.split(".")[0] == PACKAGE


def registered() -> dict[str, list[str]]:
    """Return the names that this package added to fairseq's registries, and its own parts.

    Raises:
        InstallationError: nothing could be added
    """
    fairseq_recur.register()
    from fairseq.criterions import CRITERION_REGISTRY
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.optim import OPTIMIZER_REGISTRY
    from fairseq.scoring import SCORER_REGISTRY
    from fairseq.tasks import TASK_REGISTRY

    from fairseq_recur.models import config
    from fairseq_recur.modules.options import flag

    def ours(registry: dict[str, Any]) -> list[str]:
        return sorted(name for name, cls in registry.items() if is_ours(cls))

    slots = [*config.encoder_decoder_slots(), *config.language_model_slots()]

    return {
        "architectures": ours(ARCH_MODEL_REGISTRY),
        "tasks": ours(TASK_REGISTRY),
        "criterions": ours(CRITERION_REGISTRY),
        "optimizers": ours(OPTIMIZER_REGISTRY),
        "scorers": ours(SCORER_REGISTRY),
        **{flag(slot.option): list(slot.table) for slot in slots},
    }


def compiled_code() -> str:
    """Return whether the package's C code runs on this machine."""
    try:
        build.load(segmented_recurrent.NAME, torch.float32)
    except build.BuildError as error:
        return f"none, srformer is slower on a CPU: {error}"
    return f"srformer on a CPU, in {build.cache_folder()}"


def gpu_kernels() -> str:
    """Return whether the package's Triton kernels can run on a GPU."""
    if not importlib.util.find_spec("triton"):
        return "none, torch's operations take their place: Triton is not installed"
    if dispatch.switched_off():
        return "none, torch's operations take their place: FAIRSEQ_RECUR_TRITON=0"
    if torch.cuda.is_available() and (reason := dispatch.obstacle()):
        return f"none, torch's operations take their place: {reason}"
    return "srformer, rsa and biarn on a GPU, by Triton"


def report() -> dict[str, Any]:
    """Return the whole report in the form of the JSON output."""
    try:
        names, problems = registered(), compat.known_problems()
    except InstallationError as error:
        names, problems = {}, compat.known_problems()
        if not any(problem.severity == "error" for problem in problems):
            title = str(error).removesuffix(f"; {compat.REINSTALL}")
            problems.append(compat.Problem(title, compat.REINSTALL, "error"))
    compiled = {"compiled code": compiled_code(), "GPU kernels": gpu_kernels()}
    return {
        "environment": {**dict(compat.environment_report()), **compiled},
        "registered": names,
        "mends": [
            {
                "name": m.name,
                "status": m.status or "not applied",
                "reason": m.reason,
                "until": m.until,
            }
            | ({"error": m.error} if m.error else {})
            for m in compat.MENDS
        ],
        "problems": [
            {"title": p.title, "remedy": p.remedy, "severity": p.severity} for p in problems
        ],
    }


def run(args: argparse.Namespace) -> int:
    """Print the report; return 1 if a problem has the severity "error"."""
    found = report()
    print(json.dumps(found, indent=2) if args.json else _text(found, args.verbose))
    return int(any(problem["severity"] == "error" for problem in found["problems"]))


def _text(found: dict[str, Any], verbose: bool) -> str:
    """Format the report for people."""
    lines = ["Environment", *_columns(found["environment"]), ""]
    names = {kind: ", ".join(names) for kind, names in found["registered"].items() if names}
    lines += ["Registered", *(_columns(names) or ["  nothing"]), ""]
    counts = Counter(mend["status"] for mend in found["mends"])
    states = ", ".join(f"{count} {status}" for status, count in counts.items())
    lines.append(f"Mends of the installed fairseq and torch: {states}")
    lines += _columns({mend["name"]: mend["status"] for mend in found["mends"]})
    if verbose:
        for mend in found["mends"]:
            lines += _wrapped(mend["name"], 2)
            lines += _wrapped(mend["reason"], 6)
            lines += _wrapped(f"needed until: {mend['until']}", 6)
    else:
        lines.append("  (--verbose gives the reason for each)")
    lines += ["", f"Known problems: {len(found['problems']) or 'none found'}"]
    for problem in found["problems"]:
        lines += _wrapped(f"{problem['severity']}: {problem['title']}", 2)
        lines += _wrapped(f"remedy: {problem['remedy']}", 6)
    return "\n".join(lines)


def _columns(rows: dict[str, str]) -> list[str]:
    """Align names and values; a long value continues below itself."""
    width = max(map(len, rows), default=0)
    lines = []
    for name, value in rows.items():
        first, *more = _wrapped(value, width + 4)
        lines += [f"  {name.ljust(width)}  {first.strip()}", *more]
    return lines


def _wrapped(text: str, indent: int) -> list[str]:
    """Break a text into lines of at most WIDTH columns."""
    prefix = " " * indent
    return textwrap.wrap(
        text, WIDTH, initial_indent=prefix, subsequent_indent=prefix, break_on_hyphens=False
    ) or [prefix]
