"""The flat configurations of the models, assembled from the declarations of their parts.

A configuration has every option of fairseq's Transformer under its usual name
(``encoder_embed_dim`` is ``--encoder-embed-dim``), taken from the installed fairseq so that a
recipe for the stock model keeps its meaning, then the slots and the options of the parts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from typing import Any, Optional, cast

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModelConfig
from omegaconf import II

from fairseq_recur.models.monitoring import MonitoringOptions
from fairseq_recur.models.t5 import T5Options
from fairseq_recur.modules import parts
from fairseq_recur.modules.options import declared, flag, listed, option
from fairseq_recur.modules.recurrence_encoder import RecurrenceEncoder
from fairseq_recur.modules.stream_memory import SeriesMemory
from fairseq_recur.modules.transformer_xl import TransformerXLOptions

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


@dataclass(frozen=True)
class Slot:
    """A place in the model that a part fills.

    Attributes:
        option: name of the option that chooses the part
        table: the parts by name, see `fairseq_recur.modules.parts`
        default: the part of a model without a preset
        help: of the option, before the list of the parts
        note: further help, after it
        further: choices besides the names in the table
        needs: the parts of another slot without which this one has no effect
        around: what stands around every part of the slot, and has options of its own
    """

    option: str
    table: dict[str, Any]
    default: str
    help: str
    note: str = ""
    further: tuple[str, ...] = ()
    needs: Mapping[str, Sequence[str]] | None = None
    around: tuple[type, ...] = ()

    def field(self) -> DataclassField:
        """The option as a dataclass field."""
        choices = ChoiceEnum([*self.further, *self.table])
        help = "; ".join(filter(None, (f"{self.help}: {listed(self.table)}", self.note)))
        return self.option, choices, option(self.default, help, needs=self.needs)


def self_attention_slots(side: str) -> list[Slot]:
    """The slots of one side's self-attention: its map, and what is mixed with the map."""
    return [
        Slot(
            f"{side}_self_attention",
            parts.SELF_ATTENTION,
            "dot",
            f"attention map of the {side}'s self-attention",
            "the name of a mixture, such as rsa, is short for dot with that mixture",
            further=tuple(parts.MIXTURE),
        ),
        Slot(
            f"{side}_self_attention_mixture",
            parts.MIXTURE,
            parts.NONE,
            f"matrix mixed with the {side}'s attention map",
            further=(parts.NONE,),
        ),
    ]


def encoder_decoder_slots() -> list[Slot]:
    """The slots of the encoder-decoder."""
    return [
        *self_attention_slots("encoder"),
        *self_attention_slots("decoder"),
        Slot(
            "cross_attention",
            parts.CROSS_ATTENTION,
            "dot",
            "the decoder's attention over the encoder",
        ),
        Slot(
            "cross_attention_mixture",
            parts.CROSS_MIXTURE,
            parts.NONE,
            "matrix mixed with the map of the cross-attention dot",
            further=(parts.NONE,),
        ),
        Slot(
            "recurrence",
            parts.RECURRENCE,
            parts.NONE,
            "recurrence encoder (Hao et al. 2019)",
            further=(parts.NONE,),
            around=(RecurrenceEncoder,),
        ),
        Slot(
            "recurrence_fusion",
            parts.FUSION,
            "stack",
            "how the decoder joins its attention over the recurrence encoder with that over the "
            "Transformer encoder",
            needs={"recurrence": tuple(parts.RECURRENCE)},
        ),
    ]


def language_model_slots() -> list[Slot]:
    """The slots of the decoder as a language model."""
    return [
        *self_attention_slots("decoder"),
        Slot(
            "decoder_memory",
            parts.MEMORY,
            parts.NONE,
            "what a language model keeps of the segments of text before the present one",
            "for --task language_modeling_with_memory",
            further=(parts.NONE,),
        ),
    ]


FORECASTER_SIZES = (
    "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_layers", "encoder_attention_heads",
    "decoder_layers", "decoder_attention_heads", "dropout", "attention_dropout",
    "activation_dropout", "activation_fn", "no_token_positional_embeddings",
)  # fmt: skip
"""The options of fairseq's Transformer that a forecaster has."""


def forecaster_slots() -> list[Slot]:
    """The slots of the forecaster of time series: the encoder-decoder's, without alternatives."""
    return [s for s in encoder_decoder_slots() if s.option.endswith(("self_attention", "mixture"))]


def part_options(slots: list[Slot]) -> dict[str, list[str]]:
    """Which parts declare an option: {option: ["--flag part", ...]}, in the order of the slots."""
    owners: dict[str, list[str]] = {}
    for slot in slots:
        for part in slot.around:
            for name in declared(part):
                owners[name] = [f"{flag(slot.option)} {' or '.join(slot.table)}"]
        for name, part in slot.table.items():
            for owned in declared(part):
                owners.setdefault(owned, []).append(f"{flag(slot.option)} {name}")
    return owners


def part_fields(slots: list[Slot]) -> Iterator[DataclassField]:
    """The slots' options, and the options that their parts declare, each once."""
    seen: set[str] = set()
    for slot in slots:
        yield slot.field()
        for part in [*slot.around, *slot.table.values()]:
            for name, declaration in declared(part).items():
                if name not in seen:
                    seen.add(name)
                    yield field_of(name, declaration)


def field_of(name: str, declaration: Any) -> DataclassField:
    """A field like the declaration, for another dataclass."""
    made = field(default=declaration.default, metadata=declaration.metadata)
    return name, declaration.type, made


def option_fields(*declaring: type) -> Iterator[DataclassField]:
    """The options of dataclasses that fill no slot."""
    return (field_of(f.name, f) for each in declaring for f in fields(cast(Any, each)))


def host_fields() -> Iterator[DataclassField]:
    """The options of fairseq's Transformer, flat."""
    for outer in fields(TransformerConfig):
        nested = isinstance(outer.type, type) and issubclass(outer.type, FairseqDataclass)
        inners = fields(cast(Any, outer.type)) if nested else (outer,)
        for inner in inners:
            name = f"{outer.name}_{inner.name}" if nested else inner.name
            if inner.name == "_name" or name in LEFT_OUT:
                continue
            default = FOLLOWS.get(name, inner.default)
            if default is MISSING:
                default = cast(Any, inner).default_factory()
            metadata = dict(inner.metadata)
            if "alias" in metadata:  # fairseq declares --relu-dropout under a name it never reads
                metadata["argparse_alias"] = metadata.pop("alias")
            if nested:
                metadata["help"] = f"{outer.name.replace('_', ' ')}: {metadata['help']}"
            yield name, TYPES.get(name, inner.type), field(default=default, metadata=metadata)


HostConfig = make_dataclass("HostConfig", host_fields(), bases=(FairseqDataclass,))


APART: dict[str, tuple[type, ...]] = {
    "encoder_decoder": (T5Options, MonitoringOptions),
    "language_model": (MonitoringOptions, TransformerXLOptions),
    "forecaster": (MonitoringOptions, SeriesMemory.Options),
}
"""Options of each kind of model that belong to no part in a slot."""


def encoder_decoder_config(
    name: str = "RecurrentTransformerConfig", **defaults: Any
) -> type[FairseqDataclass]:
    """The configuration of the encoder-decoder, with the defaults of a preset.

    It is assembled from the parts that are registered at the time of the call.
    """
    own = [*option_fields(*APART["encoder_decoder"]), *part_fields(encoder_decoder_slots())]
    return assembled(name, [*host_fields(), *own], FairseqDataclass, defaults)


def language_model_config(
    name: str = "RecurrentLanguageModelConfig", **defaults: Any
) -> type[FairseqDataclass]:
    """The configuration of the decoder as a language model; see `encoder_decoder_config`."""
    own = option_fields(*APART["language_model"])
    all_fields = [*own, *part_fields(language_model_slots())]
    return assembled(name, all_fields, TransformerLanguageModelConfig, defaults)


def forecaster_config(name: str = "ForecasterConfig", **defaults: Any) -> type[FairseqDataclass]:
    """The configuration of the forecaster of time series; see `encoder_decoder_config`."""
    sizes = [f for f in host_fields() if f[0] in FORECASTER_SIZES]
    own = option_fields(*APART["forecaster"])
    return assembled(
        name, [*sizes, *own, *part_fields(forecaster_slots())], FairseqDataclass, defaults
    )


def assembled(
    name: str, all_fields: list[DataclassField], base: type, defaults: dict[str, Any]
) -> type[FairseqDataclass]:
    """A dataclass of these fields, and those of a base, with other defaults."""
    own = {f[0] for f in all_fields}
    inherited = {f.name: f for f in fields(base) if f.name not in own}
    unknown = defaults.keys() - own - inherited.keys()
    assert not unknown, f"no such options: {unknown}"
    overridden = [(n, f.type, f) for n, f in inherited.items() if n in defaults]
    changed = [
        (key, kind, field(default=defaults.get(key, made.default), metadata=made.metadata))
        for key, kind, made in [*all_fields, *overridden]
    ]
    return make_dataclass(name, changed, bases=(base,))
