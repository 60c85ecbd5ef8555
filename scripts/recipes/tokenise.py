"""Tokenisers for the recipes: Moses's for languages with blanks, two for Chinese."""

import re
from collections.abc import Callable
from functools import cache

from fairseq_recur.errors import ConfigError
from recipes.clean import CHINESE, join_chinese

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
