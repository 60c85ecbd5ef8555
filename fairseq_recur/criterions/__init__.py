"""Criterions of this plug-in. Importing this package registers them with fairseq."""

from fairseq_recur.criterions.copied_cross_entropy import CopiedCrossEntropyCriterion
from fairseq_recur.criterions.forecast_error import ForecastErrorCriterion
from fairseq_recur.criterions.label_smoothed_fused import FusedLabelSmoothedCrossEntropy
from fairseq_recur.criterions.string_accuracy import StringAccuracyCriterion

__all__ = [
    "CopiedCrossEntropyCriterion",
    "ForecastErrorCriterion",
    "FusedLabelSmoothedCrossEntropy",
    "StringAccuracyCriterion",
]
