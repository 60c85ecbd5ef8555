"""Compile a C file for this machine, once, and load it.

The library is cached in ``$XDG_CACHE_HOME/fairseq_recur`` (``~/.cache/fairseq_recur``). Its name is
a hash of the source, the options, and the compiler's description of itself and of the processor.
Thus different machines can share a home folder.
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
    """The code cannot be compiled or loaded; the message gives the reason."""


def cache_folder() -> Path:
    """The folder of compiled libraries."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fairseq_recur"


def call(command: list[str]) -> str:
    """Run a compiler and return its output.

    Raises:
        BuildError: it cannot be run or fails
    """
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS
        )
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


def build(source: Path, defines: list[str]) -> Path:
    """Compile *source* unless it is cached, and return the library's path.

    Raises:
        BuildError: the compiler is missing or fails, or the cache folder is not writable
    """
    compiler = shlex.split(os.environ.get("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        raise BuildError(
            f"the C compiler {compiler[0]} is not installed; install it, or set CC to another one"
        )
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
            os.replace(made, library)  # atomic, as other processes may compile it at the same time
    except OSError as error:
        raise BuildError(
            f"the folder {folder} is not writable ({error}); set XDG_CACHE_HOME to one that is"
        ) from error
    return library


def load(name: str, dtype: torch.dtype) -> ctypes.CDLL:
    """The functions of ``NAME.c`` for a dtype, float32 or float64.

    Raises:
        BuildError: they cannot be compiled or loaded
    """
    path = build(FOLDER / f"{name}.c", ["-DDOUBLE"] if dtype == torch.float64 else [])
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(
            f"{path} cannot be loaded ({error}); delete it, and it will be compiled again"
        ) from error


@cache
def library(name: str, dtype: torch.dtype) -> ctypes.CDLL | None:
    """As `load`; logs the reason and returns None if that fails."""
    try:
        return load(name, dtype)
    except BuildError as error:
        logger.info("%s uses torch's operations, which are slower: %s", name, error)
        return None
