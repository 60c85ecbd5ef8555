"""One sentence a line, as ROUGE-Lsum wants its texts. Needs no download."""

from functools import cache
from typing import Any

SEPARATOR = "<q>"
"""What stands between the sentences of a summary in one-line files of CNN/DailyMail."""


def split_sentences(text: str) -> list[str]:
    """Split English text where sentences end, by the rules of pySBD.

    Nothing but white space at the ends of sentences is lost: a text that pySBD would alter
    (it works with a few rare characters of its own) is returned as one sentence.
    """
    found = [sentence.strip() for sentence in _segmenter().segment(text)]
    whole = "".join("".join(found).split()) == "".join(text.split())
    return [sentence for sentence in (found if whole else [text.strip()]) if sentence]


def one_sentence_a_line(text: str, separator: str = SEPARATOR) -> str:
    """Put a line break between sentences.

    Args:
        text: one summary.
        separator: what stands between sentences in a file with one summary a line, such as
            ``<q>``; ``\\t`` and ``\\n`` may be spelled with a backslash; "" for nothing.

    Returns:
        the sentences, joined by line breaks. Line breaks and separators in the text are taken
        for all ends of its sentences; a text without any is split by `split_sentences`.
    """
    separator = separator.replace("\\t", "\t").replace("\\n", "\n")
    if separator:
        text = text.replace(separator, "\n")
    if "\n" in text.strip():
        lines = (line.strip() for line in text.split("\n"))
        return "\n".join(line for line in lines if line)
    return "\n".join(split_sentences(text))


@cache
def _segmenter() -> Any:
    """Make pySBD's segmenter once; it is imported when something is scored."""
    from pysbd import Segmenter

    return Segmenter(language="en", clean=False)
