"""Recurrence for fairseq's sequence-to-sequence Transformer.

Importing this package, by ``--user-dir`` or by name, first adapts the installed
fairseq and torch (`compat`) and then registers the models, optimizers, tasks, criterions and
scorers.
"""

from fairseq_recur import compat
from fairseq_recur.version import __version__

compat.apply()

# Registration needs compat first.
from fairseq_recur import criterions, models, optim, scorers, tasks  # noqa: E402

__all__ = ["__version__", "compat", "criterions", "models", "optim", "scorers", "tasks"]
