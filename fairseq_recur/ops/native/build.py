"""Compile a C file for this machine, once, and load it.

The library is cached in ``$XDG_CACHE_HOME/fairseq_recur`` (``~/.cache/fairseq_recur``). Its name is
a hash of the source, the options, the name of torch's OpenMP library, and the compiler's
description of itself and of the processor. Thus different machines and environments can share a
home folder.

Trusted: the compiler. Not trusted: a cache folder that others can write to, and a file in it that
is not complete. The folder must belong to this user. A library ends with a hash of its content,
and is loaded from the open file whose hash was compared, not from its name.
"""

import ctypes
import hashlib
import logging
import os
import secrets
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import torch

logger = logging.getLogger(__name__)

FOLDER = Path(__file__).parent
OPTIONS = "-O3 -march=native -fopenmp -fno-math-errno -fno-trapping-math -shared -fPIC".split()
SECONDS = 120
DIGEST = hashlib.sha256().digest_size
OTHERS_WRITE = 0o022


class BuildError(Exception):
    """The code cannot be compiled or loaded; the message gives the reason."""


def cache_folder() -> Path:
    """The folder of compiled libraries.

    Raises:
        BuildError: this user has no home folder
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # a relative path is invalid
        return Path(base) / "fairseq_recur"
    try:
        return Path.home() / ".cache" / "fairseq_recur"
    except RuntimeError as error:
        raise BuildError(f"there is no cache folder ({error}); set XDG_CACHE_HOME") from error


@contextmanager
def private_folder() -> Iterator[int]:
    """Open the cache folder, after making it.

    Yields:
        its descriptor, which stays the same folder when its name is given to another

    Raises:
        BuildError: it cannot be written, or others can write to it
    """
    folder, descriptor = cache_folder(), None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & OTHERS_WRITE:
            raise BuildError(
                f"the folder {folder} belongs to another user, or others can write to it; set "
                "XDG_CACHE_HOME to one of your own"
            )
        yield descriptor
    except (OSError, ValueError) as error:
        raise BuildError(
            f"the folder {folder} is not writable ({error}); set XDG_CACHE_HOME to one that is"
        ) from error
    finally:
        if descriptor is not None:
            os.close(descriptor)


def call(command: list[str]) -> str:
    """Run a compiler and return its output.

    Raises:
        BuildError: it cannot be run or fails
    """
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(
            f"the C compiler {command[0]} cannot be run ({error}); set CC to a working compiler"
        ) from error
    if done.returncode:
        raise BuildError(
            f"{' '.join(command)} failed: {done.stderr.strip()[-2000:]}; set CC to another compiler"
        )
    return done.stdout


def openmp_of_torch() -> list[str]:
    """Torch's own OpenMP library: a second one would start threads of its own."""
    return [str(p) for p in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))[:1]]


def compiler() -> list[str]:
    """The command that CC gives, or ``cc``.

    Raises:
        BuildError: there is no such program
    """
    given = os.environ.get("CC", "").strip() or "cc"
    try:
        words = shlex.split(given)
        found = shutil.which(words[0])
    except (ValueError, IndexError):
        found = None
    if found is None:
        raise BuildError(
            f"the C compiler {given} is not installed; install it, or set CC to another one"
        )
    return words


def compiled(command: list[str], source: Path) -> bytes:
    """Compile *source* and return the library.

    Raises:
        BuildError: the compiler fails
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "made.so"
            call([*command, "-o", str(made), str(source), *openmp_of_torch(), "-lm"])
            return made.read_bytes()
    except OSError as error:
        raise BuildError(f"the C compiler wrote no library ({error}); set TMPDIR or CC") from error


def store(content: bytes, name: str, folder: int) -> None:
    """Write a library with its hash, under its name once it is complete and on the disk."""
    # Machines share home folders, and their containers have equal process numbers.
    unfinished = f"{name}.{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        with open(os.open(unfinished, flags, 0o600, dir_fd=folder), "wb") as file:
            file.write(content + hashlib.sha256(content).digest())
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished, dir_fd=folder)
        raise


def open_library(name: str, folder: int) -> ctypes.CDLL | None:
    """Load a library whose content has its hash; None if there is none.

    Raises:
        BuildError: the system cannot load it
    """
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
    except OSError:
        return None
    with open(descriptor, "rb", closefd=False) as file:
        content = file.read()
    if hashlib.sha256(content[:-DIGEST]).digest() != content[-DIGEST:]:
        os.close(descriptor)
        return None
    try:
        # The descriptor stays open: the loader takes a later file of this path for the same one.
        return ctypes.CDLL(f"/proc/self/fd/{descriptor}")
    except OSError as error:
        os.close(descriptor)
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
        raise BuildError(
            f"the compiled {name} cannot be loaded ({error}); set CC to another compiler, or "
            "XDG_CACHE_HOME to a folder whose files may be executed"
        ) from error


def build(source: Path, defines: list[str]) -> ctypes.CDLL:
    """Compile *source* unless it is cached, and load it.

    Raises:
        BuildError: the compiler is missing or fails, or the cache folder is not of use
    """
    command = [*compiler(), *OPTIONS, *defines]
    target = call([*command, "-E", "-dM", "-x", "c", os.devnull])
    linked = [Path(path).name for path in openmp_of_torch()]
    parts = [source.read_text(), *OPTIONS, *defines, *linked, target]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    name = f"{source.stem}-{key[:32]}.so"
    with private_folder() as folder:
        found = open_library(name, folder)
        if found is None:
            store(compiled(command, source), name, folder)
            found = open_library(name, folder)
    if found is None:
        raise BuildError(f"the compiled {name} was changed by another process; start again")
    return found


def load(name: str, dtype: torch.dtype) -> ctypes.CDLL:
    """The functions of ``NAME.c`` for a dtype, float32 or float64.

    Raises:
        BuildError: they cannot be compiled or loaded
    """
    return build(FOLDER / f"{name}.c", ["-DDOUBLE"] if dtype == torch.float64 else [])


@cache
def library(name: str, dtype: torch.dtype) -> ctypes.CDLL | None:
    """As `load`; logs the reason and returns None if that fails."""
    try:
        return load(name, dtype)
    except BuildError as error:
        logger.info("%s uses torch's operations, which are slower: %s", name, error)
        return None
