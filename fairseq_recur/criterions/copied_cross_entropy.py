"""``--criterion copied_cross_entropy``: cross-entropy and accuracy of what repeats a sequence.

A sample is a sequence, a separator, and the sequence again: the copy task of Katharopoulos et al.
(ICML 2020) as Nguyen et al. (NeurIPS 2021) have it. Nothing determines the first sequence, so
that only the separator behind it and its copy have a loss.
"""

from math import log
from typing import Any

from fairseq.criterions import register_criterion
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from fairseq.models import BaseFairseqModel
from fairseq.tasks import FairseqTask
from torch import Tensor

from fairseq_recur.criterions.counts import SummedCounts, totals
from fairseq_recur.errors import ConfigError

SEPARATOR = "|"


def copied(target: Tensor, words: Dictionary) -> Tensor:
    """Return the places of the first separator and of the symbols up to the next: (B, T) bool.

    The end of a line and padding are no symbols.

    Args:
        target: (B, T), int64
        words: the dictionary
    """
    after = (target == words.index(SEPARATOR)).cumsum(dim=1) == 1
    return after & (target != words.pad()) & (target != words.eos())


@register_criterion("copied_cross_entropy", dataclass=FairseqDataclass)
class CopiedCrossEntropyCriterion(SummedCounts):
    """The loss in bits for each copied symbol, and the percentage that has the highest probability.

    Args:
        task: one of a language model

    Raises:
        ConfigError: the dictionary has no separator
    """

    def __init__(self, task: FairseqTask) -> None:
        super().__init__(task)
        self.words = task.target_dictionary
        if self.words.index(SEPARATOR) == self.words.unk():
            raise ConfigError(
                f"--criterion copied_cross_entropy: the dictionary has no separator {SEPARATOR}; "
                "choose another criterion, or prepare samples of the form s|s"
            )

    def forward(
        self, model: BaseFairseqModel, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Return the summed loss, its number of symbols, and the counts.

        Raises:
            ConfigError: no sample of the batch has a separator
        """
        output = model(**sample["net_input"])
        target = model.get_targets(sample, output)
        scored = copied(target, self.words)
        scores = model.get_normalized_probs(output, log_probs=True, sample=sample)
        scores = scores.view(*target.shape, -1)
        nats = -scores.gather(2, target.unsqueeze(2)).squeeze(2)
        loss = nats.masked_fill(~scored, 0.0).sum()
        size = int(scored.sum())
        if not size:
            raise ConfigError(
                f"--criterion copied_cross_entropy: a batch has no separator {SEPARATOR}, so "
                "nothing has a loss; prepare samples of the form s|s"
            )
        counts = {
            "loss": loss.detach(),
            "nsentences": target.size(0),
            "ntokens": sample["ntokens"],
            "sample_size": size,
            "correct": ((scores.detach().argmax(dim=2) == target) & scored).sum(),
        }
        return loss, size, counts

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        """Log the loss and the accuracy, as fairseq does with ``--report-accuracy``."""
        sums = totals(logging_outputs)
        size = sums["sample_size"]
        metrics.log_scalar("loss", sums["loss"] / size / log(2), size, round=3)
        metrics.log_scalar("accuracy", 100 * sums["correct"] / size, size, round=3)
