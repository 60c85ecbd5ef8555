"""The kinds of models that can be converted, by the name that Hugging Face gives them."""

from pathlib import Path
from types import ModuleType
from typing import Any

from fairseq_recur.conversion import bart, t5
from fairseq_recur.conversion.settings import Settings

KINDS: dict[str, ModuleType] = {"t5": t5, "mt5": t5, "bart": bart}


def kind_of(config: dict[str, Any], folder: Path) -> ModuleType:
    """Return the module for a configuration.

    Raises:
        ConfigError: a model that cannot be converted.
    """
    return KINDS[Settings(config, f"{folder / 'config.json'}").choice("model_type", KINDS)]
