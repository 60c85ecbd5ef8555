"""The one model, its configuration and its presets; importing this registers them."""

from fairseq_recur.models.config import RecurrentTransformerConfig
from fairseq_recur.models.language_model import RsaLanguageModel, register_language_model
from fairseq_recur.models.model import RecurrentTransformerModel
from fairseq_recur.models.presets import PRESETS, register_presets

register_presets()
register_language_model()

__all__ = ["PRESETS", "RecurrentTransformerConfig", "RecurrentTransformerModel", "RsaLanguageModel"]
