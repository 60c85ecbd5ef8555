"""Metrics whose corpus score is the mean of the scores of its texts: ROUGE, COMET, error rates."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from fairseq_recur.errors import Problems


class CorpusMean(NamedTuple):
    """A corpus score, with those fields of sacrebleu's scores that are used here."""

    name: str
    score: float


class MeanMetric(ABC):
    """A metric of single texts, with the corpus methods of sacrebleu's metrics.

    Attributes:
        name: its name in tables.
        scale: factor for the mean, 100 for percentages.
        decimals: number of decimals that tables show.
        higher_is_better: whether a higher score is a better one.
        references: number of reference sets of the last scores.
    """

    name: str
    scale: float = 1.0
    decimals: int = 2
    higher_is_better: bool = True
    references: int = 1

    @cached_property
    def _known(self) -> dict[tuple[tuple[str, ...], ...], list[float]]:
        """The scores of texts and references that were scored before."""
        return {}

    def text_scores(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
    ) -> list[float]:
        """`score_texts`, once for the same texts: a score and several tests need them."""
        self.references = len(references)
        texts = tuple(hypotheses), *map(tuple, references)
        if texts not in self._known:
            self._known[texts] = self.score_texts(hypotheses, references)
        return list(self._known[texts])

    @abstractmethod
    def score_texts(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
    ) -> list[float]:
        """Score each text.

        Args:
            hypotheses: a system's texts.
            references: one sequence per reference set, each as long as ``hypotheses``.

        Returns:
            One number per text, without the factor ``scale``.
        """

    def weights(self, references: Sequence[Sequence[str]]) -> list[float]:
        """Return the weight of each text in a resampled test set; 1 on average.

        In another test set the texts, and so their average size, are different ones: there the
        score is the mean of `text_scores` divided by the mean of the weights.
        """
        return [1.0] * len(references[0])

    def check(  # noqa: B027 - most metrics accept any texts
        self, texts: int, references: Sequence[Sequence[str]], problems: Problems
    ) -> None:
        """Note input that this metric cannot score.

        Args:
            texts: number of texts per system.
            references: as for `score_texts`.
            problems: where to note it.
        """

    @abstractmethod
    def get_signature(self) -> str:
        """Return the settings of the last scores, beginning with nrefs, as sacrebleu does."""

    def mean(self, scores: Sequence[float]) -> float:
        """Return the corpus score for the scores of its texts."""
        return self.scale * sum(scores) / len(scores)

    def corpus_score(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
    ) -> CorpusMean:
        """Average the scores of the texts; arguments as for `score_texts`."""
        return CorpusMean(self.name, self.mean(self.text_scores(hypotheses, references)))
