"""Text of translation recipes: cleaning, WMT's SGML, tokenizers."""

import html
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from fairseq_recur.errors import ConfigError

# Control characters and the separators that some programs take for the end of a line (U+0085,
# U+2028, U+2029 among them): a file with one of them has more lines for those than for others.
_BREAKING = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
# Marks without width: soft hyphen, zero-width space and joiners, directions, byte order mark.
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")

_HAN = "\u2e80-\u2fdf\u3001-\u303f\u31c0-\u31ef\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff01-\uff65"
_HAN_EXTENDED = "\U00020000-\U0003fffd"
CHINESE = re.compile(f"[{_HAN}{_HAN_EXTENDED}]")
"""A Chinese character or full-width punctuation mark."""
_BLANK_IN_CHINESE = re.compile(f"(?<={CHINESE.pattern}) (?={CHINESE.pattern})")
_BLANK_BESIDE_CHINESE = re.compile(f"(?<={CHINESE.pattern}) | (?={CHINESE.pattern})")


def tidy(text: str) -> str:
    """Return one line of printable text: no control characters, single spaces between words."""
    return " ".join(_INVISIBLE.sub("", _BREAKING.sub(" ", text)).split())


def join_chinese(text: str) -> str:
    """Remove spaces between Chinese characters: some of CWMT's corpora are segmented."""
    return _BLANK_IN_CHINESE.sub("", text)


def detokenise_chinese(text: str) -> str:
    """Return text without spaces next to Chinese characters, as Chinese is written."""
    return _BLANK_BESIDE_CHINESE.sub("", text)


def length(text: str) -> int:
    """Return the number of words of a line; each Chinese character counts as a word."""
    return len(CHINESE.sub(" x ", text).split())


@dataclass(frozen=True)
class Rules:
    """The rules by which pairs are kept.

    Attributes:
        shortest, longest: limits of the number of words of each side
        ratio: how many times longer one side may be than the other
    """

    shortest: int
    longest: int
    ratio: float

    def fault(self, one: str, other: str) -> str | None:
        """Return why a pair of raw lines is dropped regardless of its length, or None."""
        if not one or not other:
            return "empty"
        if one == other:
            return "identical"
        if "\ufffd" in one or "\ufffd" in other:
            return "not UTF-8"
        return None

    def misfit(self, one: int, other: int) -> str | None:
        """Return why a pair with these numbers of words is dropped, or None."""
        if min(one, other) < self.shortest:
            return "short"
        if max(one, other) > self.longest:
            return "long"
        if max(one, other) > self.ratio * min(one, other):
            return "ratio"
        return None


SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.DOTALL | re.IGNORECASE)
OPEN = re.compile(r"<seg\b", re.IGNORECASE)


def sentences(lines: Iterable[str], name: str) -> Iterator[str]:
    """Yield the text of each segment, one line each, with entities replaced by characters.

    White space is treated as in sacreBLEU, which leaves entities to its tokenizers.

    Args:
        lines: lines of the file
        name: name of the file, for the error

    Raises:
        ConfigError: the file has no segment, or an unclosed one
    """
    text = "".join(lines)
    found = [re.sub(r"\s+", " ", html.unescape(s)).strip() for s in SEGMENT.findall(text)]
    if not found or len(found) != len(OPEN.findall(text)):
        raise ConfigError(
            f"{name} has {len(OPEN.findall(text))} <seg> and {len(found)} closed ones: not WMT's"
            " SGML, or truncated; get it again"
        )
    yield from found


Tokeniser = Callable[[str], str]
"""A function from a clean line to words separated by spaces."""

# A Chinese character, a word or number of another script, or any other character.
_CHARACTERS = re.compile(rf"{CHINESE.pattern}|[^\W\u2e80-\uffff]+(?:[.,'-][^\W\u2e80-\uffff]+)*|\S")


@cache  # building one takes a second
def tokeniser(language: str, normalise: bool, dashes: bool, chinese: str) -> Tokeniser:
    """Return the tokenizer of a language.

    Args:
        language: "zh", or a language of the Moses tokenizer
        normalise: replace quotation marks and other punctuation by ASCII, as Moses does; has no
            effect on Chinese
        dashes: split words at dashes, "well @-@ known", like `tokenizer.perl -a`
        chinese: "jieba" or "characters"; only for zh
    """
    if language == "zh":
        return _jieba() if chinese == "jieba" else _characters
    return _moses(language, normalise, dashes)


def _moses(language: str, normalise: bool, dashes: bool) -> Tokeniser:
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
    except ImportError as error:
        raise ConfigError(
            "TOKENIZER=moses needs the package sacremoses: pip install sacremoses"
        ) from error
    normaliser = MosesPunctNormalizer(language) if normalise else None
    moses = MosesTokenizer(language)

    def tokenise(text: str) -> str:
        if normaliser is not None:
            text = normaliser.normalize(text)
        return moses.tokenize(text, aggressive_dash_splits=dashes, return_str=True)

    return tokenise


def _jieba() -> Tokeniser:
    try:
        import jieba
    except ImportError as error:
        raise ConfigError(
            "SEGMENTATION=jieba needs the package jieba: pip install jieba==0.42.1, or choose"
            " SEGMENTATION=characters"
        ) from error
    jieba.setLogLevel("WARNING")
    cutter = jieba.Tokenizer()
    # Its own initialisation reads a pickled cache from the temporary folder, where anybody may
    # have put one. A pickle can run code.
    cutter.FREQ, cutter.total = cutter.gen_pfdict(cutter.get_dict_file())
    cutter.initialized = True

    def tokenise(text: str) -> str:
        return " ".join(word for word in cutter.cut(join_chinese(text)) if word.strip())

    return tokenise


def _characters(text: str) -> str:
    words: list[str] = _CHARACTERS.findall(text)
    return " ".join(words)
