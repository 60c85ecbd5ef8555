"""Optimizers that fairseq finds by name once this package is imported."""

from fairseq_recur.optim import adamw_fused  # noqa: F401  (registers)
