"""Finding a model's tokenizer and subwords, and the files with their rules.

If the checkpoint does not name the subwords, the symbols of the dictionary show their kind. The
file with their rules is searched for near the checkpoint and the data.
"""

import difflib
import logging
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from fairseq.registry import REGISTRIES

from fairseq_recur.errors import ConfigError
from fairseq_recur.loading.folder import listing
from fairseq_recur.text import Text, build_codec

logger = logging.getLogger(__name__)

NONE = "none"
"""Name for no tokenizer or no BPE: the text is already split into tokens."""

FILES: dict[str, dict[str, str]] = {
    "sentencepiece": {"sentencepiece_model": "*.model"},
    "subword_nmt": {"bpe_codes": "*code*"},
    "fastbpe": {"bpe_codes": "*code*"},
    "gpt2": {"gpt2_encoder_json": "encoder.json", "gpt2_vocab_bpe": "vocab.bpe"},
    "hf_byte_bpe": {"bpe_vocab": "vocab.json", "bpe_merges": "merges.txt"},
    "byte_bpe": {"sentencepiece_model_path": "*.model"},
}
"""The files that each kind of subwords needs: fairseq's option and the pattern of the name."""


@dataclass(frozen=True)
class TextSettings:
    """How text becomes tokens.

    Attributes:
        tokenizer, bpe: names in fairseq's registries, `NONE`, or None if not specified.
        options: of both, by fairseq's names, from the user and the checkpoint.
        given: names of the options that the user gave.
        places: folders to search for files, in this order.
    """

    tokenizer: str | None
    bpe: str | None
    options: Mapping[str, Any]
    given: Sequence[str]
    places: Sequence[Path]


def build_text(
    dictionary: Dictionary, settings: TextSettings, language: str, others: Sequence[str]
) -> Text:
    """Build one side's encoders.

    Args:
        dictionary: of this side.
        settings: of both sides.
        language: of this side; it chooses among files such as ``codes.en`` and ``codes.de``.
        others: languages of the other side.

    Raises:
        ConfigError: an unknown name, or a file that is missing or malformed.
        InstallationError: the library of the tokenizer or BPE is not installed.
    """
    tokenizer, bpe = chosen(dictionary, settings)
    options = dict(settings.options)
    for option, pattern in FILES.get(bpe, {}).items():
        options[option] = find_file(bpe, option, pattern, settings, language, others)
    if bpe == "subword_nmt" and columns(Path(options["bpe_codes"])) == 3:
        bpe = "fastbpe"  # codes in a format that subword-nmt does not read
    # Moses' rules for this side's language in both directions.
    options["source_lang"] = options["target_lang"] = language
    namespace = Namespace(**options)
    namespace.tokenizer = None if tokenizer == NONE else tokenizer
    namespace.bpe = None if bpe == NONE else bpe
    codec = build_codec(namespace, namespace, f"the text of {language}" if language else "the text")
    return Text(dictionary, codec, [Path(options[name]) for name in FILES.get(bpe, {})])


def chosen(dictionary: Dictionary, settings: TextSettings) -> tuple[str, str]:
    """Return the names of a side's tokenizer and BPE; ConfigError for unknown ones."""
    names = (settings.tokenizer or NONE, settings.bpe or kind_of(dictionary))
    for registry, name in zip(("tokenizer", "bpe"), names):
        known = [NONE, *REGISTRIES[registry]["registry"]]
        if name not in known:
            raise ConfigError(f"{registry}={name!r}: expected one of {', '.join(known)}")
    return names


def check_options(settings: TextSettings, dictionaries: Sequence[Dictionary]) -> None:
    """Refuse options that neither the tokenizer nor the BPE has.

    Raises:
        ConfigError: naming the option that was probably meant.
    """
    sides = [chosen(dictionary, settings) for dictionary in dictionaries]
    there: set[str] = set()
    for registry, names in zip(("tokenizer", "bpe"), zip(*sides)):
        kinds = REGISTRIES[registry]["dataclass_registry"]
        there.update(*(kinds[n].__dataclass_fields__ for n in names if n in kinds))
    there -= {"_name", "source_lang", "target_lang"}
    for option in settings.given:
        if option not in there:
            close = difflib.get_close_matches(option, there, n=1)
            hint = (
                f"choose one of {', '.join(sorted(there))}" if there else "found none; leave it out"
            )
            hint = f"did you mean {close[0]}?" if close else hint
            flag = "--" + option.replace("_", "-")
            raise ConfigError(
                f"no option {option!r} ({flag}) with tokenizer={sides[0][0]!r} "
                f"and bpe={sides[0][1]!r}; {hint}"
            )


def kind_of(dictionary: Dictionary) -> str:
    """Return the kind of subwords that a dictionary contains."""
    words = list(dictionary.symbols[dictionary.nspecial :])
    words = [word for word in words if not word.startswith("madeupword")]
    if any(word.endswith("@@") for word in words):
        return "subword_nmt"
    if any(word.startswith("\u2581") for word in words):
        return "sentencepiece" if any(len(word) > 1 for word in words) else "characters"
    if len(words) > 100 and sum(map(str.isdecimal, words)) > 0.9 * len(words):
        return "gpt2"
    return NONE


def find_file(
    bpe: str,
    option: str,
    pattern: str,
    settings: TextSettings,
    language: str,
    others: Sequence[str],
) -> str:
    """Find a file with the rules of subwords.

    A file that the user or the training named is searched for under its path, then by its name in
    the places. Otherwise the pattern is searched for.

    Raises:
        ConfigError: there is no such file, or several.
    """
    named = settings.options.get(option)
    if named:
        name = Path(str(named)).expanduser()
        in_places = [place / part for place in settings.places for part in (name, name.name)]
        for path in (name, *in_places):
            if path.is_file():
                return str(path)
        if option in settings.given:
            raise ConfigError(f"{option}={named}: no such file; give an existing one")
    for place in settings.places:
        found = of_language(candidates(place, pattern, bpe), language, others)
        if len(found) > 1:
            raise ConfigError(
                f"{place} has {', '.join(path.name for path in found)}; choose with {option}=FILE"
            )
        if found:
            logger.info("%s for %s: %s", option, language, found[0])
            return str(found[0])
    looked = "; ".join(f"{place} has {listing(place)}" for place in settings.places)
    why = "" if settings.bpe else f" (the dictionary of {language} has such subwords)"
    raise ConfigError(
        f"no {pattern} for bpe={bpe!r}{why}: {looked}. Give {option}=FILE, or "
        f"bpe={NONE!r} for text that is already split into subwords"
    )


def candidates(place: Path, pattern: str, bpe: str) -> list[Path]:
    """Return the files of a folder that match a pattern and a kind of subwords."""
    found = sorted(path for path in place.glob(pattern) if path.is_file())
    if "bpe_codes" in FILES[bpe]:
        found = [p for p in found if p.suffix not in (".json", ".pt", ".py") and columns(p)]
    return found


def of_language(files: list[Path], language: str, others: Sequence[str]) -> list[Path]:
    """Return the files for a language, or else those that are not for another language."""
    own = [path for path in files if language in path.name.split(".")]
    return own or [path for path in files if not set(others) & set(path.name.split("."))]


def columns(path: Path) -> int:
    """Return 2 for codes of subword-nmt, 3 for those of fastBPE, 0 for other files."""
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = [line for line in (file.readline(1000) for _ in range(2)) if line]
    if lines and lines[0].startswith("#version"):
        return 2
    found = {len(line.split()) for line in lines}
    return found.pop() if found in ({2}, {3}) else 0
