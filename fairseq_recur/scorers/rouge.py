"""``fairseq-generate --scoring rouge``: ROUGE in the last line of the log."""

from dataclasses import dataclass, field

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.scoring import BaseScorer, register_scorer

from fairseq_recur.errors import ConfigError
from fairseq_recur.scoring.rouge import VARIANTS, Rouge, hide_unknown
from fairseq_recur.scoring.sentences import SEPARATOR

Variant = ChoiceEnum(list(VARIANTS))


@dataclass
class RougeScorerConfig(FairseqDataclass):
    """The flags of ``--scoring rouge``."""

    rouge_variant: Variant = field(  # type: ignore[valid-type]  # an enum made at run time
        default="rougeLsum", metadata={"help": "the variant that is the score and is printed first"}
    )
    rouge_separator: str = field(
        default=SEPARATOR,
        metadata={
            "help": "mark between the sentences of a summary, such as <q> or \\t. Without it, "
            "rules for English find the sentences"
        },
    )
    rouge_no_stemmer: bool = field(
        default=False, metadata={"help": "compare words instead of stems by Porter's algorithm"}
    )


@register_scorer("rouge", dataclass=RougeScorerConfig)
class RougeScorer(BaseScorer):
    """ROUGE-1, -2, -L and -Lsum: F-measures times 100, averaged over the summaries."""

    def __init__(self, cfg: RougeScorerConfig) -> None:
        super().__init__(cfg)
        self.rouge = Rouge(stemmer=not cfg.rouge_no_stemmer, separator=cfg.rouge_separator)
        self.scores: dict[str, list[float]] = {name: [] for name in VARIANTS}

    def add_string(self, ref: str, pred: str) -> None:
        """Score one summary; unknown words match nothing."""
        ref, pred = hide_unknown(ref, pred)
        for name, value in self.rouge.score([ref], pred).items():
            self.scores[name].append(value)

    def figures(self) -> dict[str, float]:
        """Return all variants, the chosen one first.

        Raises:
            ConfigError: nothing was added.
        """
        chosen = str(self.cfg.rouge_variant)
        if not self.scores[chosen]:
            raise ConfigError(
                "no summary was generated, so there is no ROUGE; give a subset that contains texts"
            )
        names = [chosen, *(name for name in VARIANTS if name != chosen)]
        return {n: 100 * sum(self.scores[n]) / len(self.scores[n]) for n in names}

    def score(self) -> float:
        """Return the chosen variant."""
        return self.figures()[str(self.cfg.rouge_variant)]

    def result_string(self) -> str:
        """Return all variants and the signature, for the log's last line."""
        figures = " ".join(f"{name} = {value:.2f}" for name, value in self.figures().items())
        return f"{figures} ({self.rouge.signature()})"
