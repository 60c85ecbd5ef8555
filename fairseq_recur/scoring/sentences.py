"""Texts with one sentence per line, as ROUGE-Lsum expects them, without a download."""

from functools import cache, lru_cache
from typing import Any

SEPARATOR = "<q>"
"""The mark between the sentences of a summary in the one-line files of CNN/DailyMail."""


@lru_cache(maxsize=2**16)  # each variant of ROUGE asks for the same texts
def split_sentences(text: str) -> tuple[str, ...]:
    """Split English text into sentences by the rules of pySBD.

    Only white space at the ends of sentences is lost. pySBD uses a few rare characters
    internally; a text that it would alter is returned as one sentence.
    """
    found = [sentence.strip() for sentence in _segmenter().segment(text)]
    whole = "".join("".join(found).split()) == "".join(text.split())
    return tuple(sentence for sentence in (found if whole else [text.strip()]) if sentence)


def one_sentence_per_line(text: str, separator: str = SEPARATOR) -> str:
    r"""Put a line break between sentences.

    Args:
        text: one summary.
        separator: the mark between sentences in a file with one summary per line, such as
            ``<q>``; ``\t`` and ``\n`` may be spelled with a backslash; "" for none.

    Returns:
        The sentences, joined by line breaks. If the text has line breaks or separators, they
        are the only ends of its sentences; otherwise `split_sentences` splits it.
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
    """Build pySBD's segmenter once; the import waits until a text is scored."""
    from pysbd import Segmenter

    return Segmenter(language="en", clean=False)
