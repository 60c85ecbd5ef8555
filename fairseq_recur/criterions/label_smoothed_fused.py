"""``--criterion label_smoothed_cross_entropy_fused``: fairseq's loss in less memory and time."""

from typing import Any

from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.models import BaseFairseqModel, FairseqDecoder
from fairseq.models.transformer import TransformerModelBase
from torch import Tensor

from fairseq_recur.errors import refuse
from fairseq_recur.ops.label_smoothing import label_smoothed_loss

NORMALIZE = ("get_normalized_probs", "get_normalized_probs_scriptable")
"""Methods of a model and of its decoder that make probabilities of its output."""

STOCK = [
    getattr(owner, name)
    for owner in (BaseFairseqModel, TransformerModelBase, FairseqDecoder)
    for name in NORMALIZE
]
"""Those that take the output for logits."""


def returns_logits(model: Any) -> bool:
    """Whether the output of a model with a decoder is logits.

    A decoder with an adaptive softmax returns features. A model with methods of its own for
    probabilities, such as fairseq's pointer-generator, may return those.
    """
    decoder = getattr(model, "decoder", None)
    if getattr(decoder, "adaptive_softmax", None) is not None:
        return False
    used = [
        getattr(getattr(owner, name, None), "__func__", None)
        for owner in (model, decoder)
        for name in NORMALIZE
    ]
    return all(method in STOCK for method in used)


@register_criterion(
    "label_smoothed_cross_entropy_fused", dataclass=LabelSmoothedCrossEntropyCriterionConfig
)
class FusedLabelSmoothedCrossEntropy(LabelSmoothedCrossEntropyCriterion):
    """fairseq's ``label_smoothed_cross_entropy``, computed by `ops.label_smoothing`.

    It has the same flags. Its values differ by rounding. With ``--label-smoothing 0`` it is
    ``cross_entropy``. Where a model does not return logits, it is fairseq's own.

    Raises:
        ConfigError: ``--label-smoothing`` is not from 0 to 1, or ``--ignore-prefix-size`` negative
    """

    def __init__(
        self,
        task: Any,
        sentence_avg: bool,
        label_smoothing: float,
        ignore_prefix_size: int = 0,
        report_accuracy: bool = False,
    ) -> None:
        wrong = []
        if not 0 <= label_smoothing <= 1:
            wrong.append(f"--label-smoothing {label_smoothing}: expected a number from 0 to 1")
        if ignore_prefix_size < 0:
            wrong.append(f"--ignore-prefix-size {ignore_prefix_size}: expected at least 0")
        refuse("criterion label_smoothed_cross_entropy_fused", wrong)
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)

    def compute_loss(
        self, model: Any, net_output: Any, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the negative log-likelihood, summed over the batch."""
        if not reduce or not returns_logits(model):
            return super().compute_loss(model, net_output, sample, reduce)
        logits, target = net_output[0], model.get_targets(sample, net_output)
        first = self.ignore_prefix_size
        logits, target = logits[:, first:], target[:, first:]
        return label_smoothed_loss(
            logits.reshape(-1, logits.size(-1)), target.reshape(-1), self.eps, self.padding_idx
        )
