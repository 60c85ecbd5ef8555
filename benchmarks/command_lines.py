"""The options that the benchmarks have in common."""

import argparse
from collections.abc import Sequence
from pathlib import Path


def command_line(
    description: str | None,
    rounds: int | None = None,
    inner: int | None = None,
    device: bool = True,
) -> argparse.ArgumentParser:
    """Make a parser with the options that the benchmarks have in common.

    Args:
        description: docstring of the program, whose first line goes into the help
        rounds: default of --rounds, for programs that time several systems
        inner: default of --inner, for programs that time short operations
        device: whether the program has the option --device
    """
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    if device:
        parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--output", type=Path, help="JSON file for the results")
    if rounds:
        parser.add_argument("--rounds", type=int, default=rounds, help="measurements per system")
    if inner:
        parser.add_argument(
            "--inner", type=int, default=inner, help="calls per measurement; the fastest counts"
        )
    return parser


def refuse_unused(
    parser: argparse.ArgumentParser, args: argparse.Namespace, names: Sequence[str], why: str
) -> None:
    """Exit with an error if options were set that have no effect."""
    dests = {name: name.replace("-", "_") for name in names}
    given = [f"--{n}" for n, d in dests.items() if getattr(args, d) != parser.get_default(d)]
    if given:
        them = "it" if len(given) == 1 else "them"
        parser.error(f"{', '.join(given)}: not used {why}; remove {them}")
