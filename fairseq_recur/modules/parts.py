"""The parts that fill the slots of the one model, by name.

A slot takes the name of a part from the configuration and builds it through these tables;
the tables' keys are the choices of the command-line flags. A new part is one entry here.
"""

from typing import Callable, Dict, Type

from fairseq.models.transformer import TransformerConfig
from torch import nn

from fairseq_recur.modules.biarn import BiARN
from fairseq_recur.modules.birnn import BiRNN
from fairseq_recur.modules.fusion import GatedSumFusion, StackFusion
from fairseq_recur.modules.recurrence import Recurrence

# Builds an attention module for a layer. It is given the host's configuration
# (fairseq's TransformerConfig with this plug-in's options as attributes), the side,
# "encoder" or "decoder", and a function that builds fairseq's own module for the place.
AttentionBuilder = Callable[[TransformerConfig, str, Callable[[], nn.Module]], nn.Module]


def dot(cfg: TransformerConfig, side: str, stock: Callable[[], nn.Module]) -> nn.Module:
    """Scaled dot-product attention, as fairseq builds it (Vaswani et al. 2017)."""
    return stock()


SELF_ATTENTION: Dict[str, AttentionBuilder] = {"dot": dot}
CROSS_ATTENTION: Dict[str, AttentionBuilder] = {"dot": dot}
RECURRENCE: Dict[str, Type[Recurrence]] = {"birnn": BiRNN, "biarn": BiARN}
FUSION: Dict[str, Type[StackFusion]] = {"stack": StackFusion, "gated_sum": GatedSumFusion}
