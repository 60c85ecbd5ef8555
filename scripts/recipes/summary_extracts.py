"""Extracts of the texts, which a summarizer has to beat."""

import json
import re
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from fairseq_recur.scoring.generation import read_lines
from fairseq_recur.scoring.metrics import build_metric, score_corpus, score_table
from fairseq_recur.scoring.rouge import VARIANTS
from recipes.evaluation import SCORES
from recipes.summary_readers import QUERY_END, TURN

EXTRACTS = "extracts"
"""Name of the step and of its folder."""

OTHER_SCRIPTS = "chrf"
"""The metric of summaries that ROUGE cannot read: of their characters, in any script."""

TURNS = 3
"""Turns of a dialogue in an extract, as in the SAMSum paper's LONGEST-3."""


# Thai and Lao, Burmese, Khmer, Chinese and Japanese, in Unicode's order.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fff\u3001-\u9fff\uf900-\ufaff"
    "\uff01-\uff9f\U00020000-\U0003fffd"
)
_CHARACTER = re.compile(f"[{_UNSPACED}]")
_BETWEEN_BLANKS = re.compile(r"\S+")
_CHARACTER_OR_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")


def word_of(text: str) -> re.Pattern[str]:
    """Return what finds the words of a text: what is between blanks.

    Where more than a quarter of the text is in a script without blanks between words, such as
    Chinese, each of its characters is a word. In other texts it may be a face of Japanese signs.
    """
    unspaced = 4 * len(_CHARACTER.findall(text)) > len(text)
    return _CHARACTER_OR_WORD if unspaced else _BETWEEN_BLANKS


def count_words(text: str) -> int:
    """Return the number of words, see `word_of`."""
    return len(word_of(text).findall(text))


def turns_of(text: str) -> list[str]:
    """Return the turns of a dialogue, or a whole text, with single spaces; without a query."""
    turns = (" ".join(turn.split()) for turn in text.rpartition(QUERY_END)[2].split(TURN))
    return [turn for turn in turns if turn]


def lead(text: str, words: int) -> str:
    """Return the first words of a text."""
    turns = " ".join(turns_of(text))
    found = islice(word_of(turns).finditer(turns), words)
    return turns[: max((word.end() for word in found), default=0)]


def average_words(texts: Path) -> int:
    """Return how many words the average summary of the training set has, rounded."""
    counts = [count_words(line) for line in read_lines(texts / "train.target")]
    return round(sum(counts) / len(counts))


def longest_turns(text: str, count: int = TURNS) -> str:
    """Return the longest turns of a dialogue, in the dialogue's order."""
    turns = turns_of(text)
    word = word_of(text)
    longest = sorted(range(len(turns)), key=lambda i: -len(word.findall(turns[i])))
    return " ".join(turns[i] for i in sorted(longest[:count]))


def metrics_for(references: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics of a test set: ROUGE, or chrF where ROUGE cannot read the summaries.

    ROUGE reads only the letters a to z and digits. If these are less than half of the summaries'
    letters and digits, its scores would be of a rest: in Chinese summaries, of the numbers.

    Args:
        references: the summaries of the test set
    """
    text = "".join(references).lower()
    read, total = len(re.findall("[a-z0-9]", text)), sum(map(str.isalnum, text))
    return VARIANTS if read and 2 * read >= total else (OTHER_SCRIPTS,)


def write_extracts(texts: Path, folder: Path) -> None:
    """Write extracts of the test set, a line for a line, and their scores.

    lead-WORDS has as many words as the average summary of the training set; longest-TURNS is
    written if the texts are dialogues.

    Args:
        texts: folder with test.source, test.target and train.target
        folder: output folder
    """
    words = average_words(texts)
    kinds: dict[str, Callable[[str], str]] = {f"lead-{words}": lambda text: lead(text, words)}
    sources, references = read_lines(texts / "test.source"), read_lines(texts / "test.target")
    if any(TURN in source.split() for source in sources):
        kinds[f"longest-{TURNS}"] = longest_turns
    names = metrics_for(references)
    if names != VARIANTS:
        print(f"ROUGE reads only Latin letters; these summaries are scored with {OTHER_SCRIPTS}")
    metrics = [build_metric(name) for name in names]
    scores = {}
    for name, extract in kinds.items():
        found = [extract(source) for source in sources]
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in found), "utf-8")
        scores[name] = score_corpus(found, [references], metrics)
    print(score_table(scores), flush=True)
    report = {
        name: [{"metric": s.name, "score": s.value, "signature": s.signature} for s in of_one]
        for name, of_one in scores.items()
    }
    (folder / SCORES).write_text(json.dumps(report, indent=1) + "\n")
