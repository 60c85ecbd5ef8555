"""``fairseq-recur convert``: round trips, text, training from what it writes."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE, SentencepieceConfig

from fairseq_recur.conversion import bart, huggingface, t5
from fairseq_recur.conversion.huggingface import TOKENIZER_FILES
from fairseq_recur.conversion.settings import Settings
from fairseq_recur.experiments.settings import arguments
from fairseq_recur.loading.states import read_state
from tests.conftest import TRAIN
from tests.huggingface import (
    KINDS,
    TEXT,
    change_config,
    convert,
    converted,
    save_t5,
    state_of,
    transformers,
)
from tests.running import USER_DIR, generate, hypotheses, saved_weights, update_losses

Cli = Callable[..., str]
Folders = Callable[[str], Path]
LINES = [*TEXT, "unseen: Ωmega and 42!"]


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back_is_the_same(folders: Folders, kind: str, tmp_path: Path) -> None:
    """Every weight to the last bit, under its name; the settings and the tokenizer too.

    Without --like the library reads the result, with T5's words in T5's order, which is not that
    of CodeT5.
    """
    folder, model = folders(kind), converted(folders(kind)) / "model.pt"
    back = tmp_path / "back"
    convert(model, back, "--like", folder)
    before, after = state_of(folder), state_of(back)
    assert before.keys() - {"final_logits_bias"} == after.keys() - {"final_logits_bias"}
    for name, weight in before.items():
        assert torch.equal(weight, after[name]) and weight.dtype == after[name].dtype, name
    settings = [json.loads((f / "config.json").read_text()) for f in (folder, back)]
    assert settings[0].keys() <= settings[1].keys()
    different = {k for k in settings[0] if settings[0][k] != settings[1][k]}
    assert different <= {"tie_word_embeddings"}
    for name in TOKENIZER_FILES:
        if (folder / name).exists():
            assert (folder / name).read_bytes() == (back / name).read_bytes()
    if kind == "codet5":
        return
    convert(model, tmp_path / "alone")
    library = transformers().AutoModelForSeq2SeqLM
    eos, start = (2, 2) if kind == "bart" else (1, 0)
    source, target = torch.tensor([[5, 6, 7, 8, eos]]), torch.tensor([[start, 9, 10]])
    models = [library.from_pretrained(path).eval() for path in (folder, tmp_path / "alone")]
    logits = [m(input_ids=source, decoder_input_ids=target).logits for m in models]
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=1e-6)
    # The special symbols are in the configuration, so that training and search need no others.
    loss = models[1](input_ids=source, labels=torch.tensor([[9, 10, eos]])).loss
    assert torch.isfinite(loss)
    if kind != "uneven":  # of stacks of different heights, `generate` keeps too few layers
        assert models[1].generate(source, max_new_tokens=3, do_sample=False)[0, 0] == start


def test_half_precision_stays_half(folders: Folders, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    folder = shutil.copytree(folders("v1.0"), tmp_path / "half")
    half = {name: weight.bfloat16() for name, weight in state_of(folder).items()}
    save_file(half, folder / "model.safetensors")
    convert(folder, tmp_path / "fairseq")
    convert(tmp_path / "fairseq" / "model.pt", tmp_path / "back", "--like", folder)
    back = state_of(tmp_path / "back")
    assert all(torch.equal(weight, back[name]) for name, weight in half.items())


def test_words_without_a_row_to_spare(tmp_path: Path) -> None:
    """fairseq's <s> is then a copy of the padding's row, and is dropped on the way back."""
    save_t5(tmp_path / "full", "v1.1", spare=0)
    convert(tmp_path / "full", tmp_path / "fairseq")
    state = saved_weights(tmp_path / "fairseq" / "model.pt")
    table, output = (state[f"decoder.{n}.weight"] for n in ("embed_tokens", "output_projection"))
    assert torch.equal(table[0], table[1]) and torch.equal(output[0], output[1])
    before = state_of(tmp_path / "full")
    assert len(table) == len(before["shared.weight"]) + 1
    trained = read_state(tmp_path / "fairseq" / "model.pt")
    for name in ("encoder.embed_tokens", "decoder.embed_tokens", "decoder.output_projection"):
        trained["model"][f"{name}.weight"] = trained["model"][f"{name}.weight"].clone()
        trained["model"][f"{name}.weight"][0] += 1.0  # its own since it was learnt
    torch.save(trained, tmp_path / "trained.pt")
    convert(tmp_path / "trained.pt", tmp_path / "back", "--like", tmp_path / "full")
    after = state_of(tmp_path / "back")
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())


@pytest.mark.parametrize("form", ["shards", "bin", "bin shards"])
def test_other_files_of_weights(folders: Folders, form: str, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    folder = tmp_path / "other"
    shutil.copytree(folders("bart"), folder)
    weights = state_of(folder)
    (folder / "model.safetensors").unlink()
    name = "pytorch_model.bin" if "bin" in form else "model.safetensors"
    save = torch.save if "bin" in form else save_file
    names, places = sorted(weights), {}
    for i in range(2 if "shards" in form else 1):
        part = names[i::2] if "shards" in form else names
        file = name.replace(".", f"-{i}.") if "shards" in form else name
        save({n: weights[n] for n in part}, folder / file)
        places.update(dict.fromkeys(part, file))
    if "shards" in form:
        (folder / f"{name}.index.json").write_text(json.dumps({"weight_map": places}))
    convert(folder, tmp_path / "fairseq")
    expected = saved_weights(converted(folders("bart")) / "model.pt")
    found = saved_weights(tmp_path / "fairseq" / "model.pt")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[n], expected[n]) for n in found)
    if "shards" in form:
        (folder / name.replace(".", "-1.")).unlink()


def test_older_bart_files(folders: Folders, tmp_path: Path) -> None:
    """Names without "model.", versions, no row for the mask that the tokenizer has."""
    from safetensors.torch import save_file

    folder = tmp_path / "old"
    shutil.copytree(folders("bart"), folder)
    weights = {n.removeprefix("model."): w for n, w in state_of(folder).items()}
    rows = len(weights["shared.weight"]) - 1
    weights["shared.weight"] = weights["shared.weight"][:rows].clone()
    weights["encoder.version"] = torch.ones(1)
    weights.pop("final_logits_bias", None)
    save_file(weights, folder / "model.safetensors")
    change_config(folder, vocab_size=rows, normalize_before=False, normalize_embedding=True)
    convert(folder, tmp_path / "fairseq")
    found = saved_weights(tmp_path / "fairseq" / "model.pt")
    expected = saved_weights(converted(folders("bart")) / "model.pt")
    for name, weight in expected.items():
        assert torch.equal(found[name], weight[: len(found[name])]), name
    assert len(found["encoder.embed_tokens.weight"]) == rows
    assert "<mask>" not in (tmp_path / "fairseq" / "dict.source.txt").read_text()


def test_text_becomes_the_same_rows(folders: Folders) -> None:
    """fairseq's subwords and dictionary, compared with the tokenizers of the folders."""
    folder = folders("v1.0")
    words, encode, target = encoder_of(folder)
    tokenizer = transformers().T5Tokenizer.from_pretrained(folder, extra_ids=10, legacy=False)
    rows = t5.vocabulary(folder, Settings(huggingface.read_object(folder / "config.json"))).rows
    for line in LINES:
        ours = words.encode_line(encode(line), add_if_not_exist=False).tolist()
        assert [rows[i] for i in ours] == tokenizer(line).input_ids
        assert ours[-1] == words.eos() and len(ours) > 5
    assert (target / "dict.source.txt").read_text() == (target / "dict.target.txt").read_text()
    assert words.index("<extra_id_0>") != words.unk() and words.index("<extra_id_9>") != words.unk()

    # The library's CodeT5 reads a text as <s> text </s>.
    folder = folders("codet5")
    words, encode, target = encoder_of(folder)
    rows = t5.vocabulary(folder, Settings(huggingface.read_object(folder / "config.json"))).rows
    assert rows[:5] == [1, 0, 2, 3, 4] and sorted(rows) == list(range(len(words)))
    tokenizer = byte_tokenizer("RobertaTokenizer", folder)
    decode = get_encoder(str(target / "encoder.json"), str(target / "vocab.bpe")).decode
    for line in [*LINES, "if (a->b[0] != '\\0')\treturn  NULL;"]:
        ours = words.encode_line(f"<s> {encode(line)}", add_if_not_exist=False).tolist()
        assert [rows[i] for i in ours] == tokenizer(line).input_ids
        assert decode([int(word) for word in encode(line).split()]) == line
    assert words[4] == "<mask>" and decode([int(words[len(words) - 1])]) == "<extra_id_0>"

    folder = folders("bart")
    words, encode, target = encoder_of(folder)
    tokenizer = byte_tokenizer("BartTokenizer", folder)
    decode = get_encoder(str(target / "encoder.json"), str(target / "vocab.bpe")).decode
    for line in LINES:
        ours = words.encode_line(encode(line), add_if_not_exist=False).tolist()
        assert [0, *ours] == tokenizer(line).input_ids
        assert decode([int(word) for word in encode(line).split()]) == line
    assert words[len(words) - 1] == "<mask>"
    assert words[4] == str(json.loads((target / "encoder.json").read_text())["!"])


def byte_tokenizer(name: str, folder: Path) -> Callable[..., Any]:
    """The library's tokenizer from vocab.json and merges.txt."""
    lines = (folder / "merges.txt").read_text().split("\n")[1:-1]
    made: Callable[..., Any] = getattr(transformers(), name)(
        vocab=json.loads((folder / "vocab.json").read_text()),
        merges=[tuple(line.split()) for line in lines],
    )
    return made


def encoder_of(folder: Path) -> tuple[Dictionary, Callable[[str], str], Path]:
    """The dictionary and subwords that a folder was converted to, and where they are."""
    target = converted(folder)
    words = Dictionary.load(str(target / "dict.source.txt"))
    if (target / "encoder.json").exists():
        encoder = get_encoder(str(target / "encoder.json"), str(target / "vocab.bpe"))
        return words, lambda line: " ".join(map(str, encoder.encode(line))), target
    settings = SentencepieceConfig(sentencepiece_model=str(target / "spiece.model"))
    return words, SentencepieceBPE(settings).encode, target


def test_rows_from_a_tokenizer_json(folders: Folders, tmp_path: Path) -> None:
    """The library's current format, instead of spiece.model or of vocab.json and merges.txt."""
    names = {"v1.0": "T5Tokenizer", "bart": "BartTokenizer", "codet5": "RobertaTokenizer"}
    for kind, name in names.items():
        folder = tmp_path / kind
        shutil.copytree(folders(kind), folder)
        tokenizer_class = getattr(transformers(), name)
        settings = {"extra_ids": 10} if kind == "v1.0" else {}
        tokenizer_class.from_pretrained(folder, **settings).save_pretrained(folder)
        assert (folder / "tokenizer.json").exists()
        for old in ("spiece.model", "vocab.json", "merges.txt", "added_tokens.json"):
            (folder / old).unlink(missing_ok=True)
        convert(folder, tmp_path / f"{kind}-fairseq")
        for file in ("dict.source.txt", "vocab.bpe", "encoder.json")[: 1 if kind == "v1.0" else 3]:
            found, expected = (converted(f) / file for f in (folder, folders(kind)))
            assert found.read_text() == expected.read_text()


def prepare(cli: Cli, folder: Path, data: Path, bpe: Callable[[str], str]) -> None:
    """A corpus in a model's words: fairseq-preprocess with the dictionaries of convert."""
    for split in ("train", "valid", "test"):
        for side in ("source", "target"):
            text = "".join(bpe(line) + "\n" for line in TEXT * 4)
            (data / f"{split}.{side}").write_text(text, encoding="utf-8")
    cli(
        "preprocess", "-s", "source", "-t", "target", "--trainpref", data / "train",
        "--validpref", data / "valid", "--testpref", data / "test", "--destdir", data / "bin",
        "--srcdict", folder / "dict.source.txt", "--tgtdict", folder / "dict.target.txt",
    )  # fmt: skip


@pytest.mark.parametrize(
    "kind", ["v1.0", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("v1.1", "bart"))]
)
def test_training_and_generation(folders: Folders, kind: str, cli: Cli, tmp_path: Path) -> None:
    """Generate with the checkpoint, fine-tune it, convert it back.

    One T5 and the BART are restored as well; the other T5 starts a model with parts.
    """
    folder = folders(kind)
    _, encode, target = encoder_of(folder)
    prepare(cli, target, tmp_path, encode)
    data, model = tmp_path / "bin", target / "model.pt"
    assert sorted(hypotheses(generate(data, model))) == list(range(16))
    module, config = bart if kind == "bart" else t5, huggingface.read_object(folder / "config.json")
    options = arguments(module.model_options(Settings(config)))
    common = [data, "--user-dir", USER_DIR, "--arch", module.ARCH, *options, *TRAIN]
    common += ["--max-update", 2, "--disable-validation"]
    log = cli(
        "train", *common, "--finetune-from-model", model, "--no-epoch-checkpoints",
        "--save-dir", tmp_path / "tuned",
    )  # fmt: skip
    assert list(update_losses(log)) == [1, 2] and "initialised fresh" not in log
    convert(tmp_path / "tuned" / "checkpoint_last.pt", tmp_path / "back", "--like", folder)
    moved, before = state_of(tmp_path / "back"), state_of(folder)
    assert any(not torch.equal(moved[name], before[name]) for name in before)
    common += ["--no-save", "--save-dir", tmp_path / "other"]
    if kind == "v1.1":
        parts = ["--encoder-self-attention", "rsa", "--finetune-from-model", model]
        log = cli("train", *common, *parts)
        assert "initialised fresh" in log and "encoder.layers.0.self_attn.mixture" in log
    else:
        cli("train", *common, "--restore-file", model)
