"""Optimizers of this plug-in, and what every optimizer reads of a parameter.

Importing this package registers the optimizers with fairseq and extends fairseq's own.
"""

from fairseq_recur.optim import adamw_fused, overrides  # noqa: F401  (registers and extends)
