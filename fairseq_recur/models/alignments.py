"""What fairseq reads alignments from: the attention weights of our decoders."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from fairseq_recur.compat.registry import Function, extend
from fairseq_recur.errors import ConfigError
from fairseq_recur.models.decoder import RecurrentTransformerDecoder

LOSS = (
    "fairseq.criterions.label_smoothed_cross_entropy_with_alignment:"
    "LabelSmoothedCrossEntropyCriterionWithAlignment"
)
"""fairseq's loss on alignments, which reads attention weights in training."""
GENERATOR = "fairseq.sequence_generator:SequenceGeneratorWithAlignment"


@extend(f"{LOSS}.forward", "attention weights in training")
def alignment_loss(
    forward: Function, criterion: nn.Module, model: Any, sample: Any, reduce: bool = True
) -> Any:
    """Name the layer whose weights this loss reads; without a name, training may have none.

    Raises:
        ConfigError: there is no such layer
    """
    decoder = getattr(model, "decoder", None)
    if isinstance(decoder, RecurrentTransformerDecoder) and sample.get("alignments") is not None:
        named = {"alignment_layer": layer_with_weights(decoder), **sample["net_input"]}
        sample = {**sample, "net_input": named}
    return forward(criterion, model, sample, reduce)


@extend(f"{GENERATOR}.__init__", "models without alignments")
def alignment_generator(
    init: Function, self: Any, models: Sequence[nn.Module], *args: Any, **named: Any
) -> None:
    """Refuse to print the alignments of a model that has none.

    Raises:
        ConfigError: as above
    """
    for decoder in (getattr(model, "decoder", None) for model in models):
        if isinstance(decoder, RecurrentTransformerDecoder):
            layer_with_weights(decoder)
    init(self, models, *args, **named)


def layer_with_weights(decoder: RecurrentTransformerDecoder) -> int:
    """Return the layer whose attention weights are the alignments.

    Raises:
        ConfigError: no layer attends to the encoder
    """
    layer = decoder.aligned_layer()
    if layer is None:
        raise ConfigError(
            "this model has no alignments, because no layer of its decoder attends to the encoder; "
            "remove --print-alignment, or choose a criterion without alignments"
        )
    return layer
