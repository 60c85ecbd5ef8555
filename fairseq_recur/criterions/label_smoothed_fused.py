"""``--criterion label_smoothed_cross_entropy_fused``: fairseq's loss in less memory and time."""

from typing import Any

from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from torch import Tensor

from fairseq_recur.errors import ConfigError
from fairseq_recur.ops.label_smoothing import label_smoothed_loss


@register_criterion(
    "label_smoothed_cross_entropy_fused", dataclass=LabelSmoothedCrossEntropyCriterionConfig
)
class FusedLabelSmoothedCrossEntropy(LabelSmoothedCrossEntropyCriterion):
    """fairseq's ``label_smoothed_cross_entropy``, computed by `ops.label_smoothing`.

    It has the same flags. Its values differ by rounding. With ``--label-smoothing 0`` it is
    ``cross_entropy``.

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
        if wrong:
            raise ConfigError("; ".join(wrong))
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)

    def compute_loss(
        self, model: Any, net_output: Any, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the negative log-likelihood, summed over the batch."""
        adaptive = getattr(getattr(model, "decoder", None), "adaptive_softmax", None)
        if not reduce or adaptive is not None:  # an adaptive softmax makes no logits
            return super().compute_loss(model, net_output, sample, reduce)
        logits, target = net_output[0], model.get_targets(sample, net_output)
        first = self.ignore_prefix_size
        logits, target = logits[:, first:], target[:, first:]
        return label_smoothed_loss(
            logits.reshape(-1, logits.size(-1)), target.reshape(-1), self.eps, self.padding_idx
        )
