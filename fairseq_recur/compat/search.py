"""The search for hypotheses: n-grams that may not be repeated, groups that have to differ."""

import math
from typing import Any

from torch import Tensor

from fairseq_recur.compat.registry import Function, mend, source_of

BLOCK = "fairseq.ngram_repeat_block:NGramRepeatBlock._no_repeat_ngram"

repeated_ngrams = mend(
    "--no-repeat-ngram-size",
    reason="without fairseq's CUDA extension it has no effect: it compares the padding at the end "
    "of the buffer, not the newest words, with what was said before",
    until="a fairseq whose NGramRepeatBlock reads the tokens up to the step",
    needed=lambda: "-(self.no_repeat_ngram_size - 1) :" in source_of(BLOCK),
)


@repeated_ngrams.patch(BLOCK)
def no_repeat_ngram(
    _: Function, self: Any, tokens: Tensor, lprobs: Tensor, bsz: int, beam_size: int, step: int
) -> Tensor:
    """Ban each word that would complete an n-gram which a hypothesis has already.

    A prefix that is forced may repeat one: where nothing else is possible, nothing is banned.

    Args:
        tokens: (B * beam, at least step + 1), which begin with </s>
        lprobs: (B * beam, V), changed in place
        step: position of the newest token

    Returns:
        lprobs
    """
    size = self.no_repeat_ngram_size
    if step + 1 < size:
        return lprobs
    so_far = tokens[:, : step + 1]
    ngrams, newest = so_far.unfold(1, size, 1), so_far[:, step + 2 - size :]
    repeats = ngrams[:, :, :-1].eq(newest[:, None]).all(dim=2)
    if size == 1:
        repeats[:, 0] = False  # </s> at the beginning is no word
    rows, places = repeats.nonzero(as_tuple=True)
    banned = lprobs.index_put((rows, ngrams[rows, places, -1]), lprobs.new_tensor(-math.inf))
    forced = banned.isneginf().all(dim=1, keepdim=True)
    return lprobs.copy_(lprobs.where(forced, banned))


DIVERSE = "fairseq.search:DiverseBeamSearch.step"

diverse_groups = mend(
    "--diverse-beam-groups",
    reason="what the groups have in common is kept by the place in the batch, but looked up by the "
    "sentence's number in the test set: an IndexError, or the penalties of another sentence",
    until="a fairseq whose SequenceGenerator gives the search places in the batch",
    needed=lambda: "group_overlap[original_batch_idxs" in source_of(DIVERSE),
)


@diverse_groups.patch(DIVERSE)
def diverse_step(
    search: Function, self: Any, step: int, lprobs: Tensor, scores: Tensor | None,
    prev_output_tokens: Tensor | None = None, original_batch_idxs: Tensor | None = None,
) -> Any:  # fmt: skip
    """Turn the sentences' numbers into their places in the first step, before any is finished."""
    if original_batch_idxs is not None:
        if step == 0:
            self.numbers = original_batch_idxs
        same = original_batch_idxs[:, None] == self.numbers
        original_batch_idxs = same.int().argmax(dim=1)
    return search(self, step, lprobs, scores, prev_output_tokens, original_batch_idxs)
