"""Checkpoints are written whole or not at all."""

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch

from fairseq_recur.compat.registry import Function, mend
from fairseq_recur.errors import FULL, REMEDIES, CheckpointError
from fairseq_recur.files import WORD, whole_file

ZIP_WRITER = "inline_container"
"""The file of torch's zip writer, which its errors name; they hide a full disk."""


@contextlib.contextmanager
def whole_checkpoint(path: str) -> Iterator[BinaryIO]:
    """Write a file as `whole_file` does, with an error that says what is left and what to do."""
    with explained(Path(path)), whole_file(Path(path)) as file:
        yield file


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Replace an error of writing a file or folder; one about an input, or a defect, passes.

    Raises:
        CheckpointError: it could not be written
    """
    try:
        yield
    except CheckpointError:
        raise
    except (OSError, RuntimeError) as error:
        if not _is_of_output(error, path):
            raise
        what = f"{path} could not be written ({type(error).__name__}: {error})"
        number = error.errno if isinstance(error, OSError) else None
        if number is not None and number not in FULL:
            remedy = REMEDIES.get(number, "look at its disk, and at that of the input")
            raise CheckpointError(f"{what}; earlier files are intact: {remedy}") from error
        folder = path.parent
        free = shutil.disk_usage(folder if folder.is_dir() else ".").free
        raise CheckpointError(
            f"{what}; the disk of {folder} has {free / 1e9:.2f} GB left. Earlier files are intact: "
            "free some space and run the same command again"
        ) from error


def _is_of_output(error: OSError | RuntimeError, path: Path) -> bool:
    """Return whether an error can be about the output: it does not name other files only.

    The output has a temporary name until it is complete, and may need a folder above it.
    """
    if isinstance(error, RuntimeError):
        return ZIP_WRITER in str(error)
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    written = re.compile(re.escape(str(path)) + rf"({WORD}\.tmp)?(/.*)?", re.DOTALL)
    return not names or any(written.fullmatch(name) or Path(name) in path.parents for name in names)


whole = mend(
    "whole checkpoints",
    reason="checkpoint_last.pt is overwritten in place, so a kill leaves half of it; and after a "
    "failed write fairseq appends a second attempt to the same file",
    until="permanent",
)


@whole.patch("fairseq.checkpoint_utils:torch_persistent_save")
def torch_persistent_save(
    save: Function, obj: Any, filename: str, async_write: bool = False
) -> None:
    """Save to a temporary file and rename it when it is complete."""
    from fairseq.file_io import PathManager

    if async_write or PathManager.path_requires_pathmanager(filename):
        save(obj, filename, async_write=async_write)
        return
    with whole_checkpoint(filename) as file:
        torch.save(obj, file)


@whole.patch("fairseq.file_io:PathManager.copy")
def copy(original: Function, src_path: str, dst_path: str, overwrite: bool = False) -> Any:
    """Copy to a temporary file and rename it when it is complete."""
    from fairseq.file_io import PathManager

    remote = PathManager.path_requires_pathmanager
    if not overwrite or remote(src_path) or remote(dst_path):
        return original(src_path, dst_path, overwrite=overwrite)
    with open(src_path, "rb") as source, whole_checkpoint(dst_path) as file:
        shutil.copyfileobj(source, file)
    return True


interval = mend(
    "interval at an epoch's end",
    reason="with --no-epoch-checkpoints, fairseq keeps no checkpoint of a multiple of "
    "--save-interval-updates that ends an epoch; so it depends on the size of the data which ones "
    "there are to average",
    until="a fairseq whose save_checkpoint keeps them all",
)


class _WithinEpoch:
    """An epoch's iterator that does not tell that the epoch has ended."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    def end_of_epoch(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)


@interval.patch("fairseq.checkpoint_utils:save_checkpoint")
def save_checkpoint(save: Function, cfg: Any, trainer: Any, epoch_itr: Any, *args: Any) -> Any:
    """Treat the end of an epoch like any other update, if one of the interval is due."""
    every = cfg.save_interval_updates
    if cfg.no_epoch_checkpoints and every > 0 and trainer.get_num_updates() % every == 0:
        epoch_itr = _WithinEpoch(epoch_itr)
    return save(cfg, trainer, epoch_itr, *args)
