"""Commands in separate processes that can be killed; fairseq is imported only once."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from tqdm import tqdm


def own_progress_lock() -> None:
    """Give a fork its own lock of progress bars.

    tqdm's is shared with the parent; a fork that is killed while it holds it would stop all others.
    """
    tqdm.set_lock(threading.RLock())


FORK = """
import importlib, json, os, sys
import fairseq_cli.generate, fairseq_cli.train
import fairseq_recur.cli
print("ready", flush=True)
for line in sys.stdin:
    name, argv, output = json.loads(line)
    child = os.fork()
    if child == 0:
        out = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1), os.dup2(out, 2)
        sys.argv = [name, *argv]
        if name == "average":
            code = fairseq_recur.cli.main(sys.argv)
        else:
            code = importlib.import_module(f"fairseq_cli.{name}").cli_main() or 0
        sys.stdout.flush()
        os._exit(code)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Reads commands, forks a process for each, prints its process id and then its exit status."""


class Commands:
    """Runs train, generate and average, each in a fork of one process that has imported fairseq."""

    def __enter__(self) -> "Commands":
        self.process = subprocess.Popen(
            [sys.executable, "-c", FORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=Path(__file__).parents[1],
        )  # fmt: skip
        assert self._read() == "ready"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()

    def run(self, name: str, *argv: Any, output: Path, kill_after: float | None = None) -> int:
        """Run a command, and kill it if it is still running after *kill_after* seconds.

        Returns:
            the exit status; -9 if the command was killed
        """
        assert self.process.stdin is not None
        line: list[Any] = [name, [str(a) for a in argv], str(output)]
        print(json.dumps(line), file=self.process.stdin, flush=True)
        child = int(self._read())
        if kill_after is not None:
            time.sleep(kill_after)
            # A command that has ended already needs no signal.
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return int(self._read())

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()
