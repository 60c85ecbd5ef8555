"""Stopping a training on a signal: after the current update, with a checkpoint to resume from.

fairseq saves nothing when it is terminated. Here SIGTERM, which schedulers send before they
reclaim a machine, SIGUSR1, which SLURM can send before the time limit, SIGINT (Ctrl-C) and SIGHUP
(a closed terminal) let the update finish, save checkpoint_last.pt and end the program with its own
exit status. A second Ctrl-C ends it at once. Before the first update there is nothing to save.
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

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)

STOPPED = 75
"""EX_TEMPFAIL of sysexits.h: nothing is wrong, run the same command again."""

FOLDER = "FAIRSEQ_RECUR_STOP"
"""Names a folder in which a launcher requests a stop by creating the file `asked`, because torchrun
does not forward signals. The reply is a file `stopped`, and the exit status is 0, because torchrun
would report any other status as a failure."""

logger = logging.getLogger(__name__)


class Stop:
    """Whether a stop was requested, and whether the training has stopped because of it."""

    def __init__(self) -> None:
        self.requested_by: str | None = None
        self.stopped = False
        self.folder = Path(os.environ[FOLDER]) if os.environ.get(FOLDER) else None
        self.previous_handlers: dict[signal.Signals, Any] = {}

    @property
    def status(self) -> int:
        """The exit status of the program."""
        return STOPPED if self.stopped and self.folder is None else 0

    def install(self) -> None:
        """Handle the signals from now on; before the first update they end the program as usual."""
        if not self.previous_handlers:
            self.previous_handlers = {
                number: signal.signal(number, self._request)
                for number in SIGNALS
                if signal.getsignal(number) != signal.SIG_IGN  # as nohup wants it
            }

    def uninstall(self) -> None:
        """Restore the previous handlers."""
        for number, handler in self.previous_handlers.items():
            signal.signal(number, handler)
        self.previous_handlers = {}

    def _request(self, number: int, _: Any) -> None:
        if number == signal.SIGINT and self.requested_by == "SIGINT":
            raise KeyboardInterrupt
        self.requested_by = signal.Signals(number).name

    def agreed(self, trainer: Any) -> bool:
        """Whether any process got a request: all processes stop after the same update."""
        if self.folder is not None and (self.folder / "asked").exists():
            self.requested_by = self.requested_by or "a signal to the launcher"
        if trainer.data_parallel_world_size == 1:
            return self.requested_by is not None
        flag = torch.tensor([int(self.requested_by is not None)], device=trainer.device)
        distributed_utils.all_reduce(flag, group=trainer.data_parallel_process_group, op="max")
        return bool(flag.item())

    def wrap(self, validate_and_save: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap fairseq's function that runs after every update, to check for a request first."""

        @functools.wraps(validate_and_save)
        def after_update(
            cfg: Any, trainer: Any, task: Any, epoch_itr: Any, *args: Any, **kwargs: Any
        ) -> tuple[list[float | None], bool]:
            self.install()
            requested = self.agreed(trainer)
            if requested:  # save first: time may be short, and validation takes long
                checkpoint_utils.save_checkpoint(cfg.checkpoint, trainer, epoch_itr, None)
            losses, done = validate_and_save(cfg, trainer, task, epoch_itr, *args, **kwargs)
            if requested and not done:
                self.stopped = True
                self._report(cfg.checkpoint, trainer)
            return losses, done or requested

        return after_update

    def _report(self, cfg: Any, trainer: Any) -> None:
        if self.folder is not None:
            (self.folder / "stopped").touch()
        cause = self.requested_by or "a signal to another process"
        saved = "saved; run the same command again to resume"
        if cfg.no_save or cfg.no_last_checkpoints:
            saved = "not saved, because of --no-save or --no-last-checkpoints"
        logger.info(
            f"Stopping training due to {cause}, after update {trainer.get_num_updates()}: "
            f"checkpoint_last.pt is {saved}"
        )


@contextmanager
def on_signals(train: Any) -> Iterator[Stop]:
    """Within this context, trainings by fairseq's module *train* stop on the signals."""
    stop, before = Stop(), train.validate_and_save
    train.validate_and_save = stop.wrap(before)
    try:
        yield stop
    finally:
        train.validate_and_save = before
        stop.uninstall()
