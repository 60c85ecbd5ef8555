"""Criterions of this plug-in. Importing this package registers them with fairseq."""

from fairseq_recur.criterions.string_accuracy import StringAccuracyCriterion

__all__ = ["StringAccuracyCriterion"]
