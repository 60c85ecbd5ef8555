"""Error rates of sequences of symbols, such as the phones of a word, and accuracy.

A text is a line.
"""

from abc import abstractmethod
from collections.abc import Sequence
from importlib.metadata import version

from fairseq_recur.errors import Problems
from fairseq_recur.scoring.mean_metric import MeanMetric


class ErrorRate(MeanMetric):
    """A percentage of errors in symbols that white space separates.

    Gorman et al. 2020, *The SIGMORPHON 2020 Shared Task on Multilingual Grapheme-to-Phoneme
    Conversion*, where each word has one pronunciation. Of several references, the nearest counts.
    """

    scale = 100.0
    higher_is_better = False

    def score_texts(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
    ) -> list[float]:
        """Return the errors of each text, divided by the average of `sizes`."""
        average = sum(self.sizes(references)) / len(hypotheses)
        return [
            min(self.errors(hypothesis.split(), text.split()) for text in {*of_one}) / average
            for hypothesis, *of_one in zip(hypotheses, *references)
        ]

    def weights(self, references: Sequence[Sequence[str]]) -> list[float]:
        """Return the `sizes`, divided by their average."""
        sizes = self.sizes(references)
        return [size * len(sizes) / sum(sizes) for size in sizes]

    @abstractmethod
    def sizes(self, references: Sequence[Sequence[str]]) -> list[float]:
        """Return how many errors of each text are 100 %."""

    @abstractmethod
    def errors(self, hypothesis: list[str], reference: list[str]) -> int:
        """Return the number of errors in a text."""

    def get_signature(self) -> str:
        """Return how symbols are told apart."""
        return f"nrefs:{self.references}|symbols:whitespace"


class WordErrorRate(ErrorRate):
    """The share of texts with any wrong symbol."""

    name = "WER"

    def sizes(self, references: Sequence[Sequence[str]]) -> list[float]:
        """Return 1 for each text."""
        return [1.0] * len(references[0])

    def errors(self, hypothesis: list[str], reference: list[str]) -> int:
        """Return 1 if anything is wrong, otherwise 0."""
        return int(hypothesis != reference)


class Accuracy(WordErrorRate):
    """The share of texts that are right, such as the answers "true" and "false" of a classifier."""

    name = "Accuracy"
    higher_is_better = True

    def score_texts(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
    ) -> list[float]:
        """Return 1 for each text that equals a reference, but for white space, otherwise 0."""
        return [1.0 - error for error in super().score_texts(hypotheses, references)]


class PhoneErrorRate(ErrorRate):
    """All edits of a test set (Levenshtein 1966), divided by the number of its phones.

    A long word therefore counts more than a short one. Of a word with several pronunciations,
    the average length counts, as in TER: it is the same for all systems.
    """

    name = "PER"

    def check(self, texts: int, references: Sequence[Sequence[str]], problems: Problems) -> None:
        """Note references without phones."""
        empty = [
            line for text in references for line, words in enumerate(text, 1) if not words.split()
        ]
        if empty:
            problems.add(
                f"PER: found {len(empty)} empty references, the first in line {empty[0]}; "
                "expected at least one phone in each"
            )

    def sizes(self, references: Sequence[Sequence[str]]) -> list[float]:
        """Return the number of phones of each text; of different references, the average."""
        lengths = ([len(text.split()) for text in {*of_one}] for of_one in zip(*references))
        return [sum(of_one) / len(of_one) for of_one in lengths]

    def errors(self, hypothesis: list[str], reference: list[str]) -> int:
        """Return the smallest number of insertions, deletions and substitutions."""
        from nltk.metrics.distance import edit_distance  # this import takes a second

        return int(edit_distance(hypothesis, reference))

    def get_signature(self) -> str:
        """Return how symbols are told apart, and whose edit distance it is."""
        return f"{super().get_signature()}|nltk:{version('nltk')}"


ERROR_RATES: dict[str, type[ErrorRate]] = {
    "wer": WordErrorRate,
    "per": PhoneErrorRate,
    "accuracy": Accuracy,
}
"""Word and phone error rate are those of SIGMORPHON's grapheme-to-phoneme conversion."""
