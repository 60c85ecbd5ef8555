"""What the results of a table say besides its figures, and the form of the file."""

import json
import os
import re
import shlex
from collections.abc import Sequence
from typing import Any

from fairseq_recur.experiments.machine import commit, trained_with
from fairseq_recur.experiments.steps import Run


def provenance(
    values: dict[str, str], words: Sequence[str], runs: Sequence[Run] = ()
) -> dict[str, Any]:
    """Return what made the results of an example: command, settings, commit, machine, versions.

    Args:
        values: the settings, see `as_variables`; the command has those that were given
        words: of the command
        runs: of the results, for `trained_with`
    """
    given = [f"{name}={shlex.quote(value)}" for name, value in values.items() if name in os.environ]
    return {
        "command": " ".join([*given, shlex.join(words)]),
        "settings": values,
        "commit": commit(),
        **trained_with(runs),
    }


def as_json(content: Any) -> str:
    """Return JSON in which a list of numbers, such as a curve or its point, is on one line."""

    def on_one_line(found: re.Match[str]) -> str:
        return f"[{' '.join(found[1].split())}]" if found[1] else found[0]

    string = r'"(?:[^"\\]|\\.)*"'  # which stays as it is
    pattern = string + r"|\[([-+\d.eE,\s]+)\]"
    return re.sub(pattern, on_one_line, json.dumps(content, indent=1)) + "\n"
