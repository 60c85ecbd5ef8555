"""The configuration of the one model: a flat dataclass, from which the flags come.

It has every option of fairseq's Transformer under its usual name (``encoder_embed_dim``
is ``--encoder-embed-dim``), taken from the installed fairseq so that a recipe for the
stock model keeps its meaning, and the options of the recurrent parts.
"""

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from omegaconf import II

from fairseq_recur.models.attention_config import SelfAttentionConfig
from fairseq_recur.models.cross_config import CrossAttentionConfig
from fairseq_recur.models.monitoring import MonitoringConfig
from fairseq_recur.models.t5_config import T5Config
from fairseq_recur.modules.biarn import ATTENTION
from fairseq_recur.modules.parts import FUSION, MULTICOLUMN, RECURRENCE, SELF_ATTENTION

# Deprecated or without effect on an encoder-decoder; `--relu-dropout` stays as an alias.
LEFT_OUT = {"adaptive_input", "char_inputs", "decoder_input_dim", "relu_dropout"}

# fairseq's architecture functions give these the value of another option.
FOLLOWS = {
    "decoder_embed_dim": II("model.encoder_embed_dim"),
    "decoder_ffn_embed_dim": II("model.encoder_ffn_embed_dim"),
    "decoder_output_dim": II("model.decoder_embed_dim"),
    "max_source_positions": II("task.max_source_positions"),
    "max_target_positions": II("task.max_target_positions"),
}

# The stock type is a list, but the code that reads the value splits a string.
TYPES = {"encoder_layers_to_keep": Optional[str], "decoder_layers_to_keep": Optional[str]}  # noqa: UP045 (fairseq reads the form)

DataclassField = tuple[str, Any, Any]


def host_fields() -> Iterator[DataclassField]:
    """The options of fairseq's Transformer, flat: (name, type, dataclass field)."""
    for outer in fields(TransformerConfig):
        nested = isinstance(outer.type, type) and issubclass(outer.type, FairseqDataclass)
        for inner in fields(outer.type) if nested else [outer]:
            name = f"{outer.name}_{inner.name}" if nested else inner.name
            if inner.name == "_name" or name in LEFT_OUT:
                continue
            default = FOLLOWS.get(name, inner.default)
            if default is MISSING:
                default = inner.default_factory()
            metadata = dict(inner.metadata)
            if nested:
                metadata["help"] = f"{outer.name.replace('_', ' ')}: {metadata['help']}"
            yield name, TYPES.get(name, inner.type), field(default=default, metadata=metadata)


HostConfig = make_dataclass("HostConfig", host_fields(), bases=(FairseqDataclass,))


@dataclass
class RecurrentTransformerConfig(
    SelfAttentionConfig, CrossAttentionConfig, T5Config, MonitoringConfig, HostConfig
):
    """Options of the parts, after those of fairseq's Transformer."""

    encoder_self_attention: ChoiceEnum(list(SELF_ATTENTION)) = field(
        default="dot",
        metadata={
            "help": "part for the encoder's self-attention: as for the decoder, and to compare "
            "with directional, half of whose heads look back and half ahead (Shen et al. 2018)"
        },
    )
    recurrence: ChoiceEnum(["none", *RECURRENCE]) = field(
        default="none",
        metadata={
            "help": "recurrence encoder (Hao et al. 2019): bidirectional GRU (birnn) or "
            "attentive recurrent network (biarn)"
        },
    )
    recurrence_layers: int = field(
        default=1, metadata={"help": "layers of the recurrence encoder; the paper tries 1, 3 and 6"}
    )
    recurrence_steps: int = field(
        default=8,
        metadata={
            "help": "recurrence steps R of biarn; -1: one for each token of the source, as birnn has"
        },
    )
    recurrence_attention: ChoiceEnum(list(ATTENTION)) = field(
        default="additive",
        metadata={"help": "attention with which biarn reads the source at every step"},
    )
    recurrence_fusion: ChoiceEnum([*FUSION, MULTICOLUMN]) = field(
        default="stack",
        metadata={
            "help": "how a decoder layer joins its attention over the recurrence encoder with "
            "that over the Transformer encoder (stack, gated_sum); to compare with, multicolumn: "
            "the encoders' outputs are joined, for all layers (Chen et al. 2018; birnn alone)"
        },
    )
    recurrence_fused_layers: str = field(
        default="top",
        metadata={
            "help": "decoder layers that read the recurrence encoder: the top one (top), all of "
            "them (all), or a number N of layers counted from the top"
        },
    )
    recurrence_gate: ChoiceEnum(["vector", "scalar"]) = field(
        default="vector",
        metadata={"help": "gate of the gated_sum: a value per channel, or one per position"},
    )
    recurrence_positions: bool = field(
        default=False,
        metadata={"help": "add position embeddings to the input of the recurrence encoder"},
    )


def fused_layers(cfg: Any) -> int:
    """How many decoder layers, counted from the top, read the recurrence encoder.

    Args:
        cfg: anything with ``recurrence``, ``recurrence_fusion``, ``recurrence_fused_layers``
            and ``decoder_layers``

    Raises:
        ValueError: if ``recurrence_fused_layers`` is neither "top", "all" nor a number
    """
    if cfg.recurrence == "none" or cfg.recurrence_fusion == MULTICOLUMN:
        return 0
    names = {"top": 1, "all": cfg.decoder_layers}
    wanted = cfg.recurrence_fused_layers
    return names[wanted] if wanted in names else int(wanted)
