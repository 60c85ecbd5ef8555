"""Text to the symbols of a dictionary and back, whatever needs it."""

import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe import GPT2BPE
from omegaconf import OmegaConf

from fairseq_recur.errors import ConfigError, InstallationError
from fairseq_recur.pretrained.subwords import TextSettings, build_text
from fairseq_recur.tasks.summarization import encode_prefix
from fairseq_recur.text import Codec, Text, build_codec, codec_of, one_line, truncated


class Marked:
    """Shows its turn."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def encode(self, text: str) -> str:
        return f"{text} {self.mark}"

    def decode(self, text: str) -> str:
        return f"{text} -{self.mark}"


def test_the_order_of_a_codec() -> None:
    """Tokens, then subwords; and back, where a further detokenizer may come last."""
    codec = Codec(Marked("tokens"), Marked("subwords"), Marked("detokenized"))
    assert codec.pieces("a") == "a tokens subwords"
    assert codec.text("a") == "a -subwords -tokens -detokenized"
    assert Codec().pieces("a") == Codec().text("a") == "a"


def test_line_breaks_are_spaces() -> None:
    """Those alone: as in fairseq-interactive, other separators occur within a line."""
    text = "a\u2028b\x85c\x0bd\te"
    assert one_line(text) == Codec().pieces(text) == text
    assert Codec().pieces("\na\r\nb\rc\n\n") == "a b c"


def test_a_truncated_text_keeps_its_end() -> None:
    ids = torch.tensor([5, 6, 7, 2])
    assert [truncated(ids, n).tolist() for n in (1, 3, 4, None)] == [
        [2], [5, 6, 2], [5, 6, 7, 2], [5, 6, 7, 2],
    ]  # fmt: skip


def test_labels_are_readable() -> None:
    """An unknown token is followed by its word; the numbers of GPT-2's subwords are decoded."""
    words = Dictionary()
    for symbol in ("the", "262"):
        words.add_symbol(symbol)
    ids = torch.tensor([words.index("the"), words.unk(), words.index("262"), words.eos()])
    assert Text(words, Codec()).labels(ids, ["the", "Haus"]) == ["the", "<unk> Haus", "262", "</s>"]
    assert Text(words, Codec()).labels(ids)[1] == "<unk>"
    gpt2 = object.__new__(GPT2BPE)
    gpt2.bpe = Namespace(decode=lambda numbers: "".join(f" x{n}" for n in numbers))
    assert Text(words, Codec(bpe=gpt2)).labels(ids)[2] == "\u2581x262"


def whole(**groups: Any) -> Any:
    return OmegaConf.create({"tokenizer": None, "bpe": None, **groups})


def of_folder(folder: Path, **options: Any) -> Text:
    names = {name: options.pop(name, None) for name in ("tokenizer", "bpe")}
    return build_text(
        Dictionary(), TextSettings(**names, options=options, given=(), places=()), "", []
    )


MOSES: dict[str, Callable[[Path], Any]] = {
    "a command": lambda _: build_codec(Namespace(tokenizer="moses"), None, "it"),
    "a configuration": lambda _: codec_of(whole(tokenizer={"_name": "moses"}), "it"),
    "a detokenizer": lambda _: codec_of(None, "it", Namespace(tokenizer="moses")),
    "a prefix": lambda _: encode_prefix("a", Dictionary(), whole(tokenizer={"_name": "moses"})),
    "from_pretrained": lambda folder: of_folder(folder, tokenizer="moses", bpe="none"),
}


@pytest.mark.parametrize("build", MOSES.values(), ids=MOSES.keys())
def test_a_missing_library_is_one_error(
    build: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    said = "the library of (de)?tokenizer='moses'.* is not installed .*pip install sacremoses"
    with pytest.raises(InstallationError, match=said):
        build(tmp_path)


def spm(folder: Path) -> dict[str, Any]:
    return {"_name": "sentencepiece", "sentencepiece_model": str(folder / "x.model")}


FILES: dict[str, Callable[[Path], Any]] = {
    "a command": lambda f: build_codec(None, Namespace(bpe="sentencepiece", **spm(f)), "it"),
    "a configuration": lambda f: codec_of(whole(bpe=spm(f)), "it"),
    "a prefix": lambda f: encode_prefix("a", Dictionary(), whole(bpe=spm(f))),
}


@pytest.mark.parametrize("build", FILES.values(), ids=FILES.keys())
def test_a_missing_file_is_one_error(build: Callable[[Path], Any], tmp_path: Path) -> None:
    said = "bpe='sentencepiece', sentencepiece_model=.*x.model cannot be built .*; give the files"
    with pytest.raises(ConfigError, match=said):
        build(tmp_path)
