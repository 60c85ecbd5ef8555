"""What `from_pretrained` finds in folders and infers from dictionaries, without a model."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sentencepiece
import torch
from fairseq.data import Dictionary

import fairseq_recur
from fairseq_recur.errors import ConfigError
from fairseq_recur.pretrained.batches import batches, fit
from fairseq_recur.pretrained.loading import text_settings
from fairseq_recur.pretrained.model import Pretrained, as_list
from fairseq_recur.pretrained.subwords import (
    TextSettings,
    build_text,
    check_options,
    columns,
    kind_of,
)
from fairseq_recur.text import Text

CODES = "#version: 0.2\nt h\nth e</w>\n"
LINES = ["the house is small .", "the bank 's door is open ."]


def words(*symbols: str) -> Dictionary:
    dictionary = Dictionary()
    for symbol in symbols:
        dictionary.add_symbol(symbol)
    return dictionary


@pytest.mark.parametrize(
    ("symbols", "kind"),
    [
        (["the", "house", "@"], "none"),
        (["the", "hou@@", "se"], "subword_nmt"),
        (["\u2581the", "hou", "se"], "sentencepiece"),
        (["a", "b", "\u2581", "c"], "characters"),
        ([*map(str, range(500)), "madeupword0000"], "gpt2"),
        (["1", "2"], "none"),
        ([], "none"),
    ],
)
def test_kind_of_subwords(symbols: list[str], kind: str) -> None:
    assert kind_of(words(*symbols)) == kind


def settings(*places: Path, **options: Any) -> TextSettings:
    names = {name: options.pop(name, None) for name in ("tokenizer", "bpe")}
    return TextSettings(**names, options=options, given=tuple(options), places=places)


SUBWORDS = words("th@@", "the", "e@@", "h@@", "o@@", "u@@", "s@@", "e", "i@@", "s")


def test_codes_are_found(tmp_path: Path) -> None:
    """Files are found in the order of places, for the side's language, and known by their form."""
    near, far = tmp_path / "near", tmp_path / "far"
    near.mkdir(), far.mkdir()
    (far / "codes").write_text(CODES)
    (near / "encoder.json").write_text('{"a": 1}')
    text = build_text(SUBWORDS, settings(near, far), "en", ["de"])
    assert text.pieces("the house") == "the h@@ o@@ u@@ s@@ e"
    assert text.decode(text.encode("the house is")) == "the house is"
    (near / "codes.en").write_text("#version: 0.2\no u\n")
    (near / "codes.de").write_text("#version: 0.2\nh o\n")
    (near / "codes").write_text(CODES)  # of both sides, where there is none of a side
    for language, other, expected in (
        ("en", "de", "h@@ ou@@ s@@ e"),
        ("de", "en", "ho@@ u@@ s@@ e"),
    ):
        found = build_text(SUBWORDS, settings(near, far), language, [other])
        assert found.pieces("house") == expected
    given = settings(near, far, bpe_codes=str(far / "codes"))
    assert build_text(SUBWORDS, given, "en", ["de"]).pieces("the") == "the"
    moved = TextSettings(None, "subword_nmt", {"bpe_codes": "/gone/codes"}, (), (far,))
    assert build_text(SUBWORDS, moved, "en", []).pieces("the") == "the"


def test_forms_of_codes(tmp_path: Path) -> None:
    for text, number in ((CODES, 2), ("t h\n", 2), ("t h 312\nth e 200\n", 3), ("", 0),
                         ("a b c d\n", 0)):  # fmt: skip
        (tmp_path / "codes").write_text(text)
        assert columns(tmp_path / "codes") == number


def test_codes_of_fastbpe_are_not_given_to_subword_nmt(tmp_path: Path) -> None:
    """At which it would end the process."""
    (tmp_path / "codes").write_text("t h 312\nth e 200\n")
    with pytest.raises(ImportError, match="pip install fastBPE"):
        build_text(SUBWORDS, settings(tmp_path), "en", [])


@pytest.mark.parametrize(
    ("bpe", "files"),
    [
        ("subword_nmt", {"codes": "#version: x\n"}),
        ("subword_nmt", {"codes": "#version: 0.2\na b\na b c d\n"}),
        ("sentencepiece", {"spm.model": "not a model"}),
        ("gpt2", {"encoder.json": "{", "vocab.bpe": ""}),
        ("gpt2", {"encoder.json": "[]", "vocab.bpe": "#version\na b\n"}),
    ],
)
def test_malformed_files_are_one_error(tmp_path: Path, bpe: str, files: dict[str, str]) -> None:
    """Even those for which subword-nmt would end the process."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=f"bpe='{bpe}', .*{tmp_path}.* cannot be built"):
        build_text(SUBWORDS, settings(tmp_path, bpe=bpe), "en", [])


def test_a_checkpoint_cannot_ask_for_a_download_or_an_option(tmp_path: Path) -> None:
    """Its separator would be a word of subword-nmt's command line."""
    saved = {"bpe": {"_name": "bert"}, "tokenizer": None}
    with pytest.raises(ConfigError, match="asks for bpe='bert', which downloads"):
        text_settings(saved, None, None, {}, [tmp_path])
    assert text_settings(saved, None, "bert", {}, [tmp_path]).bpe == "bert"
    (tmp_path / "codes").write_text(CODES)
    separator = TextSettings(None, "subword_nmt", {"bpe_separator": "--help"}, (), (tmp_path,))
    with pytest.raises(ConfigError, match="cannot be built"):
        build_text(SUBWORDS, separator, "en", [])


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ([], {}, r"no \*code\* for bpe='subword_nmt' \(the dictionary of en .*bpe='none'"),
        (["a.codes", "b.codes"], {}, "has a.codes, b.codes; choose with bpe_codes"),
        (["codes"], {"bpe_codes": "other"}, "bpe_codes=other: no such file"),
        (["codes"], {"bpe": "sentencepiece"}, r"no \*.model for bpe='sentencepiece'"),
        (["codes"], {"bpe": "sentencepice"}, "bpe='sentencepice': expected one of none"),
        (["codes"], {"tokenizer": "mosses"}, "tokenizer='mosses'"),
    ],
)
def test_codes_that_are_missing(
    tmp_path: Path, files: list[str], options: dict[str, Any], message: str
) -> None:
    for name in files:
        (tmp_path / name).write_text(CODES)
    with pytest.raises(ConfigError, match=message):
        build_text(SUBWORDS, settings(tmp_path, **options), "en", ["de"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bpe_code": "codes"}, "did you mean bpe_codes"),
        ({"moses_no_escape": True}, "no option 'moses_no_escape' .*with tokenizer='none'"),
        ({"bpe": "none", "bpe_codes": "codes"}, "no option 'bpe_codes' .*found none"),
    ],
)
def test_options_without_effect(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_options(settings(**options), [SUBWORDS, SUBWORDS])
    check_options(settings(tokenizer="moses", moses_no_escape=True), [SUBWORDS, words("a")])


def side(tmp_path: Path, symbols: list[str], **options: Any) -> Text:
    return build_text(words(*symbols), settings(tmp_path, **options), "en", [])


def test_each_kind_there_and_back(tmp_path: Path) -> None:
    """Sentencepiece, characters and Moses with subwords: the text comes back."""
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in LINES * 20))
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "spm"), vocab_size=40,
        minloglevel=2, hard_vocab_limit=False,
    )  # fmt: skip
    spm = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))
    (tmp_path / "codes").write_text(CODES)
    raw = "The bank's door & the house."
    sides = {
        LINES[0]: side(tmp_path, [spm.id_to_piece(i) for i in range(3, spm.get_piece_size())]),
        LINES[1]: side(tmp_path, [*"thebouskdrinpaml.'", "\u2581"]),
        raw: side(
            tmp_path,
            "T@@ h@@ e b@@ a@@ n@@ k &apos;@@ s d@@ o@@ o@@ r &amp; the u@@ s@@ . h@@ & ; "
            "p@@ m@@ ;@@ a@@ &@@".split()
            + ["&apos;s", "&amp;", ".", "e", "r", "k"],
            tokenizer="moses",
        ),
    }
    for text, encoder in sides.items():
        pieces = encoder.pieces(text).split()
        assert len(pieces) > len(text.split())
        ids = encoder.dictionary.encode_line(" ".join(pieces), add_if_not_exist=True)
        assert encoder.decode(ids) == text
        broken = text.replace(" ", "\n", 1)
        assert encoder.pieces(broken) == encoder.pieces(text)


def test_plugin_stays_light() -> None:
    """Only `from_pretrained` imports the interface; a wrong name is an AttributeError."""
    source = Path(fairseq_recur.__file__).read_text()
    before, after = source.split("def __getattr__")
    assert "pretrained" not in before.split("if TYPE_CHECKING")[0].split('"""')[2]
    assert 'import_module("fairseq_recur.pretrained").from_pretrained' in after
    with pytest.raises(AttributeError, match="from_pretraind"):
        getattr(fairseq_recur, "from_pretraind")  # noqa: B009 - a typing error


@pytest.mark.parametrize(
    "given, said",
    [(None, "found a NoneType"), (5, "found a int"), (["a", 5], "1 is a int"), (b"a", "a int")],
)
def test_what_is_no_text_is_refused(given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^texts: expected a str, or a list of them.* {said}$"):
        as_list("texts", given)
    assert as_list("texts", "ab") == ["ab"] and as_list("texts", ("a", "b")) == ["a", "b"]


def test_a_model_of_translation_is_told_of_translate_in_python_and_on_the_command_line() -> None:
    model = SimpleNamespace(task=SimpleNamespace(cfg=None))
    with pytest.raises(ConfigError) as refused:
        Pretrained.summarize(model, "a")
    for use in ("use translate(texts, truncate=True, ", "(fairseq-recur translate --min-len N "):
        assert use in str(refused.value)


def test_limits_have_the_form_of_the_command_line_and_of_python() -> None:
    long = [torch.zeros(5)]
    with pytest.raises(ConfigError, match="shorten them, or in Python give truncate=True$"):
        fit("texts", long, 4, False)
    with pytest.raises(ConfigError, match="shorten them$"):
        fit("texts", long, 4, None)
    for value in (0, 10**25):
        with pytest.raises(ConfigError, match=f"^max_tokens={value}: expected at least 1 and at m"):
            next(batches(None, long, None, value, None))
