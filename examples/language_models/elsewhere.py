"""What was trained elsewhere: results.json files of other folders, which join a table."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from settings import TextRun

from fairseq_recur.errors import ConfigError

Results = dict[str, Any]

FREE = ("SYSTEMS", "SEEDS", "SHARES", "SHARE_SYSTEMS", "DEVICE")
"""Variables that say what is trained and where; the others must be the same."""


def read(files: Sequence[str], here: Results) -> list[Results]:
    """Read the results that join a table.

    Args:
        files: each the results.json of a folder
        here: what the results of this folder depend on

    Raises:
        ConfigError: a file is missing or foreign, or has other settings or another text
    """
    found, problems = [], []
    for file in files:
        try:
            results = json.loads(Path(file).read_text(encoding="utf-8"))
            problems += [f"{file} {what}" for what in differences(results, here)]
            origins([results])
        except OSError as error:
            problems.append(f"cannot read {file}: {error.strerror}")
        except (ValueError, KeyError, TypeError, AttributeError):
            problems.append(f"{file} is not one")
        else:
            found.append(results)
    if problems:
        raise ConfigError(
            "ADD: expected results.json files of this example; " + "; ".join(problems)
        )
    return found


def differences(results: Results, here: Results) -> Iterator[str]:
    """Yield what keeps the results of a file from standing beside those of here."""
    for of_system in results["runs"].values():
        for of_seed in of_system.values():
            for result in of_seed.values():
                result["perplexity"], result["bpc"], result["gates"]  # noqa: B018  (are there)
    before, now = results["settings"], here["settings"]
    other = [name for name in now if name not in FREE and before[name] != now[name]]
    if other:
        yield f"was trained with another {', '.join(other)}"
    if results["text"] != here["text"]:
        yield "is of another text"


def result(added: Sequence[Results], run: TextRun) -> Results | None:
    """Return the result of a run in the first file that has it."""
    for results in added:
        of_seeds = results["runs"].get(run.share, {}).get(run.system, {})
        if str(run.seed) in of_seeds:
            found: Results = of_seeds[str(run.seed)]
            return found
    return None


def origins(added: Sequence[Results]) -> list[Results]:
    """Return how the results of the files were made, and of those that were added to them; once."""
    keys = ("command", "commit", "machine", "versions")
    found: list[Results] = []
    for of in added:
        for one in ({key: of[key] for key in keys}, *of.get("added", [])):
            if one not in found:
                found.append(one)
    return found
