"""Processes that are forks of this one: a new interpreter imports torch and fairseq for seconds."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import IO, NoReturn

from tqdm import tqdm

from tests.running import reset_command_state


def own_progress_lock() -> None:
    """Give a fork its own lock of progress bars.

    tqdm's is shared with the parent; a fork that is killed while it holds it would stop all others.
    """
    tqdm.set_lock(threading.RLock())


class Fork:
    """A copy of this process that calls a function, with the methods of `subprocess.Popen`.

    It composes configurations as this process does: a test marked "hydra" has them composed by
    hydra.

    Args:
        call: returns the exit status, or None for 0; an error is printed, and the status is 1
        stdout: the file of its output
        stderr: the file of its errors; `subprocess.STDOUT` for that of its output
        env: environment variables besides those of this process
    """

    def __init__(
        self,
        call: Callable[[], int | None],
        stdout: IO[bytes],
        stderr: IO[bytes] | int = subprocess.STDOUT,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _child(call, stdout.fileno(), stderr, env or {})

    def poll(self) -> int | None:
        """Return the exit status of an ended process, -9 of a killed one; None while it runs."""
        return self._look(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status once it has ended.

        Raises:
            TimeoutExpired: it has not after this many seconds
        """
        if timeout is None:
            self._look(0)
        else:
            end = time.monotonic() + timeout
            while self.poll() is None:
                if time.monotonic() > end:
                    raise subprocess.TimeoutExpired("a fork", timeout)
                time.sleep(0.02)
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def _look(self, how: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, how)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def _child(
    call: Callable[[], int | None], stdout: int, stderr: IO[bytes] | int, env: Mapping[str, str]
) -> NoReturn:
    """Call the function as a program of its own would, and end."""
    status = 1
    try:
        own_progress_lock()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(stdout, 1)
        os.dup2(1 if isinstance(stderr, int) else stderr.fileno(), 2)
        sys.stdout, sys.stderr = (open(n, "w", buffering=1, closefd=False) for n in (1, 2))
        os.environ.update(env)
        root = logging.getLogger()
        root.handlers = [logging.StreamHandler(sys.stdout)]
        root.setLevel(logging.INFO)
        reset_command_state()
        status = call() or 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
