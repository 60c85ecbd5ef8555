"""``--criterion string_accuracy``: squared errors of sigmoid outputs, and whole strings right.

The loss and the measure of Bhattamishra et al. (EMNLP 2020), which Huang et al. (ICLR 2023,
appendix E.2) follow: a string counts only if every output at every position is right.
"""

from typing import Any

import torch
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor


def right_positions(logits: Tensor, target: Tensor) -> Tensor:
    """Say where all outputs of a position are right.

    Args:
        logits: (B, T, outputs); an output says yes where its sigmoid is at least one half.
        target: (B, T, outputs), zeros and ones.

    Returns:
        (B, T), bool.
    """
    return ((logits >= 0) == (target > 0.5)).all(dim=-1)


def squared_error(logits: Tensor, target: Tensor, real: Tensor) -> Tensor:
    """Sum, over the positions that are real, the mean squared error of the sigmoid outputs.

    Args:
        logits, target: (B, T, outputs).
        real: (B, T), False at the padding.

    Returns:
        a scalar, float32 at least.
    """
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    errors = (torch.sigmoid(precise) - target) ** 2
    return (errors.mean(dim=-1) * real).sum()


@register_criterion("string_accuracy", dataclass=FairseqDataclass)
class StringAccuracyCriterion(FairseqCriterion):
    """Mean squared error of the sigmoid outputs; the share of strings that are right throughout.

    A sample's ``target`` is (B, T, outputs); padding in ``net_input.src_tokens`` does not count.
    """

    def forward(
        self, model: torch.nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Return the summed loss, the number of positions it is a sum over, and the counts."""
        logits = model(**sample["net_input"])[0]
        tokens, target = sample["net_input"]["src_tokens"], sample["target"]
        real = tokens != self.task.source_dictionary.pad()
        loss = squared_error(logits, target, real)
        right = right_positions(logits.detach(), target)
        counts = {
            "loss": loss.detach(),
            "nsentences": sample["nsentences"],
            "ntokens": sample["ntokens"],
            "sample_size": sample["ntokens"],
            "right_strings": (right | ~real).all(dim=-1).sum(),
            "right_positions": (right & real).sum(),
        }
        return loss, sample["ntokens"], counts

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        """Log the loss, ``accuracy`` of strings and ``position_accuracy``, from 0 to 1."""

        def total(key: str) -> float:
            return float(sum(log.get(key, 0) for log in logging_outputs))

        strings, positions = total("nsentences"), total("sample_size")
        metrics.log_scalar("loss", total("loss") / positions, positions, round=5)
        metrics.log_scalar("accuracy", total("right_strings") / strings, strings, round=4)
        share = total("right_positions") / positions
        metrics.log_scalar("position_accuracy", share, positions, round=5)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """The counts of several batches or processes are added up."""
        return True
