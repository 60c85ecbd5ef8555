"""The parts that fill the slots of the one model, by name.

The keys of a slot's table are the choices of its flag. A new part is one entry here; a part
from outside the package registers itself by `fairseq_recur.models.extending.add_part`.
"""

from collections.abc import Iterator
from typing import Any

from fairseq.models.transformer import TransformerConfig

from fairseq_recur.modules.biarn import BiARN
from fairseq_recur.modules.birnn import BiRNN
from fairseq_recur.modules.block_recurrent import BlockRecurrentMemory
from fairseq_recur.modules.cross_attention import CrossAttention, DotCrossAttention
from fairseq_recur.modules.cross_mixture import CrossRecurrenceEncodingMatrices
from fairseq_recur.modules.directional import DirectionalSelfAttention
from fairseq_recur.modules.fusion import (
    GatedSumFusion,
    LayerFusion,
    MultiColumn,
    Replacement,
    StackFusion,
)
from fairseq_recur.modules.latent_bottleneck import LatentMemory
from fairseq_recur.modules.learned_matrices import FullMatrix, ToeplitzMatrix
from fairseq_recur.modules.mixture import Mixture
from fairseq_recur.modules.part import MonitoredModule
from fairseq_recur.modules.recurrence import Recurrence
from fairseq_recur.modules.recurrence_encoder import RecurrenceEncoder
from fairseq_recur.modules.relative import RelativeSelfAttention
from fairseq_recur.modules.rem import RecurrenceEncodingMatrices
from fairseq_recur.modules.segmented_attention import SegmentedAttention
from fairseq_recur.modules.segmented_comparisons import GlobalAttention, XLAttention
from fairseq_recur.modules.self_attention import DotSelfAttention, SelfAttention
from fairseq_recur.modules.sparse_attention import LogSparseSelfAttention, ProbSparseSelfAttention
from fairseq_recur.modules.srformer import SRformerAttention
from fairseq_recur.modules.text_memory import TextMemory, XLMemory
from fairseq_recur.modules.xl import XLSelfAttention

# Maps of self-attention, and what is mixed with one (Huang et al. 2023; section 4.4 compares).
SELF_ATTENTION: dict[str, type[SelfAttention]] = {
    "dot": DotSelfAttention,
    "relative": RelativeSelfAttention,
    "xl": XLSelfAttention,
    "directional": DirectionalSelfAttention,
    "prob_sparse": ProbSparseSelfAttention,
    "log_sparse": LogSparseSelfAttention,
}
MIXTURE: dict[str, type[Mixture]] = {
    "rsa": RecurrenceEncodingMatrices,
    "toeplitz": ToeplitzMatrix,
    "full_matrix": FullMatrix,
}
CROSS_ATTENTION: dict[str, type[CrossAttention]] = {
    "dot": DotCrossAttention,
    "srformer": SRformerAttention,
    "segmented": SegmentedAttention,
    "xl": XLAttention,
    "global": GlobalAttention,
}
# What is mixed with the cross-attention (Huang et al. 2023, appendix D.2).
CROSS_MIXTURE: dict[str, type[CrossRecurrenceEncodingMatrices]] = {
    "rsa": CrossRecurrenceEncodingMatrices
}
RECURRENCE: dict[str, type[Recurrence]] = {"birnn": BiRNN, "biarn": BiARN}
# In the decoder's layers; a `MultiColumn` joins the outputs of the two encoders before them.
FUSION: dict[str, type[LayerFusion] | type[MultiColumn]] = {
    "stack": StackFusion,
    "gated_sum": GatedSumFusion,
    "replace": Replacement,
    "multicolumn": MultiColumn,
}

# What a language model keeps of the segments before.
MEMORY: dict[str, type[TextMemory]] = {
    "xl": XLMemory,
    "block_recurrent": BlockRecurrentMemory,
    "latent": LatentMemory,
}

NONE = "none"
"""The value of a slot's flag that leaves the slot empty."""


def map_and_mixture(cfg: Any, side: str) -> tuple[str, str]:
    """The names of a side's map and of its mixture, "none" without one.

    ``--encoder-self-attention rsa`` is short for the map dot with the mixture rsa, and so for
    every other mixture.
    """
    name = getattr(cfg, f"{side}_self_attention")
    if name in MIXTURE:
        return "dot", name
    return name, getattr(cfg, f"{side}_self_attention_mixture")


def build_self_attention(cfg: TransformerConfig, side: str) -> SelfAttention:
    """The self-attention of a layer on *side*, "encoder" or "decoder"."""
    name, mixed = map_and_mixture(cfg, side)
    mixture = None if mixed == NONE else MIXTURE[mixed](cfg, side)
    return SELF_ATTENTION[name](cfg, side, mixture)


def build_cross_attention(cfg: TransformerConfig) -> CrossAttention:
    """The cross-attention of a decoder layer."""
    part, mixed = CROSS_ATTENTION[cfg.cross_attention], cfg.cross_attention_mixture
    return part(cfg) if mixed == NONE else part(cfg, CROSS_MIXTURE[mixed](cfg))


def layer_fusion(cfg: Any) -> type[LayerFusion] | None:
    """The fusion in the decoder's layers, or None."""
    if cfg.recurrence == NONE:
        return None
    part = FUSION[cfg.recurrence_fusion]
    return part if issubclass(part, LayerFusion) else None


def quantities() -> dict[str, str]:
    """What the parts log: the `MonitoredModule.quantities` of all, also from other packages."""

    def below(module: type[MonitoredModule]) -> Iterator[type[MonitoredModule]]:
        for each in module.__subclasses__():
            yield each
            yield from below(each)

    return {k: text for part in below(MonitoredModule) for k, text in part.quantities.items()}


def chosen_parts(cfg: Any) -> Iterator[tuple[str, Any]]:
    """The parts that a flat configuration chooses, each with its side."""
    for side in ("encoder", "decoder"):
        if hasattr(cfg, f"{side}_self_attention"):
            name, mixture = map_and_mixture(cfg, side)
            yield side, SELF_ATTENTION[name]
            if mixture != NONE:
                yield side, MIXTURE[mixture]
    if getattr(cfg, "decoder_memory", NONE) != NONE:
        yield "decoder", MEMORY[cfg.decoder_memory]
    if hasattr(cfg, "cross_attention"):
        yield "decoder", CROSS_ATTENTION[cfg.cross_attention]
        if cfg.cross_attention_mixture != NONE:
            yield "decoder", CROSS_MIXTURE[cfg.cross_attention_mixture]
    if getattr(cfg, "recurrence", NONE) != NONE:
        yield "encoder", RecurrenceEncoder
        yield "encoder", RECURRENCE[cfg.recurrence]
        yield "decoder", FUSION[cfg.recurrence_fusion]
