"""A training of which one process is killed after three updates.

``python -m tests.distributed.dying RANK FLAGS...``, started once per process.
"""

import os
import signal
import sys
from typing import Any

from fairseq.trainer import Trainer

from fairseq_recur.cli import main
from tests.configuring import composing_directly

UPDATES = 3

if __name__ == "__main__":
    victim, train_step = sys.argv[1], Trainer.train_step

    def train_or_die(trainer: Trainer, *args: Any, **kwargs: Any) -> Any:
        """Call fairseq's method, or kill the process."""
        if os.environ["RANK"] == victim and trainer.get_num_updates() == UPDATES:
            os.kill(os.getpid(), signal.SIGKILL)
        return train_step(trainer, *args, **kwargs)

    Trainer.train_step = train_or_die
    with composing_directly():
        status = main(["train", *sys.argv[2:]])
    sys.exit(status)
