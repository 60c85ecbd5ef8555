"""What was trained elsewhere: scores from the results.json of other folders."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_recur.experiments.added import Results, read_added
from fairseq_recur.experiments.settings import Experiment

SETTINGS = ("train", "generate", "checkpoint")


def read(
    files: Sequence[Path], experiments: dict[str, Experiment], counts: dict[str, Any]
) -> list[Results]:
    """Read the results that join a table.

    Args:
        files: each the results.json of a folder
        experiments: of the languages that are trained here
        counts: the numbers of words of these languages

    Raises:
        ConfigError: a file is missing or foreign, or has other settings, systems or words
    """
    here = next(iter(experiments.values())).as_record()

    def apart(results: Results) -> list[str]:
        found = differences(results, here, counts)
        for name in counts:
            runs([results], name)
        return found

    return read_added("--add", files, apart)


def unlike(settings: Results, flags: dict[str, Any], here: Results) -> list[str]:
    """Return how results differ from those of an experiment in what made them.

    Args:
        settings: of the results, by the names in `SETTINGS`
        flags: of each system that the results have
        here: the experiment, as a record
    """
    found = [
        f"was trained with another setting `{key}`"
        for key in SETTINGS
        if settings[key] != here[key]
    ]
    own = {system["name"]: system["flags"] for system in here["systems"]}
    other = [name for name in flags if flags[name] != own.get(name)]
    if other:
        found.append(f"has other flags for {', '.join(other)}")
    return found


def differences(results: Results, here: Results, counts: dict[str, Any]) -> list[str]:
    """Return what keeps the results of a file from standing beside those of here."""
    systems = results["systems"].items()
    flags = {name: system["flags"] for name, system in systems if system["parameters"]}
    found = unlike(results["settings"], flags, here)
    # Results of before may have fewer kinds of counts, and are of words in NFC.
    languages = {n: {"normalization": "NFC", **of} for n, of in results["languages"].items()}
    other = [n for n in counts if n in languages and not languages[n].items() <= counts[n].items()]
    if other:
        found.append(f"has other words, or another NORMALIZATION, for {', '.join(other)}")
    return found


def runs(added: Sequence[Results], language: str) -> list[Results]:
    """Return the runs on a language: system, seed and scores; of equal ones the first."""
    found: dict[tuple[str, int], Results] = {}
    for results in added:
        for name, system in results["systems"].items():
            scores = {metric: of.get(language, {}) for metric, of in system["scores"].items()}
            for seed in next(iter(scores.values())):
                run = {
                    "system": name,
                    "seed": int(seed),
                    "scores": {metric: of[seed] for metric, of in scores.items()},
                    "parameters": system["parameters"][language],
                }
                found.setdefault((name, int(seed)), run)
    return list(found.values())
