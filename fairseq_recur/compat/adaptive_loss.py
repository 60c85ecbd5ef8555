"""The adaptive loss: its precision, and which targets are padding."""

from typing import Any

import torch
import torch.nn.functional as F

from fairseq_recur.compat.registry import Function, mend, source_of

LOSS = "fairseq.criterions.adaptive_loss:AdaptiveLoss.forward"

of_all_words = mend(
    "adaptive loss",
    reason="it takes a target for padding where it equals padding's number, 1, also in the tails, "
    "where 1 is the second word of the band, which is then not trained within its band and not "
    "counted; and it is summed in the precision of the scores, where float16 overflows",
    until="a fairseq whose AdaptiveLoss looks for padding in the head only, and sums in float32",
    needed=lambda: "ignore_index=self.padding_idx" in source_of(LOSS),
)


@of_all_words.patch(LOSS)
def adaptive_loss(
    forward: Function, self: Any, model: Any, sample: dict[str, Any], reduce: bool = True
) -> tuple[Any, int, dict[str, Any]]:
    """Compute the sum of the cross-entropies of all bands, as fairseq does, but of all words."""
    if not reduce:  # which no command of fairseq asks for
        return forward(self, model, sample, reduce)
    net_output = model(**sample["net_input"])
    target = model.get_targets(sample, net_output)
    scores, words = model.decoder.adaptive_softmax(net_output[0], target.view(-1))
    padding = [self.padding_idx, *[-100] * len(scores)]  # -100: none
    terms = [
        F.cross_entropy(x.to(_float32(x)), of_band, ignore_index=ignored, reduction="sum")
        for x, of_band, ignored in zip(scores, words, padding)
        if of_band is not None  # a band without a target has no scores either
    ]
    loss = torch.stack(terms).sum().view(1)
    tokens = int(target.ne(self.padding_idx).sum())
    size = target.size(0) if self.sentence_avg else tokens
    counts = {"ntokens": tokens, "nsentences": target.size(0), "sample_size": size}
    return loss, size, {"loss": loss.data, **counts}


def _float32(x: torch.Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
