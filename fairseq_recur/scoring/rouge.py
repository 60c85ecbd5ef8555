"""ROUGE by the rouge-score library, with texts in the form that it expects.

Lin 2004, *ROUGE: A Package for Automatic Evaluation of Summaries*. rouge-score is Google's
reimplementation of the Perl program that published figures for summaries come from.
"""

from collections.abc import Sequence
from importlib.metadata import version

from fairseq_recur.errors import ConfigError
from fairseq_recur.scoring.mean_metric import MeanMetric
from fairseq_recur.scoring.sentences import SEPARATOR, one_sentence_per_line

VARIANTS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
"""Words, pairs of words, the longest common subsequence of the whole texts, and that of each
sentence of the reference with all sentences of the summary."""

# fairseq writes an unknown word as <unk>, and in a reference as <<unk>> so that the two do not
# match. rouge-score reads only letters and digits, so both would be the word "unk".
UNKNOWN = ("<<unk>>", "unknownwordinreference"), ("<unk>", "unknownwordinhypothesis")


def hide_unknown(reference: str, hypothesis: str) -> tuple[str, str]:
    """Replace fairseq's unknown words so that they do not match each other."""
    return reference.replace(*UNKNOWN[0]), hypothesis.replace(*UNKNOWN[1])


class Rouge:
    """F-measures of a summary, as ``rouge_score.rouge_scorer.RougeScorer`` computes them.

    Args:
        variants: some of VARIANTS.
        stemmer: compare stems by Porter's algorithm, as is usual.
        separator: the mark between sentences, see `one_sentence_per_line`.

    Raises:
        ConfigError: an unknown variant.
    """

    def __init__(
        self, variants: Sequence[str] = VARIANTS, stemmer: bool = True, separator: str = SEPARATOR
    ) -> None:
        unknown = [name for name in variants if name not in VARIANTS]
        if unknown or not variants:
            found = ", ".join(unknown) or "nothing"
            raise ConfigError(f"ROUGE: found {found}, expected some of {', '.join(VARIANTS)}")
        # This import would add half of fairseq's start-up time, so it waits until it is needed.
        from rouge_score.rouge_scorer import RougeScorer
        from rouge_score.tokenizers import DefaultTokenizer

        self.variants = tuple(variants)
        self.stemmer = stemmer
        self.separator = separator
        # Its own splitter would download a model. With a tokenizer given, it writes no log.
        self._scorer = RougeScorer(self.variants, tokenizer=DefaultTokenizer(stemmer))

    def score(self, references: Sequence[str], hypothesis: str) -> dict[str, float]:
        """Score one summary.

        Args:
            references: one or more texts; for each variant, the best of them counts.
            hypothesis: the summary.

        Returns:
            The F-measure of each variant, from 0 to 1.
        """
        lines = [one_sentence_per_line(text, self.separator) for text in (*references, hypothesis)]
        scores = self._scorer.score_multi(lines[:-1], lines[-1])
        return {name: scores[name].fmeasure for name in self.variants}

    def signature(self, references: int = 1) -> str:
        """Return the settings that make scores comparable, like sacrebleu's signatures."""
        marks = f"newline or {self.separator!r}" if self.separator else "newline"
        return "|".join(
            (
                f"nrefs:{references}",
                f"stemmer:{'porter' if self.stemmer else 'no'}",
                f"sentences:{marks}, else pysbd-{version('pysbd')}",
                "average:F1",
                f"rouge-score:{version('rouge-score')}",
            )
        )


class RougeMetric(MeanMetric):
    """One variant as a corpus metric: the mean F-measure, times 100.

    Args:
        name: one of VARIANTS.
        separator: the mark between sentences, see `one_sentence_per_line`.

    Raises:
        ConfigError: an unknown variant.
    """

    scale = 100.0

    def __init__(self, name: str, separator: str = SEPARATOR) -> None:
        self.name = name
        self._rouge = Rouge([name], separator=separator)

    def score_texts(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
    ) -> list[float]:
        """Return the F-measure of each summary, from 0 to 1."""
        return [
            self._rouge.score(of_one, hypothesis)[self.name]
            for hypothesis, *of_one in zip(hypotheses, *references)
        ]

    def get_signature(self) -> str:
        """Return the signature of the last scores."""
        return self._rouge.signature(self.references)
