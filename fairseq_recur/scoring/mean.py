"""Metrics whose score of a corpus is the mean of its texts' scores: ROUGE and COMET."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from fairseq_recur.scoring.problems import Problems


class CorpusMean(NamedTuple):
    """The result of a corpus, with the fields of sacrebleu's scores that are used here."""

    name: str
    score: float


class MeanMetric(ABC):
    """A metric of single texts, with the methods of sacrebleu's metrics for a corpus.

    Attributes:
        name: what the metric is called in tables.
        scale: what the mean is multiplied by, 100 for percentages.
        decimals: how many are shown.
    """

    name: str
    scale: float = 1.0
    decimals: int = 2

    @abstractmethod
    def text_scores(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
    ) -> list[float]:
        """Score each text.

        Args:
            hypotheses: a system's texts.
            references: one sequence for each set of references, each as long as `hypotheses`.

        Returns:
            one number for each text, before `scale`.
        """

    def check(self, texts: int, references: Sequence[Sequence[str]], problems: Problems) -> None:
        """Note what this metric cannot work with; most take any texts.

        Args:
            texts: how many texts each system has.
            references: as for `text_scores`.
        """

    @abstractmethod
    def get_signature(self) -> str:
        """Return what makes figures comparable, beginning with nrefs, for what was scored last."""

    def mean(self, scores: Sequence[float]) -> float:
        """Return the score of the corpus with these scores of its texts."""
        return self.scale * sum(scores) / len(scores)

    def corpus_score(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
    ) -> CorpusMean:
        """Average the scores of the texts, which `text_scores` explains."""
        return CorpusMean(self.name, self.mean(self.text_scores(hypotheses, references)))
