"""Stopping a training that is asked to: after the update, with a checkpoint to go on from.

fairseq saves nothing when it is told to end. Here SIGTERM, which schedulers send before they
take a machine away, and SIGUSR1, which SLURM can send a while before the time is up, let the
update end, save checkpoint_last.pt, and end the program with a status of its own.
"""

import functools
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.distributed import utils as distributed_utils

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)

STOPPED = 75
"""EX_TEMPFAIL of sysexits.h: nothing is wrong, run the same command again."""

FOLDER = "FAIRSEQ_RECUR_STOP"
"""A folder through which a launcher asks with a file `asked`, for signals do not pass torchrun.
Then a file `stopped` is the answer, and the status is 0: torchrun would report a failure."""

logger = logging.getLogger(__name__)


class Stop:
    """What was asked for, and whether the training has ended because of it."""

    def __init__(self) -> None:
        self.asked: str | None = None
        self.stopped = False
        self.folder = Path(os.environ[FOLDER]) if os.environ.get(FOLDER) else None
        self.before: dict[signal.Signals, Any] = {}

    @property
    def status(self) -> int:
        """The exit status of the program."""
        return STOPPED if self.stopped and self.folder is None else 0

    def listen(self) -> None:
        """From now on signals ask; until the first update they end the program, as ever."""
        if not self.before:
            self.before = {number: signal.signal(number, self._ask) for number in SIGNALS}

    def deafen(self) -> None:
        """Give the signals back."""
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.before = {}

    def _ask(self, number: int, _: Any) -> None:
        self.asked = signal.Signals(number).name

    def agreed(self, trainer: Any) -> bool:
        """Whether any process of the training was asked: all end after the same update."""
        if self.folder is not None and (self.folder / "asked").exists():
            self.asked = self.asked or "a signal to the launcher"
        if trainer.data_parallel_world_size == 1:
            return self.asked is not None
        flag = torch.tensor([int(self.asked is not None)], device=trainer.device)
        distributed_utils.all_reduce(flag, group=trainer.data_parallel_process_group, op="max")
        return bool(flag.item())

    def wrap(self, validate_and_save: Callable) -> Callable:
        """Fairseq's function that is called after every update, looking for signals first."""

        @functools.wraps(validate_and_save)
        def after_update(
            cfg: Any, trainer: Any, task: Any, epoch_itr: Any, *args: Any, **kwargs: Any
        ) -> tuple[list[float | None], bool]:
            self.listen()
            asked = self.agreed(trainer)
            if asked:  # first of all: time may be short, and a validation long
                checkpoint_utils.save_checkpoint(cfg.checkpoint, trainer, epoch_itr, None)
            losses, done = validate_and_save(cfg, trainer, task, epoch_itr, *args, **kwargs)
            if asked and not done:
                self.stopped = True
                self._tell(cfg.checkpoint, trainer)
            return losses, done or asked

        return after_update

    def _tell(self, cfg: Any, trainer: Any) -> None:
        if self.folder is not None:
            (self.folder / "stopped").touch()
        why = self.asked or "a signal to another process"
        saved = "saved; the same command goes on from there"
        if cfg.no_save or cfg.no_last_checkpoints:
            saved = "not saved, because of --no-save or --no-last-checkpoints"
        logger.info(
            f"Stopping training due to {why}, after update {trainer.get_num_updates()}: "
            f"checkpoint_last.pt is {saved}"
        )


@contextmanager
def on_signals(train: Any) -> Iterator[Stop]:
    """While this lasts, trainings by fairseq's module *train* stop as they are asked to."""
    stop, before = Stop(), train.validate_and_save
    train.validate_and_save = stop.wrap(before)
    try:
        yield stop
    finally:
        train.validate_and_save = before
        stop.deafen()
