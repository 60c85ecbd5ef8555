"""Translations as text, and the scores that only older papers have."""

import re
from pathlib import Path

from sacrebleu.metrics import BLEU

from fairseq_recur.scoring.generation import read_hypotheses, read_lines
from recipes.clean import detokenise_chinese, tidy
from recipes.tokenise import tokeniser

HYPHEN = re.compile(r"(\S)-(?=\S)")


def write_translations(generated: Path, output: Path, language: str) -> None:
    """Write the sentences of what `generate` printed, in the test set's order, one a line.

    Raises:
        ConfigError: sentences are missing
    """
    lines = read_hypotheses(generated)
    if language == "zh":
        lines = [detokenise_chinese(line) for line in lines]
    output.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


def extra_scores(reference: Path, translations: Path, language: str) -> str:
    """BLEU of Moses's tokens, and of tokens whose compounds are split at hyphens.

    Older papers have these. Both sides get the tokens of the same rules, punctuation normalised;
    BLEU is not smoothed, as in multi-bleu.perl. They compare with nothing but themselves.
    """
    tokenise = tokeniser(language, normalise=True, dashes=False, chinese="characters")
    sides = [[tokenise(tidy(line)) for line in read_lines(f)] for f in (translations, reference)]
    split = [[HYPHEN.sub(r"\1 ##AT##-##AT## ", line) for line in lines] for lines in sides]
    name = "characters" if language == "zh" else "Moses's tokens"
    shown = [f"BLEU of {name}: {_bleu(*sides):.2f}"]
    if language != "zh":
        shown.append(f"BLEU of {name}, compounds split: {_bleu(*split):.2f}")
    return "\n".join(f"(not comparable with the scores above) {line}" for line in shown)


def _bleu(translations: list[str], reference: list[str]) -> float:
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    return float(metric.corpus_score(translations, [reference]).score)
