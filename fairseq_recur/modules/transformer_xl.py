"""Transformer-XL as a host: no biases in self-attention, biases of words, its initial weights.

As in the code that Dai et al. 2019 published, and as the parameter counts in table 7 of Huang et
al. 2023 need it. Its attention map is `fairseq_recur.modules.xl`, its memory
`fairseq_recur.modules.text_memory`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.modules import AdaptiveInput, AdaptiveSoftmax
from torch import Tensor, nn

from fairseq_recur.modules.options import option

DEVIATION = 0.02
"""Standard deviation of the initial scales of norms, and by default of the weights."""


@dataclass
class TransformerXLOptions:
    """Options of a language model's host."""

    language_model_host: ChoiceEnum(["transformer", "transformer_xl"]) = option(  # type: ignore[valid-type]
        "transformer",
        "arithmetic around the attention map: fairseq's, or that of Dai et al. 2019: "
        "self-attention without biases, the vectors u and v of --decoder-self-attention xl shared "
        "by all layers, a bias for each word in the output, linear maps and embeddings drawn "
        "from a normal distribution",
    )
    init_std: float = option(
        DEVIATION,
        "standard deviation of the initial linear maps and embeddings; 0.02 is that of Dai et al. "
        "for widths of 410 to 1,024, and a narrow Block-Recurrent Transformer needs more",
        (1e-4, 1.0),
        needs={"language_model_host": ("transformer_xl",)},
    )
    decoder_head_dim: int = option(
        0,
        "width of a head of the self-attention; 0: --decoder-embed-dim divided by the heads",
        (0, 4096),
        needs={"language_model_host": ("transformer_xl",)},
    )

    @staticmethod
    def problems(cfg: Any) -> Iterator[str]:
        """What is wrong with these options of a model, flat, one message each."""
        if cfg.decoder_head_dim and cfg.scale_heads:
            yield "--scale-heads needs heads of the usual width; leave out --decoder-head-dim"


def is_transformer_xl(cfg: Any) -> bool:
    """Whether a model's host has Transformer-XL's arithmetic."""
    return bool(cfg.host == "transformer_xl")


class UnprojectedAdaptiveInput(AdaptiveInput):
    """fairseq's adaptive input for bands of equal widths, without a matrix after each band.

    Arguments are those of fairseq's class, with the factor 1 and equal widths.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        for band in self.embeddings:
            band[1] = nn.Identity()

    def weights_for_band(self, band: int) -> tuple[Tensor, None]:
        """The vectors of a band of words: (V', C), and no projection."""
        return self.embeddings[band][0].weight, None


class OutputBias(nn.Module):
    """A learned number for each of *size* outputs, initially 0."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        """(..., size) to the same shape."""
        return x + self.bias


def add_biases(softmax: AdaptiveSoftmax, projected: bool) -> None:
    """Add a bias for each word and each cluster of an adaptive softmax.

    Args:
        softmax: fairseq's
        projected: whether a tail begins with a projection; else it is removed
    """
    sizes = [b - a for a, b in zip(softmax.cutoff, softmax.cutoff[1:])]
    softmax.head = nn.Sequential(softmax.head, OutputBias(softmax.cutoff[0] + len(sizes)))
    softmax.tail = nn.ModuleList(
        nn.Sequential(*list(tail)[0 if projected else 1 :], OutputBias(size))
        for tail, size in zip(softmax.tail, sizes)
    )


def draw_weights(model: nn.Module, deviation: float) -> None:
    """Draw linear maps and embeddings with a *deviation*, scales of layer norms from N(1, 0.02)."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=deviation)
        elif isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight, 1.0, DEVIATION)
        if isinstance(module, (nn.Linear, nn.LayerNorm)) and module.bias is not None:
            nn.init.zeros_(module.bias)
    for module in model.modules():  # after the output layer, which may share the matrix
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            nn.init.zeros_(module.weight[module.padding_idx])
