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


SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.DOTALL | re.IGNORECASE)
OPEN = re.compile(r"<seg\b", re.IGNORECASE)


def sentences(lines: Iterable[str], name: str) -> Iterator[str]:
    """The text of each segment, one line each, with characters in the place of entities.

    White space is that of sacreBLEU, which leaves entities for its tokenizers to replace.

    Args:
        lines: of the file
        name: of the file, for the error

    Raises:
        ConfigError: there is no segment, or one that does not end
    """
    text = "".join(lines)
    found = [re.sub(r"\s+", " ", html.unescape(s)).strip() for s in SEGMENT.findall(text)]
    if not found or len(found) != len(OPEN.findall(text)):
        raise ConfigError(
            f"{name} has {len(OPEN.findall(text))} <seg> and {len(found)} of them end: not WMT's"
            " SGML, or cut off; get it again"
        )
    yield from found


Tokeniser = Callable[[str], str]
"""From a tidy line to words with blanks between them."""

# A Chinese character, a word or number of another script, or any other character.
_CHARACTERS = re.compile(rf"{CHINESE.pattern}|[^\W\u2e80-\uffff]+(?:[.,'-][^\W\u2e80-\uffff]+)*|\S")


@cache  # building one takes a second
def tokeniser(language: str, normalise: bool, dashes: bool, chinese: str) -> Tokeniser:
    """The tokeniser of a language.

    Args:
        language: "zh", or one that Moses's tokeniser has rules for
        normalise: replace quotation marks and other punctuation by those of ASCII, as Moses does;
            not in Chinese
        dashes: split words at dashes, "well @-@ known", as `tokenizer.perl -a`
        chinese: "jieba" or "characters", for zh alone
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
    # What its own initialisation does, without the cache that it keeps in the temporary folder:
    # that is read as code would be, and whoever writes there could have put it there.
    cutter.FREQ, cutter.total = cutter.gen_pfdict(cutter.get_dict_file())
    cutter.initialized = True

    def tokenise(text: str) -> str:
        return " ".join(word for word in cutter.cut(join_chinese(text)) if word.strip())

    return tokenise


def _characters(text: str) -> str:
    words: list[str] = _CHARACTERS.findall(text)
    return " ".join(words)
