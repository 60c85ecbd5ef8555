"""One training in a folder: it continues what is there, and its process locks the folder."""

import logging
import re
import weakref
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from omegaconf import DictConfig

from fairseq_recur.compat.registry import Function, extend
from fairseq_recur.errors import ConfigError
from fairseq_recur.locks import hold, name_holder

logger = logging.getLogger(__name__)

LOCK = ".training.lock"
"""File in --save-dir that is locked during a training."""

LAST = "checkpoint_last.pt"
"""fairseq's default of --restore-file, a file in --save-dir."""

PERIODIC = re.compile(r"checkpoint(_?\d+)+\.pt")
"""A checkpoint of an epoch or of a number of updates."""

_locks: dict[Path, IO[str]] = {}
_trainings: Counter[Path] = Counter()
"""Trainings of this process in each folder, one after the other."""
_releases: "list[weakref.finalize[[Path], Any]]" = []


@extend("fairseq.trainer:Trainer.__init__", "one training in a folder")
def init_trainer(construct: Function, self: Any, cfg: Any, *args: Any, **kwargs: Any) -> None:
    """Lock the folder that the first process writes to.

    Raises:
        ConfigError: the training would begin anew over the checkpoints of another one; or as `lock`
    """
    if isinstance(cfg, DictConfig) and not cfg.checkpoint.no_save:
        check_continued(Path(cfg.checkpoint.save_dir), cfg.checkpoint.restore_file)
    construct(self, cfg, *args, **kwargs)
    if not isinstance(cfg, DictConfig):
        return
    folder = Path(cfg.checkpoint.save_dir)
    if self.is_data_parallel_master and not cfg.checkpoint.no_save and folder.is_dir():
        folder = folder.resolve()
        if lock(folder):
            _releases.append(weakref.finalize(self, unlock, folder))


@extend("fairseq.distributed.utils:call_main", "one training in a folder")
def call_main(call: Function, *args: Any, **kwargs: Any) -> Any:
    """Release folders when the training ends; a notebook may keep its trainer in a traceback."""
    before = len(_releases)
    try:
        return call(*args, **kwargs)
    finally:
        while len(_releases) > before:
            _releases.pop()()  # a finalizer runs once


def check_continued(folder: Path, file: str) -> None:
    """Check that a training continues the one whose checkpoints are in its folder.

    Without the file to restore, fairseq begins anew and writes over them. A training that is killed
    during its first save leaves one periodic checkpoint and no last one, so that is allowed.

    Args:
        folder: ``--save-dir``
        file: ``--restore-file``

    Raises:
        ConfigError: the folder has checkpoints, but not the one to restore
    """
    path = folder / file if file == LAST else Path(file)
    if path.exists() or file == "none" or "://" in file:
        return
    found = sorted(folder.glob("checkpoint*.pt"), key=lambda path: path.stat().st_mtime)
    names = [path.name for path in found]
    if path.name == LAST:
        sharded = any(name.startswith("checkpoint_last-") for name in names)
        lost = not sharded and sum(bool(PERIODIC.fullmatch(name)) for name in names) > 1
    else:
        lost = bool(names)
    if lost:
        shown = ("..., " if len(names) > 5 else "") + ", ".join(names[-5:])
        raise ConfigError(
            f"--save-dir {folder} has checkpoints of a training ({shown}), but {path} to continue "
            "from does not exist. A new training would overwrite them: continue with "
            f"--restore-file {found[-1]}, or give another --save-dir"
        )


def lock(folder: Path) -> bool:
    """Lock a folder for this process.

    Returns:
        whether it can be locked, and is to be unlocked by `unlock`

    Raises:
        ConfigError: another training writes to it
    """
    if folder not in _locks:
        try:
            held = hold(folder / LOCK, inherited=False)
        except OSError as error:
            logger.warning(
                "%s cannot be locked (%s): see to it that no other training uses it", folder, error
            )
            return False
        if held is None:
            other = (folder / LOCK).read_text(encoding="utf-8", errors="replace").strip()
            raise ConfigError(
                f"--save-dir {folder}: another training writes to it (process {other}), and both "
                "would overwrite each other's checkpoints; wait for it, end it, or give another "
                "--save-dir"
            )
        with suppress(OSError):  # the disk is full
            name_holder(held)
        _locks[folder] = held
    _trainings[folder] += 1
    return True


def unlock(folder: Path) -> None:
    """Release a folder after the last of this process's trainings in it."""
    _trainings[folder] -= 1
    if not _trainings[folder]:
        _locks.pop(folder).close()
