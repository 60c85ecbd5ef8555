"""The parts that fill the slots of the one model, by name.

A slot takes the name of a part from the configuration and builds it through these tables;
the tables' keys are the choices of the command-line flags. A new part is one entry here.
"""

from collections.abc import Callable

import torch
from fairseq.models.transformer import TransformerConfig
from torch import nn

from fairseq_recur.modules.biarn import BiARN
from fairseq_recur.modules.birnn import BiRNN
from fairseq_recur.modules.directional import DirectionalSelfAttention
from fairseq_recur.modules.fusion import GatedSumFusion, StackFusion
from fairseq_recur.modules.learned_matrices import FullMatrix, ToeplitzMatrix
from fairseq_recur.modules.mixture import Mixture
from fairseq_recur.modules.recurrence import Recurrence
from fairseq_recur.modules.relative import RelativeSelfAttention
from fairseq_recur.modules.rem import RecurrenceEncodingMatrices, RemOptions
from fairseq_recur.modules.rem_heads import parse_range, parse_rem_heads
from fairseq_recur.modules.rsa import MixedSelfAttention
from fairseq_recur.modules.segment_memory import GlobalAttention, XLAttention
from fairseq_recur.modules.segmented_attention import SegmentedAttention
from fairseq_recur.modules.srformer import SRformerAttention

# Builds an attention module for a layer. It is given the host's configuration
# (fairseq's TransformerConfig with this plug-in's options as attributes), the side,
# "encoder" or "decoder", and a function that builds fairseq's own module for the place.
AttentionBuilder = Callable[[TransformerConfig, str, Callable[[], nn.Module]], nn.Module]


def dot(cfg: TransformerConfig, side: str, stock: Callable[[], nn.Module]) -> nn.Module:
    """Scaled dot-product attention, as fairseq builds it (Vaswani et al. 2017)."""
    return stock()


def rsa(cfg: TransformerConfig, side: str, stock: Callable[[], nn.Module]) -> nn.Module:
    """Self-attention with recurrence (Huang et al. 2023)."""
    heads = getattr(cfg, side).attention_heads
    options = RemOptions(
        heads=parse_rem_heads(cfg.rsa_heads, cfg.rsa_dilations, heads),
        max_power=cfg.rsa_max_power,
        share=cfg.rsa_share == "pairs",
        gate=initial_gate(cfg),
        eta=parse_range(cfg.rsa_eta_init),
        nu=parse_range(cfg.rsa_nu_init),
        theta=cfg.rsa_theta_init,
        normalize=cfg.rsa_normalize,
    )
    slot, causal = f"{side} self-attention", side == "decoder"
    matrices = RecurrenceEncodingMatrices(slot, options, heads, causal)
    return MixedSelfAttention(cfg, side, matrices)


def learned_matrix(matrix: Callable[..., Mixture]) -> AttentionBuilder:
    """Attention mixed with a matrix that is learned freely, in place of RSA's (section 4.4)."""

    def build(cfg: TransformerConfig, side: str, stock: Callable[[], nn.Module]) -> nn.Module:
        heads, causal = getattr(cfg, side).attention_heads, side == "decoder"
        slot, gate = f"{side} self-attention", initial_gate(cfg)
        length, normalize = cfg.learned_matrix_length, cfg.rsa_normalize
        return MixedSelfAttention(cfg, side, matrix(slot, heads, causal, gate, length, normalize))

    return build


def relative(cfg: TransformerConfig, side: str, stock: Callable[[], nn.Module]) -> nn.Module:
    """Relative positions (Shaw et al. 2018)."""
    return RelativeSelfAttention(cfg, side)


def directional(cfg: TransformerConfig, side: str, stock: Callable[[], nn.Module]) -> nn.Module:
    """Half of the heads look back, half of them ahead (DiSAN, Shen et al. 2018)."""
    return DirectionalSelfAttention(cfg, side)


def initial_gate(cfg: TransformerConfig) -> float:
    """mu: as given, or for each layer another value from [-3, 3] (section 3, "Initialization")."""
    if cfg.rsa_gate_init == "random":
        return float(torch.empty(()).uniform_(-3, 3))
    return float(cfg.rsa_gate_init)


def cross(part: type[SegmentedAttention]) -> AttentionBuilder:
    """Attention over segments of the source (Long et al. 2023), or a relative of it."""
    return lambda cfg, side, stock: part(cfg)


SELF_ATTENTION: dict[str, AttentionBuilder] = {
    "dot": dot,
    "rsa": rsa,
    "relative": relative,
    "directional": directional,
    "toeplitz": learned_matrix(ToeplitzMatrix),
    "full_matrix": learned_matrix(FullMatrix),
}
CROSS_ATTENTION: dict[str, AttentionBuilder] = {
    "dot": dot,
    "srformer": cross(SRformerAttention),
    "segmented": cross(SegmentedAttention),
    "xl": cross(XLAttention),
    "global": cross(GlobalAttention),
}
RECURRENCE: dict[str, type[Recurrence]] = {"birnn": BiRNN, "biarn": BiARN}
# In the decoder's layers; "multicolumn" joins the two encoders before them.
FUSION: dict[str, type[StackFusion]] = {"stack": StackFusion, "gated_sum": GatedSumFusion}
MULTICOLUMN = "multicolumn"
