"""Passing this plug-in's folder to fairseq's --user-dir, with at most one other plug-in."""

import os
import re
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path

import fairseq
from fairseq.utils import import_user_module

from fairseq_recur.cli.path import PLUGIN_FOLDER
from fairseq_recur.errors import ConfigError
from fairseq_recur.files import read_yaml
from fairseq_recur.loading.folder import listing

FAIRSEQ = os.path.dirname(fairseq.__file__)
CONFIG = os.path.join(FAIRSEQ, "config")
"""The folder of fairseq's own configuration files, which hydra searches by default."""

OVERRIDE = re.compile(r"\+{0,2}common\.user_dir=(?P<value>.*)")


def add_option(argv: Sequence[str]) -> tuple[list[str], str | None]:
    """Make sure that the arguments have exactly one --user-dir.

    Another plug-in's folder is kept: this plug-in is imported already, so both are loaded.

    Returns:
        the arguments, and the other plug-in's folder or None

    Raises:
        ConfigError: two other folders (fairseq takes one), or a folder that cannot be imported
    """
    rest, folders = _taken_out(argv)
    other = other_plugin(folders)
    return rest + ["--user-dir", other or PLUGIN_FOLDER], other


def _taken_out(argv: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the arguments without --user-dir, and its values.

    Raises:
        ConfigError: a value is missing
    """
    rest: list[str] = []
    folders: list[str] = []
    words = iter(argv)
    for word in words:
        name, joined, value = word.partition("=")
        if name != "--user-dir":
            rest.append(word)
            continue
        value = value if joined else next(words, "")
        if not value.strip() or value.startswith("--"):
            raise ConfigError(f"--user-dir is followed by {value!r}; expected a folder")
        folders.append(value)
    return rest, folders


def load(argv: Iterable[str]) -> None:
    """Import the plug-in that the arguments of one of this package's own commands name.

    Raises:
        ConfigError: as `add_option`
    """
    _, folders = _taken_out(argv)
    if (other := other_plugin(folders)) is not None:
        import_user_module(Namespace(user_dir=other))


def add_override(argv: Sequence[str]) -> tuple[list[str], str | None]:
    """Make sure that hydra's configuration has a common.user_dir.

    Returns:
        the arguments, and the other plug-in's folder, from an override or from the configuration
        file, or None

    Raises:
        ConfigError: as `add_option`, or the file is missing or not YAML
    """
    matches = [(word, OVERRIDE.fullmatch(word)) for word in argv]
    folders = [match["value"].strip("'\"") for _, match in matches if match]
    rest = [word for word, match in matches if not match]
    in_file = _user_dir_of_config(rest)
    if in_file is not None and not folders:
        # It may contain ${...}, which only hydra can resolve, so it is not checked.
        return rest, in_file
    other = other_plugin(folders)
    folder = os.path.abspath(other) if other else PLUGIN_FOLDER  # hydra changes the folder
    quoted = folder.replace("\\", "\\\\").replace("'", "\\'")
    return rest + [f"common.user_dir='{quoted}'"], other


def load_before_hydra(folder: str | None) -> None:
    """Import another plug-in now: hydra validates options before fairseq would import it.

    A folder with ${...}, which only hydra can resolve, is left to fairseq.
    """
    if folder is not None and "${" not in folder:
        import_user_module(Namespace(user_dir=folder))


def other_plugin(folders: Sequence[str]) -> str | None:
    """Return the one folder that is not this plug-in's, or None.

    Raises:
        ConfigError: there are two, or fairseq could not import it
    """
    others = {os.path.realpath(f): f for f in folders if os.path.realpath(f) != PLUGIN_FOLDER}
    if len(others) > 1:
        raise ConfigError(
            f"--user-dir: found {' and '.join(others.values())}, but fairseq takes one plug-in; "
            "import one from the other's __init__.py (fairseq_recur is always loaded)"
        )
    if not others:
        return None
    (folder,) = others.values()
    places = [folder, os.path.join(FAIRSEQ, folder), os.path.join(FAIRSEQ, "..", folder)]
    if not any(map(os.path.exists, places)):  # where fairseq looks
        raise ConfigError(
            f"--user-dir {folder}: no such folder ({os.path.abspath(folder)}); "
            "expected one with an __init__.py"
        )
    if os.path.isfile(folder):
        raise ConfigError(f"--user-dir {folder} is a file; expected a folder with an __init__.py")
    return folder


def _user_dir_of_config(argv: Sequence[str]) -> str | None:
    """Return common.user_dir from the user's primary configuration file, if it is set there.

    Raises:
        ConfigError: as `_files_of_config`, or a file is not YAML
    """
    for file in _files_of_config(argv):
        config = read_yaml(file)
        common = config.get("common") if isinstance(config, dict) else None
        value = common.get("user_dir") if isinstance(common, dict) else None
        if value is not None:
            return str(value)
    return None


def _files_of_config(argv: Sequence[str]) -> list[Path]:
    """Return the user's primary configuration file, in each folder that has one of its name.

    Raises:
        ConfigError: a name was given, and no folder has it; fairseq would use its defaults
    """
    paths = _values(argv, ("--config-path", "-cp"))
    if any("://" in path for path in paths):  # in a package, where only hydra looks
        return []
    # hydra reads this path relative to fairseq's program; it replaces fairseq's own folder.
    given = [os.path.join(FAIRSEQ, os.pardir, "fairseq_cli", path) for path in paths[-1:]]
    folders = [Path(folder) for folder in _values(argv, ("--config-dir", "-cd"))]
    folders += [Path(os.path.normpath(folder)) for folder in given or [CONFIG]]
    names = _values(argv, ("--config-name", "-cn"))
    name = (names or ["config"])[-1]
    name = name if name.endswith((".yaml", ".yml")) else f"{name}.yaml"
    files = [folder / name for folder in folders if (folder / name).is_file()]
    if names and not files:
        found = " and ".join(
            f"{folder} has {listing(folder, '*.yaml')}"
            if folder.is_dir()
            else f"no folder {folder}"
            for folder in folders
        )
        raise ConfigError(
            f"--config-name {names[-1]}: no file {name}; {found}: give one of these names, and "
            "the folder of your own files with --config-dir"
        )
    return files


def _values(argv: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the values of options, after a space or an equals sign."""
    found = [after for word, after in zip(argv, argv[1:]) if word in options]
    pairs = (word.split("=", 1) for word in argv if "=" in word)
    return found + [value for option, value in pairs if option in options]
