"""Parts from outside: a plug-in of one's own adds a value to a slot's flag."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import MODEL_DATACLASS_REGISTRY
from hydra.core.config_store import ConfigStore

from fairseq_recur.errors import ConfigError
from fairseq_recur.models.attention_config import SelfAttentionConfig
from fairseq_recur.modules import parts

SLOTS: dict[str, dict[str, Any]] = {
    "encoder_self_attention": parts.SELF_ATTENTION,
    "decoder_self_attention": parts.SELF_ATTENTION,
    "cross_attention": parts.CROSS_ATTENTION,
    "recurrence": parts.RECURRENCE,
    "recurrence_fusion": parts.FUSION,
}


def add_part(slot: str, name: str, part: Any) -> None:
    """Make *name* a value of the slot's flag, of every preset, from the command line and hydra.

    Call it where a module is imported: in the package that ``--user-dir`` names.

    Args:
        slot: ``encoder_self_attention``, ``decoder_self_attention`` (a part of one goes with
            both), ``cross_attention``, ``recurrence`` or ``recurrence_fusion``
        name: what the flag is to take
        part: as the others of the slot's table in `fairseq_recur.modules.parts`

    Raises:
        ConfigError: if there is no such slot, or the name is another part's
    """
    if slot not in SLOTS:
        raise ConfigError(f"add_part: no slot {slot}; choose one of {', '.join(SLOTS)}")
    table = SLOTS[slot]
    if name in table or name in ("none", parts.MULTICOLUMN):
        raise ConfigError(f"add_part: {slot} has a part {name} already; choose another name")
    table[name] = part
    for option in (option for option, other in SLOTS.items() if other is table):
        for config in configurations():
            add_choice(config, option, name)
    store_again()


def configurations() -> Iterator[type[FairseqDataclass]]:
    """The dataclasses of the plug-in's models and those that they extend."""
    ours = (c for c in MODEL_DATACLASS_REGISTRY.values() if issubclass(c, SelfAttentionConfig))
    yield from dict.fromkeys(base for config in ours for base in config.__mro__)


def add_choice(config: type, option: str, name: str) -> None:
    """A further choice of an option that this very class, and not one above it, defines."""
    if option not in vars(config).get("__annotations__", {}):
        return
    defined = next(f for f in fields(config) if f.name == option)
    choices = [choice.value for choice in defined.type]
    if name not in choices:
        defined.type = ChoiceEnum([*choices, name])
    config.__annotations__[option] = defined.type


def store_again() -> None:
    """Give hydra the presets with what they take now; it has a copy of what they took."""
    for name, config in MODEL_DATACLASS_REGISTRY.items():
        if issubclass(config, SelfAttentionConfig):
            node = config()
            node._name = name
            ConfigStore.instance().store(name=name, group="model", node=node, provider="fairseq")
