"""Running fairseq's commands in this process: importing fairseq anew takes three seconds."""

import importlib
import io
import logging
import sys
from contextlib import redirect_stdout
from typing import Any, List
from unittest.mock import patch


def run_command(command: str, *arguments: Any, stdin: str = "") -> str:
    """Run ``fairseq-COMMAND`` with the arguments; its standard output and log as one text.

    Args:
        command: "train", "generate", "interactive", "validate", "preprocess", "hydra_train", ...
        arguments: turned into strings
        stdin: what the command reads

    Raises:
        whatever the command raises
    """
    module = importlib.import_module(f"fairseq_cli.{command}")
    argv: List[str] = [f"fairseq-{command}", *map(str, arguments)]
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    root.handlers, root.level = [handler], logging.INFO
    reset_command_state()
    try:
        with patch.object(sys, "argv", argv), patch.object(sys, "stdin", io.StringIO(stdin)):
            with redirect_stdout(output):
                module.cli_main()
    finally:
        root.handlers, root.level = handlers, level
        reset_command_state()
    return output.getvalue()


def reset_command_state() -> None:
    """Forget what fairseq keeps in its modules between two trainings of one process."""
    from fairseq import checkpoint_utils
    from fairseq.logging import metrics

    metrics.reset()
    if hasattr(checkpoint_utils.save_checkpoint, "best"):
        del checkpoint_utils.save_checkpoint.best
    train = sys.modules.get("fairseq_cli.train")
    for name in ("should_stop_early",):
        function = getattr(train, name, None)
        for attribute in ("best", "num_runs"):
            if hasattr(function, attribute):
                delattr(function, attribute)
