"""What was trained elsewhere: results.json files of other folders, which join a table."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from settings import TextRun

from fairseq_recur.experiments.added import Results, read_added

FREE = ("SYSTEMS", "SEEDS", "SHARES", "SHARE_SYSTEMS", "DEVICE")
"""Variables that say what is trained and where; the others must be the same."""

RESULT = {"perplexity", "bpc", "gates", "parameters", "seconds", "commit"}
"""What a table needs of a run."""


def read(files: Sequence[str], here: Results, runs: Sequence[TextRun]) -> list[Results]:
    """Read the results that join a table.

    Args:
        files: each the results.json of a folder
        here: what the results of this folder depend on
        runs: of the table

    Raises:
        ConfigError: a file is missing or foreign, has other settings or another text, or none of
            the runs
    """
    return read_added(
        "ADD", [Path(file) for file in files], lambda results: differences(results, here, runs)
    )


def differences(results: Results, here: Results, runs: Sequence[TextRun]) -> Iterator[str]:
    """Yield what keeps the results of a file from standing beside those of here."""
    for of_systems in results["runs"].values():
        for of_seeds in of_systems.values():
            for result in of_seeds.values():
                if not result.keys() >= RESULT:
                    raise KeyError("a run lacks what the table needs")
    before, now = results["settings"], here["settings"]
    compared = [name for name in now if name not in FREE]
    other = [name for name in compared if before.get(name) != now[name]]
    if other:
        yield f"was trained with another {', '.join(other)}"
    if results["text"] != here["text"]:
        yield "is of another text"
    if not any(result_of([results], run) for run in runs):
        yield "has no run of the chosen SYSTEMS, SEEDS and SHARES"


def result_of(added: Sequence[Results], run: TextRun) -> Results | None:
    """Return the result of a run in the first file that has it."""
    for results in added:
        of_seeds = results["runs"].get(run.share, {}).get(run.system, {})
        if str(run.seed) in of_seeds:
            found: Results = of_seeds[str(run.seed)]
            return found
    return None
