"""The adaptive loss: which targets are padding."""

from typing import Any

import torch.nn.functional as F

from fairseq_recur.compat.registry import Function, mend, source_of

LOSS = "fairseq.criterions.adaptive_loss:AdaptiveLoss.forward"

second_words = mend(
    "second word of each tail",
    reason="adaptive_loss takes a target for padding where it equals padding's number, 1, also in "
    "the tails, where 1 is the second word of the band; so that word is not trained within its "
    "band, and the loss of a validation leaves it out",
    until="a fairseq whose AdaptiveLoss looks for padding in the head only",
    needed=lambda: "ignore_index=self.padding_idx" in source_of(LOSS),
)


@second_words.patch(LOSS)
def adaptive_loss(
    forward: Function, self: Any, model: Any, sample: dict[str, Any], reduce: bool = True
) -> tuple[Any, int, dict[str, Any]]:
    """Compute the sum of the cross-entropies of all bands, as fairseq does, but of all words."""
    if not reduce:  # which no command of fairseq asks for
        return forward(self, model, sample, reduce)
    net_output = model(**sample["net_input"])
    target = model.get_targets(sample, net_output)
    logits, bands = model.decoder.adaptive_softmax(net_output[0], target.view(-1))
    head, *tails = zip(logits, bands)
    loss = F.cross_entropy(*head, ignore_index=self.padding_idx, reduction="sum").view(1)
    for scores, words in tails:
        if words is not None:  # a band without a target has no scores either
            loss = loss + F.cross_entropy(scores, words, reduction="sum")
    tokens = int(target.ne(self.padding_idx).sum())
    size = target.size(0) if self.sentence_avg else tokens
    counts = {"ntokens": tokens, "nsentences": target.size(0), "sample_size": size}
    return loss, size, {"loss": loss.data, **counts}
