"""Optimizers of this plug-in. Importing this package registers them with fairseq."""

from fairseq_recur.optim import adamw_fused  # noqa: F401  (registers)
