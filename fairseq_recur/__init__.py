"""Recurrence for fairseq's sequence-to-sequence Transformer.

Importing this package, by ``--user-dir`` or by name, first adapts the installed
fairseq and torch (`compat`), then extends fairseq's commands (`integration`) and registers the
models, optimizers, tasks, criterions and scorers. `from_pretrained` loads a trained model; the
modules that it needs are imported on first use.
"""

from typing import TYPE_CHECKING, Any

from fairseq_recur import compat
from fairseq_recur.version import __version__

compat.apply()

# Registration requires compat.
from fairseq_recur import (  # noqa: E402
    criterions,
    integration,
    models,
    optim,
    scorers,
    tasks,
)

if TYPE_CHECKING:
    from fairseq_recur.pretrained import from_pretrained

__all__ = [
    "__version__",
    "compat",
    "criterions",
    "from_pretrained",
    "integration",
    "models",
    "optim",
    "scorers",
    "tasks",
]


def __getattr__(name: str) -> Any:
    """Import `from_pretrained` on first use, because the plug-in itself does not need it."""
    if name == "from_pretrained":
        from fairseq_recur.pretrained import from_pretrained

        return from_pretrained
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
