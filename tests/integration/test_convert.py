"""``fairseq-recur convert``: round trips, text, training from what it writes, and bad input."""

import json
import os
import shutil
from pathlib import Path
from typing import Any, Callable, Dict, List

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE, SentencepieceConfig

from fairseq_recur.cli import main
from fairseq_recur.cli.average import load
from tests.conftest import TRAIN
from tests.huggingface import T5_KINDS, TEXT, save_bart, save_t5, state_of, transformers
from tests.running import USER_DIR, generate, hypotheses, saved_weights, update_losses

Cli = Callable[..., str]
KINDS = [*T5_KINDS, "bart"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder with a model of each kind, and beside it NAME-fairseq, what it became."""
    root = tmp_path_factory.mktemp("convert")

    def make(kind: str) -> Path:
        folder = root / kind
        if not folder.exists():
            torch.manual_seed(2)
            save_bart(folder) if kind == "bart" else save_t5(folder, kind)
            convert(folder, converted(folder))
        return folder

    return make


def converted(folder: Path) -> Path:
    return folder.with_name(folder.name + "-fairseq")


def convert(source: Path, target: Path, *flags: Any) -> None:
    assert main(["convert", "--input", str(source), "--output", str(target), *map(str, flags)]) == 0


def refused(
    capsys: pytest.CaptureFixture[str], source: Path, target: Path, *flags: Any
) -> str:
    """The one message of a conversion that fails; nothing may be written."""
    before = sorted(target.parent.iterdir())
    capsys.readouterr()
    code = main(["convert", "--input", str(source), "--output", str(target), *map(str, flags)])
    message = capsys.readouterr().err
    assert code == 2 and message.count("fairseq-recur: error:") == 1
    assert sorted(target.parent.iterdir()) == before
    return message


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back_is_the_same(
    folders: Callable[[str], Path], kind: str, tmp_path: Path
) -> None:
    """Every weight to the last bit, under its name; the settings and the tokenizer too."""
    folder = folders(kind)
    convert(converted(folder) / "model.pt", tmp_path / "back", "--like", folder)
    before, after = state_of(folder), state_of(tmp_path / "back")
    assert before.keys() - {"final_logits_bias"} == after.keys() - {"final_logits_bias"}
    for name, weight in before.items():
        assert torch.equal(weight, after[name]) and weight.dtype == after[name].dtype, name
    settings = [json.loads((f / "config.json").read_text()) for f in (folder, tmp_path / "back")]
    assert settings[0].keys() <= settings[1].keys()
    different = {k for k in settings[0] if settings[0][k] != settings[1][k]}
    assert different <= {"tie_word_embeddings"}
    for name in ("spiece.model", "vocab.json", "merges.txt", "tokenizer_config.json"):
        if (folder / name).exists():
            assert (folder / name).read_bytes() == (tmp_path / "back" / name).read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_back_is_read_by_the_library(
    folders: Callable[[str], Path], kind: str, tmp_path: Path
) -> None:
    """Without the folder it came from, T5's words are in the order that T5 has them in."""
    folder = folders(kind)
    convert(converted(folder) / "model.pt", tmp_path / "back")
    library = transformers().AutoModelForSeq2SeqLM
    source = torch.tensor([[5, 6, 7, 8, 1 if kind != "bart" else 2]])
    target = torch.tensor([[0 if kind != "bart" else 2, 9, 10]])
    logits = [
        library.from_pretrained(path).eval()(input_ids=source, decoder_input_ids=target).logits
        for path in (folder, tmp_path / "back")
    ]
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=1e-6)


def test_half_precision_stays_half(folders: Callable[[str], Path], tmp_path: Path) -> None:
    from safetensors.torch import save_file

    folder = tmp_path / "half"
    shutil.copytree(folders("v1.0"), folder)
    half = {name: weight.bfloat16() for name, weight in state_of(folder).items()}
    save_file(half, folder / "model.safetensors")
    convert(folder, tmp_path / "fairseq")
    convert(tmp_path / "fairseq" / "model.pt", tmp_path / "back", "--like", folder)
    back = state_of(tmp_path / "back")
    assert all(torch.equal(weight, back[name]) for name, weight in half.items())


def test_words_without_a_row_to_spare(tmp_path: Path) -> None:
    """fairseq's <s> is a copy of the padding's row then, and gone on the way back."""
    save_t5(tmp_path / "full", "v1.1", spare=0)
    convert(tmp_path / "full", tmp_path / "fairseq")
    state = saved_weights(tmp_path / "fairseq" / "model.pt")
    table, output = (state[f"decoder.{n}.weight"] for n in ("embed_tokens", "output_projection"))
    assert torch.equal(table[0], table[1]) and torch.equal(output[0], output[1])
    before = state_of(tmp_path / "full")
    assert len(table) == len(before["shared.weight"]) + 1
    trained = load(tmp_path / "fairseq" / "model.pt")
    for name in ("encoder.embed_tokens", "decoder.embed_tokens", "decoder.output_projection"):
        trained["model"][f"{name}.weight"] = trained["model"][f"{name}.weight"].clone()
        trained["model"][f"{name}.weight"][0] += 1.0  # its own since it was learnt
    torch.save(trained, tmp_path / "trained.pt")
    convert(tmp_path / "trained.pt", tmp_path / "back", "--like", tmp_path / "full")
    after = state_of(tmp_path / "back")
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())


@pytest.mark.parametrize("form", ["shards", "bin", "bin shards"])
def test_other_files_of_weights(
    folders: Callable[[str], Path], form: str, tmp_path: Path
) -> None:
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


def test_older_bart_files(folders: Callable[[str], Path], tmp_path: Path) -> None:
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


def test_text_becomes_the_same_rows_with_t5(folders: Callable[[str], Path]) -> None:
    """fairseq's SentencePiece and dictionary, against the tokenizer the folder came with."""
    folder = folders("v1.0")
    target = converted(folder)
    words = Dictionary.load(str(target / "dict.source.txt"))
    encoder = SentencepieceBPE(
        SentencepieceConfig(sentencepiece_model=str(target / "spiece.model"))
    )
    tokenizer = transformers().T5Tokenizer.from_pretrained(folder, extra_ids=10, legacy=False)
    rows = t5_rows(folder)
    for line in [*TEXT, "unseen: Ωmega and 42!"]:
        ours = words.encode_line(encoder.encode(line), add_if_not_exist=False).tolist()
        assert [rows[i] for i in ours] == tokenizer(line).input_ids
        assert ours[-1] == words.eos() and len(ours) > 5
    assert (target / "dict.source.txt").read_text() == (target / "dict.target.txt").read_text()
    assert words.index("<extra_id_0>") != words.unk() and words.index("<extra_id_9>") != words.unk()


def t5_rows(folder: Path) -> List[int]:
    from fairseq_recur.conversion import t5
    from fairseq_recur.conversion.huggingface import read_json

    return t5.vocabulary(folder, read_json(folder / "config.json")).rows


def test_text_becomes_the_same_rows_with_bart(folders: Callable[[str], Path]) -> None:
    folder = folders("bart")
    target = converted(folder)
    words = Dictionary.load(str(target / "dict.source.txt"))
    encoder = get_encoder(str(target / "encoder.json"), str(target / "vocab.bpe"))
    library = transformers()
    tokenizer = library.BartTokenizer(
        vocab=json.loads((folder / "vocab.json").read_text()),
        merges=[tuple(line.split()) for line in (folder / "merges.txt").read_text().split("\n")[1:-1]],
    )
    for line in [*TEXT, "unseen: Ωmega and 42!"]:
        text = " ".join(map(str, encoder.encode(line)))
        ours = words.encode_line(text, add_if_not_exist=False).tolist()
        assert [0, *ours] == tokenizer(line).input_ids
        assert encoder.decode([int(word) for word in text.split()]) == line
    assert words[len(words) - 1] == "<mask>"
    assert words[4] == str(json.loads((target / "encoder.json").read_text())["!"])


def test_rows_from_a_tokenizer_json(folders: Callable[[str], Path], tmp_path: Path) -> None:
    """What the library writes today, instead of spiece.model and of vocab.json and merges.txt."""
    for kind, name in (("v1.0", "T5Tokenizer"), ("bart", "BartTokenizer")):
        folder = tmp_path / kind
        shutil.copytree(folders(kind), folder)
        tokenizer_class = getattr(transformers(), name)
        settings = {"extra_ids": 10} if kind == "v1.0" else {}
        tokenizer_class.from_pretrained(folder, **settings).save_pretrained(folder)
        assert (folder / "tokenizer.json").exists()
        for old in ("spiece.model", "vocab.json", "merges.txt"):
            (folder / old).unlink(missing_ok=True)
        convert(folder, tmp_path / f"{kind}-fairseq")
        for file in ("dict.source.txt",) + (("vocab.bpe", "encoder.json") if kind == "bart" else ()):
            found, expected = (f / file for f in (tmp_path / f"{kind}-fairseq", converted(folder)))
            assert found.read_text() == (converted(folders(kind)) / file).read_text()


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


@pytest.mark.parametrize("kind", ["v1.0", "v1.1", "bart"])
def test_training_and_generation(
    folders: Callable[[str], Path], kind: str, cli: Cli, tmp_path: Path
) -> None:
    """Generate with the checkpoint, restore it, fine-tune it with parts, convert back."""
    folder = folders(kind)
    target = converted(folder)
    if kind == "bart":
        encoder = get_encoder(str(target / "encoder.json"), str(target / "vocab.bpe"))
        prepare(cli, target, tmp_path, lambda line: " ".join(map(str, encoder.encode(line))))
    else:
        settings = SentencepieceConfig(sentencepiece_model=str(target / "spiece.model"))
        prepare(cli, target, tmp_path, SentencepieceBPE(settings).encode)
    data, model = tmp_path / "bin", target / "model.pt"
    assert sorted(hypotheses(generate(data, model))) == list(range(16))
    arguments = model_flags(model, kind)
    common = [data, "--user-dir", USER_DIR, *arguments, *TRAIN, "--max-update", 2]
    cli("train", *common, "--restore-file", model, "--save-dir", tmp_path / "restored")
    log = cli("train", *common, "--finetune-from-model", model, "--save-dir", tmp_path / "tuned")
    assert list(update_losses(log)) == [1, 2] and "initialised fresh" not in log
    convert(tmp_path / "tuned" / "checkpoint_last.pt", tmp_path / "back", "--like", folder)
    moved = state_of(tmp_path / "back")
    before = state_of(folder)
    assert any(not torch.equal(moved[name], before[name]) for name in before)
    if kind != "bart":
        parts = ["--encoder-self-attention", "rsa"]
        log = cli(
            "train", *common, *parts, "--finetune-from-model", model, "--save-dir",
            tmp_path / "parts",
        )  # fmt: skip
        assert "initialised fresh" in log and "encoder.layers.0.self_attn.mixture" in log


def model_flags(model: Path, kind: str) -> List[str]:
    """The flags of fairseq-train for a converted model, from the settings in its file."""
    from fairseq_recur.conversion import bart, huggingface, t5

    folder = model.parent.with_name(model.parent.name.removesuffix("-fairseq"))
    config = huggingface.read_json(folder / "config.json")
    return (bart if kind == "bart" else t5).arguments(config)


def test_parts_that_the_format_lacks_are_named(
    cli: Cli, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = "--encoder-embed-dim 16 --encoder-ffn-embed-dim 24 --encoder-layers 1".split()
    cli(
        "train", corpus / "bin", "--user-dir", USER_DIR, "--arch", "t5_small", *sizes,
        "--decoder-layers", 1, "--encoder-attention-heads", 2, "--decoder-attention-heads", 2,
        "--decoder-self-attention", "rsa", "--recurrence", "biarn", *TRAIN, "--max-update", 1,
        "--save-dir", tmp_path,
    )  # fmt: skip
    message = refused(capsys, tmp_path / "checkpoint_last.pt", tmp_path / "back")
    assert "--decoder-self-attention rsa, --recurrence biarn" in message
    state = load(tmp_path / "checkpoint_last.pt")
    state["cfg"]["model"]["recurrence"] = "none"
    state["cfg"]["model"]["decoder_self_attention"] = "dot"
    torch.save(state, tmp_path / "claims.pt")
    message = refused(capsys, tmp_path / "claims.pt", tmp_path / "back")
    assert "no place for decoder.layers.0" in message


def test_a_stock_transformer_is_no_bart(
    cli: Cli, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = "--encoder-embed-dim 16 --encoder-ffn-embed-dim 24 --encoder-layers 1".split()
    cli(
        "train", corpus / "bin", "--user-dir", USER_DIR, "--arch", "transformer", *sizes, *TRAIN,
        "--max-update", 1, "--save-dir", tmp_path,
    )  # fmt: skip
    message = refused(capsys, tmp_path / "checkpoint_last.pt", tmp_path / "back")
    assert "encoder_learned_pos" in message and "layernorm_embedding" in message


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


UNSUPPORTED: Dict[str, Any] = {
    "kind": ("v1.0", dict(model_type="longt5"), ["model_type longt5", "t5, mt5, bart"]),
    "activation": ("v1.0", dict(feed_forward_proj="gated-silu"), ["'gated-silu'", "relu"]),
    "epsilon": ("v1.0", dict(layer_norm_epsilon=1e-5), ["layer_norm_epsilon is 1e-05"]),
    "start": ("v1.0", dict(decoder_start_token_id=5), ["decoder_start_token_id is 5"]),
    "width": ("v1.0", dict(d_model=32), ["the weights do not fit", "asks for"]),
    "layers": ("v1.0", dict(num_layers=3, num_decoder_layers=2), ["lacks the weight"]),
    "fewer layers": ("v1.0", dict(num_layers=1, num_decoder_layers=2), ["has no place for"]),
    "rows": ("v1.0", dict(vocab_size=69), ["shared.weight has 68 rows"]),
    "tokenizer": ("v1.0", dict(vocab_size=20), ["tokenizer", "beyond the 20 rows"]),
    "size": ("v1.0", dict(num_heads="two"), ["num_heads is two"]),
    "scaled": ("v1.1", dict(scale_decoder_outputs=True), ["lm_head.weight differs"]),
    "bart norm": (
        "bart", dict(normalize_before=True, add_final_layer_norm=True),
        ["normalize_before is True", "add_final_layer_norm is True"],
    ),
    "bart scale": ("bart", dict(scale_embedding=True), ["scale_embedding"]),
    "bart activation": ("bart", dict(activation_function="swish"), ["'swish'", "gelu"]),
    "bart start": ("bart", dict(decoder_start_token_id=0), ["decoder_start_token_id is 0"]),
}  # fmt: skip


@pytest.mark.parametrize("kind, changes, said", UNSUPPORTED.values(), ids=UNSUPPORTED.keys())
def test_unsupported_settings_are_named(
    folders: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    kind: str, changes: Dict[str, Any], said: List[str],
) -> None:  # fmt: skip
    folder = tmp_path / "model"
    shutil.copytree(folders(kind), folder)
    change_config(folder, **changes)
    message = refused(capsys, folder, tmp_path / "out")
    for words in said:
        assert words in message


def damage(folder: Path, file: str) -> None:
    """Cut a file in half."""
    path = folder / file
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


BROKEN: Dict[str, Any] = {
    "no config": (lambda f: (f / "config.json").unlink(), "no config.json in"),
    "half a config": (lambda f: damage(f, "config.json"), "config.json is damaged"),
    "list": (lambda f: (f / "config.json").write_text("[]"), "expected an object"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no weights in"),
    "half the weights": (lambda f: damage(f, "model.safetensors"), "cannot be read"),
    "no tokenizer": (lambda f: (f / "spiece.model").unlink(), "no tokenizer in"),
    "half a tokenizer": (lambda f: damage(f, "spiece.model"), "spiece.model is damaged"),
    "other tokenizer": (
        lambda f: (f / "tokenizer.json").write_text('{"model": {"type": "WordPiece"}}'),
        "expected a Unigram model",
    ),
}


@pytest.mark.parametrize("change, said", BROKEN.values(), ids=BROKEN.keys())
def test_broken_folders_are_refused(
    folders: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    change: Callable[[Path], Any], said: str,
) -> None:  # fmt: skip
    folder = tmp_path / "model"
    shutil.copytree(folders("v1.0"), folder)
    change(folder)
    assert said in refused(capsys, folder, tmp_path / "out")


def test_no_code_is_run(tmp_path: Path, folders: Callable[[str], Path],
                        capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    """A pickle that would write a file when it is loaded."""

    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "exploded"),)

    folder = tmp_path / "model"
    shutil.copytree(folders("v1.0"), folder)
    (folder / "model.safetensors").unlink()
    torch.save({"shared.weight": Bomb()}, folder / "pytorch_model.bin")
    assert "cannot be read" in refused(capsys, folder, tmp_path / "out")
    assert not (tmp_path / "exploded").exists()


def test_wrong_paths_are_refused(
    folders: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, full = folders("v1.0"), tmp_path / "full"
    full.mkdir()
    (full / "mine").touch()
    assert "is there already" in refused(capsys, folder, full)
    assert "no such file or folder" in refused(capsys, tmp_path / "none", tmp_path / "out")
    assert "--like goes with" in refused(capsys, folder, tmp_path / "out", "--like", folder)
    model = converted(folder) / "model.pt"
    other = folders("bart")
    assert "is a bart" in refused(capsys, model, tmp_path / "out", "--like", other)
    larger = tmp_path / "larger"
    save_t5(larger, "v1.0", spare=20)
    message = refused(capsys, model, tmp_path / "out", "--like", larger)
    assert "the checkpoint has 68 words" in message


def test_a_failure_leaves_nothing(
    folders: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", "model.pt")

    monkeypatch.setattr("fairseq_recur.cli.convert.torch.save", full)
    with pytest.raises(OSError):
        convert(folders("v1.0"), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_without_safetensors_there_is_one_message(
    folders: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = folders("v1.0")
    monkeypatch.setitem(__import__("sys").modules, "safetensors.torch", None)
    monkeypatch.setitem(__import__("sys").modules, "safetensors", None)
    message = refused(capsys, folder, tmp_path / "out")
    assert "pip install 'fairseq-recur[convert]'" in message
    message = refused(capsys, converted(folder) / "model.pt", tmp_path / "out")
    assert "pip install 'fairseq-recur[convert]'" in message
