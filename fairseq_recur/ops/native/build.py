"""Compile a file of C for this machine, once, and load it.

The result stays in ``$XDG_CACHE_HOME/fairseq_recur`` (``~/.cache/fairseq_recur``), under a name
that is made of the source, the options and all that the compiler says of itself and of this
processor: another machine with the same home folder compiles its own.
"""

import ctypes
import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

logger = logging.getLogger(__name__)

FOLDER = Path(__file__).parent
OPTIONS = "-O3 -march=native -fopenmp -fno-math-errno -fno-trapping-math -shared -fPIC".split()
SECONDS = 120


class BuildError(Exception):
    """There is no compiled code on this machine; the message says why."""


def cache_folder() -> Path:
    """Where compiled code stays."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fairseq_recur"


def call(command: list[str]) -> str:
    """What a compiler prints.

    Raises:
        BuildError: it fails
    """
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(
            f"{command[0]} does not run ({error}); set CC to a compiler that does"
        ) from error
    if done.returncode:
        raise BuildError(
            f"{' '.join(command)} failed: {done.stderr.strip()[-2000:]}; set CC to another compiler"
        )
    return done.stdout


def openmp_of_torch() -> list[str]:
    """The OpenMP library that torch brings along: a second one would have threads of its own."""
    return [str(p) for p in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))[:1]]


def build(source: Path, defines: list[str]) -> Path:
    """The library that *source* is compiled to.

    Raises:
        BuildError: there is no compiler, it fails, or the folder cannot be written to
    """
    compiler = shlex.split(os.environ.get("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        raise BuildError(f"there is no C compiler {compiler[0]} (set CC to yours)")
    options = [*OPTIONS, *defines]
    target = call([*compiler, *options, "-E", "-dM", "-x", "c", os.devnull])
    key = hashlib.sha256("\0".join([source.read_text(), *options, target]).encode()).hexdigest()
    folder = cache_folder()
    library = folder / f"{source.stem}-{key[:32]}.so"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if library.exists() and library.stat().st_uid == os.getuid():
            return library
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / "made.so"
            call([*compiler, *options, "-o", str(made), str(source), *openmp_of_torch(), "-lm"])
            os.replace(made, library)  # whole or not at all, whoever else compiles it now
    except OSError as error:
        raise BuildError(
            f"{folder} cannot be written to ({error}); set XDG_CACHE_HOME to a folder that can"
        ) from error
    return library


def load(name: str, dtype: torch.dtype) -> ctypes.CDLL:
    """The functions of ``NAME.c`` for numbers of a dtype.

    Raises:
        BuildError: they cannot be compiled or loaded
    """
    path = build(FOLDER / f"{name}.c", ["-DDOUBLE"] if dtype == torch.float64 else [])
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(
            f"{path} cannot be loaded ({error}); remove it, and it is compiled anew"
        ) from error


@cache
def library(name: str, dtype: torch.dtype) -> ctypes.CDLL | None:
    """As `load`; None, and a line in the log, where that fails."""
    try:
        return load(name, dtype)
    except BuildError as error:
        logger.info("%s stays with torch's operations, which are slower: %s", name, error)
        return None
