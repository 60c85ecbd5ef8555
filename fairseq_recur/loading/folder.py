"""Finding the checkpoint to load in a folder, and its dictionaries."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq import utils
from fairseq.data.data_utils import infer_language_pair

from fairseq_recur.errors import ConfigError, first_items

logger = logging.getLogger(__name__)

PathLike = str | Path

PREFERRED = ("average.pt", "checkpoint_best.pt", "checkpoint_last.pt")
"""Preferred names of a checkpoint, in this order."""

SHOWN = 12  # files listed in an error


def listing(folder: Path, pattern: str = "*") -> str:
    """Describe the files of a folder for an error."""
    names = sorted(path.name for path in folder.glob(pattern))
    nothing = "no files" if pattern == "*" else f"no {pattern}"
    return first_items(names, SHOWN) if names else nothing


def find_checkpoints(
    folder: PathLike, checkpoint: PathLike | Sequence[PathLike] | None
) -> tuple[Path, list[Path]]:
    """Choose the checkpoints to load.

    Args:
        folder: folder of the checkpoints, or one checkpoint file.
        checkpoint: a file in the folder or elsewhere, several for an ensemble, or None.

    Returns:
        The folder and the files.

    Raises:
        ConfigError: the folder or file does not exist, or the choice is ambiguous.
    """
    home = Path(folder).expanduser()
    if home.is_file() and checkpoint is None:
        return home.parent, [home]
    if home.is_file():
        raise ConfigError(
            f"{folder} is a checkpoint, and checkpoint={checkpoint!r} names another; give one of "
            "them, or the folder and a name"
        )
    if not home.is_dir():
        raise ConfigError(
            f"no file or folder {folder} ({home.absolute()}); expected a checkpoint, the "
            "--save-dir of fairseq-train, or a folder with a checkpoint and its dictionaries"
        )
    if checkpoint is None:
        return home, [choose_checkpoint(home)]
    given = [checkpoint] if isinstance(checkpoint, (str, Path)) else list(checkpoint)
    if not given:
        raise ConfigError("checkpoint=[] is an empty list; name at least one file")
    return home, [named_checkpoint(home, Path(name).expanduser()) for name in given]


def named_checkpoint(home: Path, name: Path) -> Path:
    """Return the path of a checkpoint given by name; ConfigError if it does not exist."""
    for path in (home / name, name):
        if path.is_file():
            return path
    raise ConfigError(
        f"no checkpoint {name} in {home}; it holds {listing(home, '*.pt')}; name one of those"
    )


def choose_checkpoint(home: Path) -> Path:
    """Return the default checkpoint of a folder; ConfigError if the choice is ambiguous."""
    found = sorted(home.glob("*.pt"))
    preferred = [home / name for name in PREFERRED if (home / name).is_file()]
    if not found:
        raise ConfigError(
            f"no checkpoint (*.pt) in {home}; it holds {listing(home)}. Give the "
            "--save-dir of fairseq-train, or the file itself (in Python: checkpoint=FILE)"
        )
    if len(found) > 1 and not preferred:
        raise ConfigError(
            f"{home} has several checkpoints, {listing(home, '*.pt')}, and none "
            f"is called {', '.join(PREFERRED)}; give one of them instead of the folder (in Python: "
            "checkpoint=NAME)"
        )
    chosen = (preferred or found)[0]
    if len(found) > 1:
        logger.info("%s has %d checkpoints; using %s", home, len(found), chosen.name)
    return chosen


def find_dictionaries(
    home: Path, data: PathLike | None, saved: str | None, languages: Sequence[str | None]
) -> tuple[Path, list[str]]:
    """Find the folder with the dictionaries.

    Args:
        home: folder of the checkpoint.
        data: the user's choice, if any.
        saved: data folder of the training, from the checkpoint.
        languages: source and target, None if unknown; empty for a language model.

    Returns:
        The folder and the languages.

    Raises:
        ConfigError: no folder has them; it names the files and the folders.
    """
    of_training = [Path(path) for path in utils.split_paths(saved)[:1]] if saved else []
    places = [home, *of_training] if data is None else [Path(data).expanduser()]
    looked, known = [], list(languages)
    for place in places:
        found = known_languages([place, *of_training], languages)
        names = [f"dict.{name}.txt" for name in found] if languages else ["dict.txt"]
        lacking = [name for name in names if not (place / name).is_file()]
        if not lacking and (found or not languages):
            return place, found
        known = [*found] or known
        what = listing(place, "dict*.txt") if place.is_dir() else "no such folder"
        looked.append(f"{place} ({what})")
    if languages:
        wanted = " and ".join(f"dict.{name or 'LANGUAGE'}.txt" for name in known)
    else:
        wanted = "dict.txt"
    raise ConfigError(
        f"no {wanted} in {' or '.join(looked)}; give data=FOLDER (--data), the "
        "--destdir of fairseq-preprocess, or copy the dictionaries to the checkpoint"
        + ("" if all(known) else ", and source_lang= and target_lang= (-s and -t)")
    )


def known_languages(places: Sequence[Path], languages: Sequence[str | None]) -> list[str]:
    """Return both languages, unknown ones from the first folder with binary data, if any."""
    found: list[Any] = list(languages)
    for place in places:
        if None in found and place.is_dir():
            inferred = infer_language_pair(str(place))
            found = [name or other for name, other in zip(found, inferred)]
    return [] if None in found else found
