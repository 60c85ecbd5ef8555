"""Cleaning of text: characters that break lines, and pairs that cannot be translations."""

import re
from dataclasses import dataclass

# Control characters and the separators that some programs take for the end of a line (U+0085,
# U+2028, U+2029 among them): a file with one of them has more lines for those than for others.
_BREAKING = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
# Marks without width: soft hyphen, zero-width space and joiners, directions, byte order mark.
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")

_HAN = "\u2e80-\u2fdf\u3001-\u303f\u31c0-\u31ef\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff01-\uff65"
_HAN_EXTENDED = "\U00020000-\U0003fffd"
CHINESE = re.compile(f"[{_HAN}{_HAN_EXTENDED}]")
"""A Chinese character, or a punctuation mark of its width."""
_BLANK_IN_CHINESE = re.compile(f"(?<={CHINESE.pattern}) (?={CHINESE.pattern})")
_BLANK_BESIDE_CHINESE = re.compile(f"(?<={CHINESE.pattern}) | (?={CHINESE.pattern})")


def tidy(text: str) -> str:
    """One line of printable text: no control characters, words apart by single blanks."""
    return " ".join(_INVISIBLE.sub("", _BREAKING.sub(" ", text)).split())


def join_chinese(text: str) -> str:
    """Chinese without the blanks between characters: some of CWMT's corpora are segmented."""
    return _BLANK_IN_CHINESE.sub("", text)


def detokenise_chinese(text: str) -> str:
    """Chinese as it is written: no blanks beside Chinese characters."""
    return _BLANK_BESIDE_CHINESE.sub("", text)


def length(text: str) -> int:
    """The number of words of a line; of untokenised Chinese, of characters and other words."""
    return len(CHINESE.sub(" x ", text).split())


@dataclass(frozen=True)
class Rules:
    """Which pairs are kept.

    Attributes:
        shortest, longest: the words that each side may have
        ratio: how many times as long as the other a side may be
    """

    shortest: int
    longest: int
    ratio: float

    def fault(self, one: str, other: str) -> str | None:
        """Why a pair of raw lines is dropped, if it is, whatever its length."""
        if not one or not other:
            return "empty"
        if one == other:
            return "identical"
        if "\ufffd" in one or "\ufffd" in other:
            return "not UTF-8"
        return None

    def misfit(self, one: int, other: int) -> str | None:
        """Why a pair of so many words is dropped, if it is."""
        if min(one, other) < self.shortest:
            return "short"
        if max(one, other) > self.longest:
            return "long"
        if max(one, other) > self.ratio * min(one, other):
            return "ratio"
        return None
