"""Subwords: every word of a dictionary has a text."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from fairseq.data.encoders.gpt2_bpe import GPT2BPE
from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode


@pytest.fixture
def gpt2(tmp_path: Path) -> GPT2BPE:
    """The subwords of GPT-2, without any merge: bytes."""
    letters = {letter: number for number, letter in enumerate(bytes_to_unicode().values())}
    (tmp_path / "encoder.json").write_text(json.dumps(letters))
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\n")
    cfg = SimpleNamespace(
        gpt2_encoder_json=str(tmp_path / "encoder.json"),
        gpt2_vocab_bpe=str(tmp_path / "vocab.bpe"),
    )
    return GPT2BPE(cfg)


@pytest.mark.parametrize("word", ["<unk>", "<<unk>>", "<mask>", "madeupword0003", "<sep>"])
def test_words_that_are_no_subwords_of_gpt2(gpt2: GPT2BPE, word: str) -> None:
    """As in a reference with an unknown word, and in BART's dictionary."""
    subwords = gpt2.encode("Größe 7")
    assert gpt2.decode(subwords) == "Größe 7"
    assert gpt2.decode(f"{subwords} {word} {gpt2.encode(' end')}") == f"Größe 7{word} end"
