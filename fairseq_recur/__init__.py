"""Recurrence for fairseq's sequence-to-sequence Transformer.

Importing this package, by ``--user-dir`` or by name, first adapts the installed
fairseq and torch (`compat`) and then registers the models, optimizers, tasks, criterions and
scorers. `from_pretrained` loads a trained model; what it needs is imported when it is asked for.
"""

from typing import TYPE_CHECKING, Any

from fairseq_recur import compat
from fairseq_recur.version import __version__

compat.apply()

# Registration needs compat first.
from fairseq_recur import criterions, models, optim, scorers, tasks  # noqa: E402

if TYPE_CHECKING:
    from fairseq_recur.pretrained import from_pretrained

__all__ = [
    "__version__",
    "compat",
    "criterions",
    "from_pretrained",
    "models",
    "optim",
    "scorers",
    "tasks",
]


def __getattr__(name: str) -> Any:
    """Import `from_pretrained` when it is first used: the plug-in itself does not need it."""
    if name == "from_pretrained":
        from fairseq_recur.pretrained import from_pretrained

        return from_pretrained
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
