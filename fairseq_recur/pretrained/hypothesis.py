"""Outputs of a model with their scores: translations, continuations and scored targets."""

import math
from dataclasses import dataclass, field
from typing import Any

from fairseq.data import Dictionary
from torch import Tensor

from fairseq_recur.text import Text


@dataclass(frozen=True)
class Hypothesis:
    """A text with the model's scores, equal to those that fairseq's commands print.

    Attributes:
        text: detokenized text.
        score: base-2 logarithm of its probability, divided by its length to the power of
            ``lenpen``, as in the H- lines of fairseq-generate.
        tokens: T symbols of the dictionary, including the end of the sentence.
        token_scores: base-2 logarithm of each token's probability, as in the P- lines.
        source: S symbols that the encoder reads, with a prefix and the end of the sentence;
            empty for a language model.
        attention: (T, S), the mean over the heads of the topmost decoder layer that attends to the
            encoder; None if the model has no such weights.
    """

    text: str
    score: float
    tokens: list[str] = field(repr=False)
    token_scores: list[float] = field(repr=False)
    source: list[str] = field(repr=False, default_factory=list)
    attention: Tensor | None = field(repr=False, default=None, compare=False)

    @property
    def log_probability(self) -> float:
        """Natural logarithm of the probability of the whole text."""
        return sum(self.token_scores) * math.log(2)


def symbols(tokens: Tensor, dictionary: Dictionary) -> list[str]:
    """Return the dictionary's symbols for ids (T,)."""
    return [dictionary[token] for token in tokens.tolist()]


def to_hypothesis(
    found: dict[str, Any], text: Text, source: Tensor | None, read: Text, scored: bool
) -> Hypothesis:
    """Convert the result of fairseq's generator or scorer.

    Args:
        found: with ``tokens`` (T,), ``score``, ``positional_scores`` (T or more,) and
            ``attention``, which may be None or empty.
        text: the target side.
        source: (S,) ids with padding, or None.
        read: the source side.
        scored: whether it comes from a scorer, whose attention is (T or more, S); a generator's
            is (S, T).
    """
    tokens = found["tokens"].cpu()
    attention = found["attention"] if source is not None else None
    words: list[str] = []
    if source is not None:
        real = source.ne(read.dictionary.pad()).cpu()
        words = symbols(source.cpu()[real], read.dictionary)
    if attention is not None and attention.numel():
        attention = attention.detach().float().cpu()
        attention = (attention if scored else attention.t())[: len(tokens), real]
    else:
        attention = None
    scores = found["positional_scores"][: len(tokens)].float().cpu() / math.log(2)
    return Hypothesis(
        text=text.decode(tokens),
        score=float(found["score"]) / math.log(2),
        tokens=symbols(tokens, text.dictionary),
        token_scores=scores.tolist(),
        source=words,
        attention=attention,
    )
