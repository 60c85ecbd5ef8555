"""Small models and tokenizers in Hugging Face's format, built here without a download."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_recur.cli import main

TEXT = [
    "the quick brown fox jumps over the lazy dog",
    "a model reads a sentence and writes a summary",
    "recurrent networks remember what they have read",
    "the decoder attends to every word of the source",
]


def transformers() -> ModuleType:
    """Import the library, or skip the test; an unsuitable torchaudio would break the import."""
    if "transformers" not in sys.modules:
        sys.modules.setdefault("torchaudio", None)  # type: ignore[arg-type]
    return pytest.importorskip("transformers")


def train_sentencepiece(folder: Path) -> int:
    """Write a T5-like spiece.model; return its number of pieces."""
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT * 20), model_prefix=str(folder / "spiece"), vocab_size=50,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, model_type="unigram", minloglevel=2,
        hard_vocab_limit=False,
    )  # fmt: skip
    (folder / "spiece.vocab").unlink()
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    return processor.get_piece_size()


def save_byte_bpe(folder: Path, special: list[str]) -> dict[str, int]:
    """Write vocab.json and merges.txt with the special tokens first; return the former."""
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(TEXT * 20, vocab_size=320, special_tokens=special)
    tokenizer.save_model(str(folder))
    found: dict[str, int] = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    return found


def train_byte_bpe(folder: Path) -> int:
    """Write a BART-like vocab.json and merges.txt; return the number of tokens."""
    vocabulary = save_byte_bpe(folder, ["<s>", "<pad>", "</s>", "<unk>"])
    vocabulary["<mask>"] = len(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    return len(vocabulary)


def train_codet5_bpe(folder: Path) -> int:
    """Write files like those of Salesforce/codet5-small; return the number of tokens.

    Its vocab.json begins with <pad>, <s>, </s>, <unk> and <mask>. added_tokens.json has the
    sentinels, the first one last.
    """
    size = len(save_byte_bpe(folder, ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]))
    added = {f"<extra_id_{number}>": size + 9 - number for number in range(10)}
    (folder / "added_tokens.json").write_text(json.dumps(added), encoding="utf-8")
    return size + len(added)


T5_KINDS: dict[str, dict[str, Any]] = {
    "v1.0": {"d_model": 16, "d_kv": 8, "num_heads": 2, "feed_forward_proj": "relu"},
    "v1.1": {
        "d_model": 16, "d_kv": 5, "num_heads": 3, "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False, "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 7,
    },
    "mt5": {"d_model": 16, "d_kv": 4, "num_heads": 2, "feed_forward_proj": "gated-gelu"},
    "uneven": {
        "d_model": 16, "d_kv": 8, "num_heads": 2, "feed_forward_proj": "gelu_new",
        "num_decoder_layers": 3,
    },
    "codet5": {
        "d_model": 16, "d_kv": 8, "num_heads": 2, "feed_forward_proj": "relu", "eos_token_id": 2,
    },
}  # fmt: skip
"""Shapes of T5: tied or not, with heads that add up to the width or do not."""
KINDS = [*T5_KINDS, "bart"]


def save_t5(folder: Path, kind: str, spare: int = 8, **changes: Any) -> nn.Module:
    """Write a T5 with random weights and its tokenizer; return the model as the library reads it.

    Its sentences end after some words, like those of trained models.

    Args:
        spare: rows beyond the tokenizer's pieces and its ten sentinels; a CodeT5 has none.
    """
    library = transformers()
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "codet5":
        size = train_codet5_bpe(folder)
    else:
        size = train_sentencepiece(folder) + 10 + spare
        (folder / "tokenizer_config.json").write_text(json.dumps({"extra_ids": 10}))
    names = ("MT5Config", "MT5ForConditionalGeneration")
    if kind != "mt5":
        names = ("T5Config", "T5ForConditionalGeneration")
    config_class, model_class = (getattr(library, name) for name in names)
    config = config_class(
        **{"vocab_size": size, "d_ff": 24, "num_layers": 2, **T5_KINDS[kind], **changes}
    )
    model = model_class(config)
    randomise(model)
    with torch.no_grad():  # a channel that is the same everywhere speaks for </s>
        model.shared.weight[:, 0] = 8.0
        model.decoder.final_layer_norm.weight[0] = 1.0
        if kind in ("v1.1", "mt5"):
            model.lm_head.weight = nn.Parameter(0.5 * torch.randn(size, config.d_model))
            model.lm_head.weight[:, 0] = 0.0
            model.lm_head.weight[1, 0] = 2.0
        else:
            model.shared.weight[config.eos_token_id, 0] = 11.0
    model.save_pretrained(folder)
    return model_class.from_pretrained(folder).eval()


def save_bart(folder: Path, **changes: Any) -> nn.Module:
    """Write a BART in the way in which `save_t5` writes a T5."""
    library = transformers()
    folder.mkdir(parents=True, exist_ok=True)
    size = train_byte_bpe(folder)
    sizes = {
        "d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 2,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 20,
        "max_position_embeddings": 80, "init_std": 0.4,
    }  # fmt: skip
    config = library.BartConfig(**{"vocab_size": size, **sizes, **changes})
    model = library.BartForConditionalGeneration(config)
    randomise(model)
    with torch.no_grad():  # a bias for </s>
        model.model.decoder.layers[-1].final_layer_norm.bias += 3 * model.model.shared.weight[2]
    model.save_pretrained(folder)
    return library.BartForConditionalGeneration.from_pretrained(folder).eval()


def randomise(model: nn.Module) -> None:
    """Move norms and biases from their neutral values, so that a lost one is noticed."""
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            nn.init.normal_(parameter, mean=float(name.endswith("weight")), std=0.2)


def state_of(folder: Path) -> dict[str, Tensor]:
    """Read a folder's model.safetensors."""
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def converted(folder: Path) -> Path:
    return folder.with_name(folder.name + "-fairseq")


def convert(source: Path, target: Path, *flags: Any) -> None:
    assert main(["convert", "--input", str(source), "--output", str(target), *map(str, flags)]) == 0


def refused(capsys: pytest.CaptureFixture[str], source: Path, target: Path, *flags: Any) -> str:
    """Return the one message of a conversion that fails and writes nothing."""
    before = sorted(target.parent.iterdir())
    capsys.readouterr()
    code = main(["convert", "--input", str(source), "--output", str(target), *map(str, flags)])
    message = capsys.readouterr().err
    assert code == 2 and message.count("fairseq-recur: error:") == 1
    assert sorted(target.parent.iterdir()) == before
    return message


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
