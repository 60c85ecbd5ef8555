"""Say what is installed, what this plug-in registered and adapted, and what is wrong.

The exit status is 1 if a problem would make training or decoding fail.
"""

import argparse
import json
import textwrap
from typing import Any

import torch

from fairseq_recur import compat
from fairseq_recur.ops.native import build, segmented_recurrent

PACKAGE = "fairseq_recur"
WIDTH = 96


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `check`."""
    parser.add_argument("--verbose", action="store_true", help="say why each adaptation is made")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def registered() -> dict[str, list[str]]:
    """Return the names that this package added to fairseq's registries, and its own parts."""
    from fairseq.criterions import CRITERION_REGISTRY
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.optim import OPTIMIZER_REGISTRY
    from fairseq.scoring import SCORER_REGISTRY
    from fairseq.tasks import TASK_REGISTRY

    from fairseq_recur.modules import parts

    def ours(registry: dict[str, Any]) -> list[str]:
        return sorted(
            name for name, cls in registry.items() if cls.__module__.split(".")[0] == PACKAGE
        )

    return {
        "architectures": ours(ARCH_MODEL_REGISTRY),
        "tasks": ours(TASK_REGISTRY),
        "criterions": ours(CRITERION_REGISTRY),
        "optimizers": ours(OPTIMIZER_REGISTRY),
        "scorers": ours(SCORER_REGISTRY),
        "self-attention parts": list(parts.SELF_ATTENTION),
        "cross-attention parts": list(parts.CROSS_ATTENTION),
        "recurrence parts": list(parts.RECURRENCE),
    }


def compiled_code() -> str:
    """Whether what this package has in C runs on this machine."""
    try:
        build.load(segmented_recurrent.NAME, torch.float32)
    except build.BuildError as error:
        return f"none, srformer is slower on a CPU: {error}"
    return f"srformer on a CPU, in {build.cache_folder()}"


def report() -> dict[str, Any]:
    """Return all that `check` knows, as JSON has it."""
    return {
        "environment": {**dict(compat.environment_report()), "compiled code": compiled_code()},
        "registered": registered(),
        "adaptations": [
            {"name": a.name, "reason": a.reason, "needless_from": a.needless_from}
            for a in compat.ADAPTATIONS
        ],
        "problems": [
            {"title": p.title, "remedy": p.remedy, "severity": p.severity}
            for p in compat.known_problems()
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
    lines += ["Registered", *_columns(names), ""]
    lines.append(f"Adaptations of the installed fairseq and torch: {len(found['adaptations'])}")
    if verbose:
        for adaptation in found["adaptations"]:
            lines += _wrapped(adaptation["name"], 2)
            lines += _wrapped(adaptation["reason"], 6)
            lines += _wrapped(f"needless from: {adaptation['needless_from']}", 6)
    else:
        lines += _wrapped(", ".join(a["name"] for a in found["adaptations"]), 2)
        lines.append("  (--verbose says why)")
    lines += ["", f"Known problems: {len(found['problems']) or 'none found'}"]
    for problem in found["problems"]:
        lines += _wrapped(f"{problem['severity']}: {problem['title']}", 2)
        lines += _wrapped(f"remedy: {problem['remedy']}", 6)
    return "\n".join(lines)


def _columns(rows: dict[str, str]) -> list[str]:
    """Align names and values; a long value goes on below itself."""
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
