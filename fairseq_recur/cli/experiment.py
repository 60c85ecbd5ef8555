"""Reproduce a table of a paper: train, decode and score several systems under equal conditions.

A folder keeps all results, and nothing in it is done twice. After a stop or a kill, the same
command continues from the last checkpoints. results.json and table.md in the folder are updated
whenever a run is finished. docs/experiments.md explains the files.
"""

import argparse

from fairseq_recur.cli import (
    experiment_new,
    experiment_run,
    experiment_score,
    experiment_status,
    experiment_stop,
)

ACTIONS = {
    "run": (experiment_run, "run the remaining steps of an experiment, measure speed, write the "
            "table"),
    "new": (experiment_new, "write a file for your own data, with a fair control"),
    "score": (experiment_score, "decode and score the trained systems on other test sets"),
    "status": (experiment_status, "show what is done and what is running"),
    "stop": (experiment_stop, "stop an experiment"),
}  # fmt: skip
"""The module and the description of each action."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, (module, text) in ACTIONS.items():
        action = actions.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}.",
            formatter_class=parser.formatter_class,
        )  # fmt: skip
        module.add_arguments(action)


def run(args: argparse.Namespace) -> int:
    """Run one of the actions."""
    return ACTIONS[args.action][0].run(args)
