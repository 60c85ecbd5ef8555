"""Scorers of this plug-in (``--scoring``). Importing this package registers them with fairseq."""

from fairseq_recur.scorers.rouge import RougeScorer

__all__ = ["RougeScorer"]
