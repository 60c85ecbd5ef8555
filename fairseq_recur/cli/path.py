"""Print the folder of this plug-in, for fairseq's own commands:
``fairseq-train --user-dir $(fairseq-recur path) ...``.
"""

import argparse

from fairseq_recur.cli.user_dir import OWN

HELP = "print the folder to give to fairseq's --user-dir"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`path` has no options."""


def run(args: argparse.Namespace) -> int:
    """Print it, and nothing else, on stdout."""
    print(OWN)
    return 0
