"""Results of other machines, which join a table: results.json files of the same example."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from fairseq_recur.errors import ConfigError

Results = dict[str, Any]


def read_added(
    option: str, files: Sequence[Path], differences: Callable[[Results], Iterable[str]]
) -> list[Results]:
    """Read the results that join a table.

    Args:
        option: that names the files, for messages
        files: each the results.json of a folder
        differences: gives what keeps results from standing beside those of here; of a file of
            another kind it may raise what a missing key or a wrong type raises

    Raises:
        ConfigError: a file is missing or foreign, or does not belong to this table
    """
    found, problems = [], []
    for file in files:
        try:
            results = json.loads(file.read_text(encoding="utf-8"))
            problems += [f"{file} {what}" for what in differences(results)]
            origins([results])
        except OSError as error:
            problems.append(f"cannot read {file}: {error.strerror}")
        except (ValueError, KeyError, TypeError, AttributeError):
            problems.append(f"{file} is not one")
        else:
            found.append(results)
    if problems:
        raise ConfigError(
            f"{option}: expected results.json files of this example; " + "; ".join(problems)
        )
    return found


def origins(added: Sequence[Results]) -> list[Results]:
    """Return how the results of the files were made, and of those that were added to them; once."""
    found: list[Results] = []
    for of in added:
        commit = "commits" if "commits" in of else "commit"
        keys = ("command", commit, "machine", "versions")
        for one in ({key: of[key] for key in keys}, *of.get("added", [])):
            if one not in found:
                found.append(one)
    return found
