"""``--criterion string_accuracy``: squared error of sigmoid outputs and accuracy of strings.

The loss and the measure of Bhattamishra et al. (EMNLP 2020), which Huang et al. (ICLR 2023,
appendix E.2) follow: a string is correct only if every output at every position is.
"""

from typing import Any

import torch
from fairseq.criterions import register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from fairseq_recur.criterions.counts import totals
from fairseq_recur.criterions.of_task import CriterionOfTask


def correct_positions(logits: Tensor, target: Tensor) -> Tensor:
    """Return where all outputs (B, T, outputs) of a position are correct: (B, T) bool.

    An output is 1 where its sigmoid is at least one half.
    """
    return ((logits >= 0) == (target > 0.5)).all(dim=-1)


def squared_error(logits: Tensor, target: Tensor, real: Tensor) -> Tensor:
    """Sum the mean squared error of the sigmoid outputs over the *real* positions (B, T).

    The sum is float32 at least.
    """
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    errors = (torch.sigmoid(precise) - target) ** 2
    return (errors.mean(dim=-1) * real).sum()


@register_criterion("string_accuracy", dataclass=FairseqDataclass)
class StringAccuracyCriterion(CriterionOfTask):
    """Mean squared error of the sigmoid outputs, and the share of correct strings.

    A sample's ``target`` is (B, T, outputs); padding in ``net_input.src_tokens`` does not count.
    """

    flag, for_task = "string_accuracy", "regular_languages"

    def forward(
        self, model: torch.nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Return the summed loss, its number of positions, and the counts."""
        logits = model(**sample["net_input"])[0]
        tokens, target = sample["net_input"]["src_tokens"], sample["target"]
        real = tokens != self.task.source_dictionary.pad()
        loss = squared_error(logits, target, real)
        correct = correct_positions(logits.detach(), target)
        counts = {
            "loss": loss.detach(),
            "nsentences": sample["nsentences"],
            "ntokens": sample["ntokens"],
            "sample_size": sample["ntokens"],
            "correct_strings": (correct | ~real).all(dim=-1).sum(),
            "correct_positions": (correct & real).sum(),
        }
        return loss, sample["ntokens"], counts

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        """Log the loss, ``accuracy`` of strings and ``position_accuracy``, from 0 to 1."""
        sums = totals(logging_outputs)
        strings, positions = sums["nsentences"], sums["sample_size"]
        metrics.log_scalar("loss", sums["loss"] / positions, positions, round=5)
        metrics.log_scalar("accuracy", sums["correct_strings"] / strings, strings, round=4)
        share = sums["correct_positions"] / positions
        metrics.log_scalar("position_accuracy", share, positions, round=5)
