"""The one model, its configuration and its presets; importing this registers them."""

from fairseq_recur.models import alignments
from fairseq_recur.models.forecaster import ForecasterModel
from fairseq_recur.models.language_model import RecurrentLanguageModel
from fairseq_recur.models.model import RecurrentTransformerModel
from fairseq_recur.models.presets import PRESETS, register_presets

register_presets()

__all__ = [
    "PRESETS",
    "ForecasterModel",
    "RecurrentTransformerModel",
    "RecurrentLanguageModel",
    "alignments",
]
