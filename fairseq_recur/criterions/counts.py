"""What a criterion counts: sums over batches and processes."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from fairseq.criterions import FairseqCriterion


class SummedCounts(FairseqCriterion):
    """A criterion whose logging outputs hold nothing but sums."""

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Whether the outputs of several batches or processes may be added: they may."""
        return True


def totals(logging_outputs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the sums of what the batches have under each key; 0 for one that none has."""
    found: dict[str, float] = defaultdict(float)
    for logged in logging_outputs:
        for key, number in logged.items():
            found[key] += float(number)
    return found
