"""Trained models in Python: from text to text, scores and attention."""

from fairseq_recur.pretrained.hypothesis import Hypothesis
from fairseq_recur.pretrained.loading import from_pretrained
from fairseq_recur.pretrained.model import Pretrained

__all__ = ["Hypothesis", "Pretrained", "from_pretrained"]
