"""Recurrence for fairseq's sequence-to-sequence Transformer.

Importing this package, by ``--user-dir`` or by name, first adapts the installed
fairseq and torch (`compat`) and then registers the models and optimizers.
"""

from fairseq_recur import compat
from fairseq_recur.version import __version__

compat.apply()

from fairseq_recur import models, optim  # noqa: E402  (registration needs compat first)

__all__ = ["__version__", "compat", "models", "optim"]
