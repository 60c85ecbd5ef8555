"""Text and JSON files that are written completely or not at all, and files of settings."""

import fcntl
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from fairseq_recur.errors import ConfigError, Problems

WORD = r"\.[0-9a-f]{8}"
"""The random part of a temporary name."""


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file that gets its name only when it is complete and on the disk.

    A reader sees either the old file or the whole new one. Each writer has a temporary name of its
    own, PATH.RANDOM.tmp, so two that write the same file at the same time do not mix. After an
    error nothing of the new file remains; what a kill leaves, the next call removes. A symbolic
    link is replaced, unless the caller passes the file `behind_link`.

    Args:
        path: the final name; its folder is created

    Yields:
        a file open for writing bytes

    Raises:
        OSError: the file cannot be written
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():  # a pipe, or /dev/stdout
        with path.open("wb") as pipe:
            yield pipe
        return
    remove_unfinished(path)
    file = new_unfinished(path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(file.name)
        if isinstance(error, OSError) and error.filename is None:  # the disk is full
            error.filename = str(path)
        raise


def write_text(path: Path | str, text: str) -> None:
    """Write a text file in UTF-8 as `whole_file` does; a symbolic link stays."""
    with whole_file(behind_link(Path(path))) as file:
        file.write(text.encode())


def inside(path: str, folder: str) -> str:
    """Return an absolute path relative to a folder if it is in it, else as it is.

    Links and ``..`` in both are followed, but not a link that is the path itself. A text that is no
    absolute path is returned, too.
    """
    if not os.path.isabs(path):
        return path
    before, name = os.path.split(path.rstrip("/"))
    if name == "..":
        before, name = path, ""
    place = os.path.join(os.path.realpath(before), name)
    found = os.path.relpath(place, os.path.realpath(folder))
    return path if found.split("/")[0] == ".." else found


def behind_link(path: Path) -> Path:
    """Return the file that a symbolic link leads to, to replace it and not the link.

    Anything else, and a link to a pipe such as /dev/stdout, stays as it is.
    """
    if path.is_symlink() and (path.is_file() or not path.exists()):
        return Path(os.path.realpath(path))
    return path


def read_json(path: Path) -> Any:
    """Read what `write_json` wrote; None if there is no file.

    Raises:
        ConfigError: the file is damaged
    """
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(
            f"{path} is damaged ({error}); expected JSON: restore the file, or remove it and give "
            "the command again that wrote it"
        ) from error


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file; what ``${...}`` stands for is not looked up.

    Raises:
        ConfigError: it is not YAML
        OSError: it cannot be read
    """
    from omegaconf import OmegaConf  # most commands read no YAML
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        return OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (YAMLError, UnicodeDecodeError, OmegaConfBaseException) as error:
        said = " ".join(str(error).split())
    except OSError as error:
        if error.errno is not None:
            raise
        said = str(error)  # OmegaConf's for a number alone
    raise ConfigError(f"{path} is not YAML: {said}; correct it there")


def write_json(path: Path | str, content: Any) -> None:
    """Write a file completely or not at all."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def output_problems(
    *paths: Path | str | None, inputs: Iterable[Path | str | None] = ()
) -> Iterator[str]:
    """Yield why files cannot be written; call it before the work starts.

    Args:
        paths: of the files, or of pipes such as /dev/stdout; None for a file that nobody wants
        inputs: files that the command reads, and must not replace; None and missing ones are no
            problem
    """
    seen: dict[str, Path] = {}
    read = [file for file in inputs if file is not None and os.path.isfile(file)]
    for path in (Path(path) for path in paths if path is not None):
        real = behind_link(path)
        folder = real.absolute().parent
        # A file is replaced by a new one of its folder, which has to allow that; a pipe is not.
        is_pipe = path.exists() and not path.is_file()
        place = path if is_pipe else folder
        first = path if is_pipe else seen.setdefault(os.path.realpath(path), path)
        if path.is_dir():
            yield f"cannot write {path}: this is a folder; expected a file name"
        elif real != path and re.match(r"/dev$|/proc/", os.path.realpath(path.parent)):
            yield f"cannot write {path}: it is the open file {real}; name another file"
        elif not folder.is_dir():
            yield f"cannot write {path}: no folder {real.parent}; create it first"
        elif not os.access(place, os.W_OK):
            yield f"cannot write {path}: {place} is not writable; choose another name or folder"
        elif path.is_file() and any(path.samefile(file) for file in read):
            yield f"cannot write {path}: this command reads it; give another name"
        elif first is not path:
            yield f"cannot write {path}: {first} is the same file; give each a different name"


def check_outputs(*paths: Path | str | None, inputs: Iterable[Path | str | None] = ()) -> None:
    """Refuse files that cannot be written, with all `output_problems`.

    Raises:
        ConfigError: there is one
    """
    problems = Problems("these files cannot be written")
    for problem in output_problems(*paths, inputs=inputs):
        problems.add(problem)
    problems.raise_all()


def unfinished_name(path: Path) -> Path:
    """Return a temporary name beside *path*."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")


def left_behind(path: Path, word: str = WORD) -> Iterator[Path]:
    """Yield what there is under temporary names of *path*."""
    pattern = re.compile(re.escape(path.name) + word + r"\.tmp")
    yield from map(path.with_name, filter(pattern.fullmatch, os.listdir(path.parent)))


def new_unfinished(path: Path) -> BinaryIO:
    """Create a temporary file beside *path*, and lock it until it is closed."""
    while True:
        file = unfinished_name(path).open("xb")
        with suppress(OSError):  # the file system has no locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.path.exists(file.name):  # else `remove_unfinished` of another process was faster
            return file
        file.close()


def remove_unfinished(path: Path) -> None:
    """Remove what writers of a file left that no longer live, and so no longer hold a lock.

    fairseq's own writer of checkpoints leaves CHECKPOINT.pt.tmp.
    """
    for left in left_behind(path, f"({WORD})?" if path.suffix == ".pt" else WORD):
        with suppress(OSError), left.open("rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()
