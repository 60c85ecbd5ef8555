"""Giving fairseq the folder of this plug-in, once, beside at most one other plug-in."""

import os
import re
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import fairseq
from fairseq.utils import import_user_module
from omegaconf import OmegaConf

from fairseq_recur.errors import ConfigError

OWN = str(Path(__file__).resolve().parents[1])

OVERRIDE = re.compile(r"\+{0,2}common\.user_dir=(?P<value>.*)")


def add_option(argv: Sequence[str]) -> tuple[list[str], str | None]:
    """Make sure that the arguments have exactly one --user-dir.

    Returns the arguments, and the user's folder if it is not this plug-in's. That one
    is kept: this plug-in is imported already, so both are there.
    Raises ConfigError for two other folders (fairseq takes one), or one that is none.
    """
    rest: list[str] = []
    given: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--user-dir":
            value = next(words, "")
            if not value or value.startswith("--"):
                raise ConfigError("--user-dir: expected a folder after it")
            given.append(value)
        elif word.startswith("--user-dir="):
            given.append(word.split("=", 1)[1])
        else:
            rest.append(word)
    foreign = choose(given)
    return rest + ["--user-dir", foreign or OWN], foreign


def add_override(argv: Sequence[str]) -> tuple[list[str], str | None]:
    """Make sure that hydra's configuration has a common.user_dir.

    Returns the arguments, and the user's folder if it is not this plug-in's, from an
    override or from the configuration file.
    Raises ConfigError as `add_option` does.
    """
    matches = [(word, OVERRIDE.fullmatch(word)) for word in argv]
    given = [match["value"].strip("'\"") for _, match in matches if match]
    rest = [word for word, match in matches if not match]
    in_file = _user_dir_of_config(rest)
    if in_file is not None and not given:
        # It may hold ${...} that only hydra can resolve, so it is not looked at.
        return rest, in_file
    foreign = choose(given)
    folder = os.path.abspath(foreign) if foreign else OWN  # hydra changes the folder
    quoted = folder.replace("\\", "\\\\").replace("'", "\\'")
    return rest + [f"common.user_dir='{quoted}'"], foreign


def load_before_hydra(folder: str | None) -> None:
    """Import the user's folder now: hydra asks what options take before fairseq imports it.

    A folder that only hydra can resolve, with ${...} in it, is left to fairseq.
    """
    if folder is not None and "${" not in folder:
        import_user_module(Namespace(user_dir=folder))


def choose(given: Sequence[str]) -> str | None:
    """Return the one folder among those given that is not this plug-in's; None if none is.

    Raises ConfigError if there are two, or if fairseq could not import it.
    """
    foreign = {os.path.realpath(f): f for f in given if os.path.realpath(f) != OWN}
    if len(foreign) > 1:
        raise ConfigError(
            f"--user-dir: {' and '.join(foreign.values())} given, but fairseq takes one plug-in. "
            "fairseq_recur needs none; import the one from the other's __init__.py"
        )
    if not foreign:
        return None
    (folder,) = foreign.values()
    if not any(map(os.path.exists, _candidates(folder))):
        raise ConfigError(
            f"--user-dir {folder}: no such folder ({os.path.abspath(folder)}); "
            "expected one with an __init__.py"
        )
    if os.path.isfile(folder):
        raise ConfigError(
            f"--user-dir {folder} is a file; expected a folder with an __init__.py in it"
        )
    return folder


def _candidates(folder: str) -> list[str]:
    """Where fairseq looks for a plug-in."""
    package = os.path.dirname(fairseq.__file__)
    return [folder, os.path.join(package, folder), os.path.join(package, "..", folder)]


def _user_dir_of_config(argv: Sequence[str]) -> str | None:
    """Return common.user_dir as the user's primary configuration file has it, if it does."""
    folders = _values(argv, ("--config-dir", "-cd", "--config-path", "-cp"))
    names = _values(argv, ("--config-name", "-cn")) or ["config"]
    for folder in folders:
        file = Path(folder) / names[-1]
        file = file if file.suffix in (".yaml", ".yml") else Path(f"{file}.yaml")
        if file.is_file():
            config = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
            common = config.get("common") if isinstance(config, dict) else None
            value = common.get("user_dir") if isinstance(common, dict) else None
            if value is not None:
                return str(value)
    return None


def _values(argv: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return what follows the options, after a space or an equals sign."""
    found = [after for word, after in zip(argv, argv[1:]) if word in options]
    return found + [
        word.split("=", 1)[1] for word in argv if word.split("=", 1)[0] in options and "=" in word
    ]
