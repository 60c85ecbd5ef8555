"""Parts from outside the package: a plug-in of yours adds a value to a slot's flag."""

from typing import Any

from fairseq_recur.errors import ConfigError
from fairseq_recur.models.config import encoder_decoder_slots, language_model_slots
from fairseq_recur.models.presets import register_presets
from fairseq_recur.modules import parts

SLOTS: dict[str, dict[str, Any]] = {
    slot.option: slot.table for slot in (*encoder_decoder_slots(), *language_model_slots())
}


def add_part(slot: str, name: str, part: Any) -> None:
    """Make *name* a value of the slot's flag for every preset, on the command line and in hydra.

    The options that the part declares, and those that it inherits, become flags. Call it where a
    module is imported: in the package that ``--user-dir`` names.

    Args:
        slot: ``encoder_self_attention``, ``decoder_self_attention`` (a part of one fits both),
            their ``..._mixture``, ``cross_attention``, its ``..._mixture``, ``decoder_memory`` of
            language models, ``recurrence`` or ``recurrence_fusion``
        name: the new value of the flag
        part: a class like the others in the slot's table in `fairseq_recur.modules.parts`

    Raises:
        ConfigError: if there is no such slot, or the name belongs to another part
    """
    if slot not in SLOTS:
        raise ConfigError(f"add_part: no slot {slot}; choose one of {', '.join(SLOTS)}")
    table = SLOTS[slot]
    taken = set(table) | {parts.NONE}
    if table in (parts.SELF_ATTENTION, parts.MIXTURE):  # a mixture's name is short for dot with it
        taken |= parts.SELF_ATTENTION.keys() | parts.MIXTURE.keys()
    if name in taken:
        raise ConfigError(f"add_part: {slot} already has a part {name}; choose another name")
    table[name] = part
    register_presets()
