"""Extracts of the texts, which a summarizer has to beat."""

import json
import re
from collections.abc import Callable, Sequence
from itertools import chain, islice
from pathlib import Path

from fairseq_recur.errors import ConfigError
from fairseq_recur.scoring.generation import read_lines
from fairseq_recur.scoring.metrics import build_metric, score_corpus, score_table
from fairseq_recur.scoring.rouge import VARIANTS
from recipes.evaluation import SCORES
from recipes.summary_readers import QUERY_END, TURN

EXTRACTS = "extracts"
"""Name of the step and of its folder."""

TURNS = 3
"""Turns of a dialogue in an extract, as in the SAMSum paper's LONGEST-3."""


def turns_of(text: str) -> list[list[str]]:
    """Return the words of each turn of a dialogue, or of a whole text; a query is left out."""
    return [turn.split() for turn in text.rpartition(QUERY_END)[2].split(TURN)]


def lead(text: str, words: int) -> str:
    """Return the first words of a text."""
    return " ".join(islice(chain.from_iterable(turns_of(text)), words))


def average_words(texts: Path) -> int:
    """Return how many words the average summary of the training set has, rounded."""
    counts = [len(line.split()) for line in read_lines(texts / "train.target")]
    return round(sum(counts) / len(counts))


def longest_turns(text: str, count: int = TURNS) -> str:
    """Return the longest turns of a dialogue, in the dialogue's order."""
    turns = turns_of(text)
    chosen = sorted(sorted(range(len(turns)), key=lambda i: -len(turns[i]))[:count])
    return " ".join(word for i in chosen for word in turns[i])


def check_script(references: Sequence[str], file: Path) -> None:
    """Raise ConfigError if ROUGE reads less than half of the summaries' letters and digits.

    Its scores would be of the part that it reads: in Chinese summaries, the numbers.

    Args:
        references: lines of the file
        file: named in the error
    """
    text = "".join(references).lower()
    read, total = len(re.findall("[a-z0-9]", text)), sum(map(str.isalnum, text))
    if 2 * read < total or not read:
        raise ConfigError(
            f"{file}: ROUGE reads only {read:,} of the {total:,} letters and digits of the "
            "summaries, those from a to z and from 0 to 9; transliterate the texts"
        )


def write_extracts(texts: Path, folder: Path) -> None:
    """Write extracts of the test set, a line for a line, and their scores.

    lead-WORDS has as many words as the average summary of the training set; longest-TURNS is
    written if the texts are dialogues.

    Args:
        texts: folder with test.source, test.target and train.target
        folder: output folder

    Raises:
        ConfigError: ROUGE cannot read the summaries
    """
    words = average_words(texts)
    kinds: dict[str, Callable[[str], str]] = {f"lead-{words}": lambda text: lead(text, words)}
    sources, references = read_lines(texts / "test.source"), read_lines(texts / "test.target")
    if any(TURN in source.split() for source in sources):
        kinds[f"longest-{TURNS}"] = longest_turns
    check_script(references, texts / "test.target")
    metrics = [build_metric(name) for name in VARIANTS]
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
