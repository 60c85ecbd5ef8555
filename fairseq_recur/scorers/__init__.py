"""fairseq's scorers of this plug-in (``--scoring``). Importing this package registers them."""

from fairseq_recur.scorers.rouge import RougeScorer

__all__ = ["RougeScorer"]
