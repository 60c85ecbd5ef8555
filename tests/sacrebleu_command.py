"""sacrebleu's own command in this process: starting Python for each call takes a second."""

import builtins
import functools
import io
import json
import os
import signal
import sys
from typing import Any
from unittest.mock import patch

broken_pipe = signal.getsignal(signal.SIGPIPE)
from sacrebleu import sacrebleu  # noqa: E402

# The command lets a broken pipe end its process. Here that would be the process of the tests.
signal.signal(signal.SIGPIPE, broken_pipe)


class Stream(io.StringIO):
    """A standard stream that the command may open again by its number."""

    def fileno(self) -> Any:
        return self


def reopen(file: Any, *arguments: Any, **named: Any) -> Any:
    """The stream itself, where the command opens it again."""
    return file if isinstance(file, Stream) else builtins.open(file, *arguments, **named)


def run_sacrebleu(arguments: list[Any], seed: int | None = None) -> Any:
    """What ``sacrebleu ARGUMENTS`` prints as JSON."""
    environment = {k: v for k, v in os.environ.items() if k != "SACREBLEU_SEED"}
    if seed is not None:
        environment["SACREBLEU_SEED"] = str(seed)
    # The command cannot write the float32 of chrF's and TER's means as JSON.
    dumps = functools.partial(json.dumps, default=float)
    with (
        patch.dict(os.environ, {**environment, "NO_COLOR": "1"}, clear=True),
        patch.object(sys, "argv", ["sacrebleu", *map(str, arguments)]),
        patch.object(sys, "stdin", Stream()),
        patch.object(sys, "stdout", Stream()) as printed,
        patch.object(sacrebleu, "open", reopen, create=True),
        patch.object(json, "dumps", dumps),
    ):
        sacrebleu.main()
    return json.loads(printed.getvalue())
