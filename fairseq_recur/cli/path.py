"""Print the folder of this plug-in, for fairseq's own commands:
``fairseq-train --user-dir $(fairseq-recur path) ...``.
"""

import argparse
from pathlib import Path

PLUGIN_FOLDER = str(Path(__file__).resolve().parents[1])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`path` has no options."""


def run(args: argparse.Namespace) -> int:
    """Print the folder, and nothing else, on stdout."""
    print(PLUGIN_FOLDER)
    return 0
