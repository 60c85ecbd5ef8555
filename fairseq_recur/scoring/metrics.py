"""Corpus scores by sacrebleu, rouge-score and COMET, and error rates, each with its signature."""

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from fairseq_recur.errors import ConfigError, Problems
from fairseq_recur.scoring.comet import DEFAULT_MODEL, CometMetric
from fairseq_recur.scoring.error_rates import ERROR_RATES
from fairseq_recur.scoring.mean_metric import MeanMetric
from fairseq_recur.scoring.rouge import VARIANTS, RougeMetric
from fairseq_recur.scoring.sentences import SEPARATOR
from fairseq_recur.scoring.tables import aligned

METRICS = ("bleu", "chrf", "chrf++", "ter", *VARIANTS, *ERROR_RATES, "comet")
TOKENIZERS = tuple(BLEU.TOKENIZERS)


@dataclass(frozen=True)
class Score:
    """One metric of one system: the library's name for it, the value and the signature."""

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
    """Build a metric with the settings of sacrebleu's own command, or ROUGE with stemming.

    Args:
        name: one of METRICS.
        tokenize: BLEU's tokenizer, one of TOKENIZERS; the other metrics have fixed ones.
        lowercase: ignore case in BLEU and chrF. TER and ROUGE always do.
        separator: the mark between the sentences of a summary, for ROUGE.
        source: the source texts, for COMET.
        comet_model: a name on the Hugging Face hub or a checkpoint file, for COMET.
        gpus: number of GPUs for COMET.

    Raises:
        ConfigError: an unknown name or tokenizer, a tokenizer whose requirements are not
            installed or cannot be downloaded, or COMET without a source.
    """
    if name not in METRICS:
        raise ConfigError(f"unknown metric {name!r}; expected one of {', '.join(METRICS)}")
    if name in VARIANTS:
        return RougeMetric(name, separator)
    if name == "comet":
        if source is None:
            raise ConfigError("COMET needs the source texts, found none; give source=...")
        return CometMetric(source, comet_model, gpus)
    if name == "ter":
        return TER()
    if name in ERROR_RATES:
        return ERROR_RATES[name]()
    if name != "bleu":
        return CHRF(word_order=2 if name == "chrf++" else 0, lowercase=lowercase)
    if tokenize not in TOKENIZERS:
        raise ConfigError(f"unknown tokenizer {tokenize!r}; expected {', '.join(TOKENIZERS)}")
    try:
        # The user who asks for no tokenizer knows that the text is tokenized; sacrebleu would warn.
        return BLEU(tokenize=tokenize, lowercase=lowercase, force=tokenize == "none")
    except (RuntimeError, ImportError, OSError) as error:
        # The Japanese and Korean tokenizers need extras, the sentencepiece ones a download.
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"sacrebleu's tokenizer {tokenize!r} is not available: {reason}; install or download "
            "what is missing, or choose another tokenizer"
        ) from error


def score_corpus(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[Metric | MeanMetric],
) -> list[Score]:
    """Score one system against one or more references.

    Args:
        hypotheses: the system's sentences.
        references: one sequence per reference set, each as long as ``hypotheses``.
        metrics: from `build_metric`.

    Raises:
        ConfigError: a reference of another length, or input that a metric cannot score.
    """
    for number, reference in enumerate(references, 1):
        if len(reference) != len(hypotheses):
            raise ConfigError(
                f"{len(hypotheses)} hypotheses, but reference {number} has {len(reference)} lines; "
                "expected equal numbers"
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
    """Return the number of decimals that tables show of a metric's scores."""
    return metric.decimals if isinstance(metric, MeanMetric) else 2


def score_table(systems: dict[str, Sequence[Score]]) -> str:
    """Format scores as a table: one row per system, one column per metric, then the signatures.

    All systems must have scores of the same metrics.
    """
    first = next(iter(systems.values()))
    rows = [["system", *(score.name for score in first)]]
    for name, scores in systems.items():
        rows.append([name, *(f"{score.value:.{score.decimals}f}" for score in scores)])
    lines = aligned(rows, names=1)
    lines += ["", *(f"{score.name}: {score.signature}" for score in first)]
    return "\n".join(lines)
