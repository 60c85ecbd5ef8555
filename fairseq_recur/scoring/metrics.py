"""Corpus scores by sacrebleu, rouge-score and COMET, each with the signature that it needs."""

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric

from fairseq_recur.errors import ConfigError
from fairseq_recur.scoring.aligned import aligned
from fairseq_recur.scoring.comet import DEFAULT_MODEL, CometMetric
from fairseq_recur.scoring.mean import MeanMetric
from fairseq_recur.scoring.problems import Problems
from fairseq_recur.scoring.rouge import VARIANTS, RougeMetric
from fairseq_recur.scoring.sentences import SEPARATOR

METRICS = ("bleu", "chrf", "chrf++", "ter", *VARIANTS, "comet")
TOKENIZERS = tuple(BLEU.TOKENIZERS)


@dataclass(frozen=True)
class Score:
    """One metric of one system: its name as its library prints it, the value, the signature."""

    name: str
    value: float
    signature: str
    decimals: int = 2


def build_metric(
    name: str,
    tokenize: str = BLEU.TOKENIZER_DEFAULT,
    lowercase: bool = False,
    separator: str = SEPARATOR,
    source: Sequence[str] | None = None,
    comet_model: str = DEFAULT_MODEL,
    gpus: int = 0,
) -> Metric | MeanMetric:
    """Make one of METRICS: with the settings of sacrebleu's own command, or ROUGE with stemming.

    Args:
        name: one of METRICS.
        tokenize: BLEU's tokenizer, one of TOKENIZERS; the other metrics have their own.
        lowercase: ignore case in BLEU and chrF. TER always does, as in sacrebleu's command, and
            so does ROUGE.
        separator: what stands between the sentences of a summary, for ROUGE.
        source: the texts that were translated, for COMET.
        comet_model: a name on the Hugging Face hub or a checkpoint file, for COMET.
        gpus: how many COMET uses.

    Raises ConfigError for an unknown name or tokenizer, for a tokenizer that needs something
    which is not installed or cannot be downloaded, for COMET also if it has no source.
    """
    if name not in METRICS:
        raise ConfigError(f"unknown metric {name!r}; expected one of {', '.join(METRICS)}")
    if name in VARIANTS:
        return RougeMetric(name, separator)
    if name == "comet":
        if source is None:
            raise ConfigError("COMET needs the source texts, and there are none; give source=...")
        return CometMetric(source, comet_model, gpus)
    if name == "ter":
        return TER()
    if name != "bleu":
        return CHRF(word_order=2 if name == "chrf++" else 0, lowercase=lowercase)
    if tokenize not in TOKENIZERS:
        raise ConfigError(f"unknown tokenizer {tokenize!r}; expected {', '.join(TOKENIZERS)}")
    try:
        # Who asks for no tokenizer knows that the text is tokenised; sacrebleu would warn.
        return BLEU(tokenize=tokenize, lowercase=lowercase, force=tokenize == "none")
    except (RuntimeError, ImportError, OSError) as error:
        # The Japanese and Korean tokenizers need extras, the sentencepiece ones a download.
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"sacrebleu's tokenizer {tokenize!r} is not available: {reason}; install or download "
            "what it lacks, or choose another one"
        ) from error


def score_corpus(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[Metric | MeanMetric],
) -> list[Score]:
    """Score one system against one or more references.

    Args:
        hypotheses: the system's sentences.
        references: one sequence for each reference translation, each as long as `hypotheses`.
        metrics: from build_metric.

    Raises ConfigError if a reference has another number of sentences than the system, or a
    metric cannot work with them.
    """
    for number, reference in enumerate(references, 1):
        if len(reference) != len(hypotheses):
            raise ConfigError(
                f"{len(hypotheses)} hypotheses, but reference {number} has {len(reference)} lines; "
                "expected as many"
            )
    problems = Problems("the system cannot be scored")
    for metric in metrics:
        if isinstance(metric, MeanMetric):
            metric.check(len(hypotheses), references, problems)
    problems.raise_all()
    scores = []
    for metric in metrics:
        result = metric.corpus_score(hypotheses, references)
        # The signature knows the number of references only after scoring.
        signature = str(metric.get_signature())
        scores.append(Score(result.name, result.score, signature, decimals_of(metric)))
    return scores


def decimals_of(metric: Metric | MeanMetric) -> int:
    """Return how many decimals of a metric's scores are shown."""
    return metric.decimals if isinstance(metric, MeanMetric) else 2


def score_table(systems: dict[str, Sequence[Score]]) -> str:
    """Format scores for people: a row for each system, a column for each metric, and below
    them what each column's name stands for (its signature).

    Every system must have been scored with the same metrics.
    """
    first = next(iter(systems.values()))
    rows = [["system", *(score.name for score in first)]]
    for name, scores in systems.items():
        rows.append([name, *(f"{score.value:.{score.decimals}f}" for score in scores)])
    lines = aligned(rows, names=1)
    lines += ["", *(f"{score.name}: {score.signature}" for score in first)]
    return "\n".join(lines)
