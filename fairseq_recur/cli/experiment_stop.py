"""``experiment stop``: stop the process that works in a folder; its checkpoints are kept."""

import argparse
import os
import signal
import socket
import time
from pathlib import Path

from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.folder_lock import is_held, process_of
from fairseq_recur.experiments.reading import read_about
from fairseq_recur.experiments.runner import PATIENCE
from fairseq_recur.experiments.steps import LOCK


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("work_dir", metavar="DIR", help="folder of the experiment")


def run(args: argparse.Namespace) -> int:
    """Stop the process that works in a folder, and wait for its end."""
    work = Path(args.work_dir)
    read_about(work)
    if not is_held(work):
        print("nothing is running")
        return 0
    process, _, host = process_of(work).partition(" on ")
    if host and host != socket.gethostname():
        raise ConfigError(
            f"the experiment in {work} runs on {host}, and this machine is {socket.gethostname()}; "
            "give the same command there"
        )
    if not process.isdigit():
        raise ConfigError(
            f"the process in {work} has not written its number to {LOCK} yet; try again"
        )
    try:
        os.kill(int(process), signal.SIGTERM)
    except OSError as error:  # it has just ended, or belongs to another user
        raise ConfigError(
            f"process {process} cannot be stopped: {error.strerror}; "
            f"look with `fairseq-recur experiment status {work}`"
        ) from None
    print(
        "waiting until each training has saved a checkpoint after its next update, which a "
        "validation may delay; a second `experiment stop` ends all at once",
        flush=True,
    )
    wait = PATIENCE + 60  # the process itself ends what has not ended after PATIENCE
    end = time.monotonic() + wait
    while is_held(work):
        if time.monotonic() > end:
            raise ConfigError(
                f"process {process} has not ended after {wait / 60:g} minutes; wait, or end it "
                f"with kill -9 {process}"
            )
        time.sleep(0.1)
    print("stopped; all checkpoints are kept")
    return 0
