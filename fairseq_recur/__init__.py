"""Recurrence for fairseq's sequence-to-sequence Transformer.

Importing this package, by ``--user-dir`` or by name, first adapts the installed
fairseq and torch (`compat`), then extends fairseq's commands (`integration`) and registers the
models, optimizers, tasks, criterions and scorers. `from_pretrained` loads a trained model; the
modules that it needs are imported on first use.
"""

import multiprocessing
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_recur.version import __version__

if TYPE_CHECKING:
    from fairseq_recur import compat, criterions, integration, models, optim, scorers, tasks
    from fairseq_recur.pretrained import from_pretrained

__all__ = [
    "__version__",
    "compat",
    "criterions",
    "from_pretrained",
    "integration",
    "models",
    "optim",
    "register",
    "scorers",
    "tasks",
]


def register() -> None:
    """Adapt fairseq and torch, then register everything with fairseq; repeated calls do nothing."""
    import_module("fairseq_recur.compat").apply()
    for name in (
        "criterions", "integration", "models", "optim", "pretrained.hub", "scorers", "tasks",
        "training_guard",
    ):  # fmt: skip
        import_module(f"fairseq_recur.{name}")


def _starts_command() -> bool:
    """Whether this import starts `fairseq-recur`, which calls `register` only if it needs fairseq.

    ``sys.argv[0]`` is "-m" while ``python -m fairseq_recur`` imports the package.
    """
    program = Path(sys.argv[0]).stem if sys.argv else ""
    own_module = program == "-m" and "fairseq_recur" in sys.orig_argv
    command = own_module or program == "fairseq-recur"
    return command and multiprocessing.parent_process() is None


def __getattr__(name: str) -> Any:
    """Import `from_pretrained` on first use; register first where that has been put off."""
    if name == "from_pretrained":
        return import_module("fairseq_recur.pretrained").from_pretrained
    if name in __all__:
        if f"fairseq_recur.{name}" not in sys.modules:  # else it is being imported
            register()
        return sys.modules[f"fairseq_recur.{name}"]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if not _starts_command():
    register()
