"""fairseq's commands in sequence, with every preset."""

import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch
from torch.nn.utils.rnn import pad_sequence

from fairseq_recur import from_pretrained
from fairseq_recur.cli import main
from fairseq_recur.pretrained.hypothesis import symbols
from tests.conftest import SMALL, STRUCTURES, TRAIN, fast_or_slow, preset_flags
from tests.freeze import FOLDER, files
from tests.huggingface import converted, transformers
from tests.running import (
    SHORT,
    USER_DIR,
    Hypothesis,
    generate,
    hypotheses,
    saved_weights,
    update_losses,
)

Cli = Callable[..., str]
Trained = Callable[[str], Path]
PAD, EOS = 1, 2

# Without this, fairseq >= 0.12.3 drops the sentences that do not fill a batch.
WHOLE = ["--required-batch-size-multiple", "1"]


def assert_same(found: dict[int, list[Hypothesis]], expected: dict[int, list[Hypothesis]]) -> None:
    """Compare the words of every sentence, and the scores up to float32 rounding."""
    assert {n: [h.words for h in hs] for n, hs in found.items()} == {
        n: [h.words for h in hs] for n, hs in expected.items()
    }
    for number, hypotheses_ in expected.items():
        for one, other in zip(found[number], hypotheses_):
            assert one.score == pytest.approx(other.score, abs=1e-5)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


@pytest.mark.slow_presets
def test_training_lowers_the_loss(preset: str, trained: Trained) -> None:
    losses = update_losses((trained(preset) / "train.log").read_text())
    assert list(losses) == list(range(1, 41))
    assert losses[40] < losses[1] - 1


@pytest.mark.parametrize("arch", [fast_or_slow(p, p, p == "srformer") for p in STRUCTURES])
def test_every_weight_learns(arch: str, trained: Trained) -> None:
    """Also those that a source of one segment leaves as they are: SRformer's neuron."""
    folder = trained(arch)
    five, ten = (saved_weights(folder / f"checkpoint{epoch}.pt") for epoch in (5, 10))
    still = {name for name in five if torch.equal(five[name], ten[name])}
    assert five.keys() == ten.keys() and still <= {"encoder.version", "decoder.version"}
    losses = update_losses((folder / "train.log").read_text())
    assert losses[40] < losses[1] - 1
    neurons = {name.split(".")[-1] for name in five if ".neuron." in name}
    assert neurons == ({"weight", "leak", "threshold"} if "srformer" in arch else set())


@pytest.mark.slow_presets
def test_validate_repeats_the_validation_of_training(
    preset: str, cli: Cli, corpus: Path, trained: Trained
) -> None:
    folder = trained(preset)
    of_training = re.findall(r"\| valid on 'valid' subset \| (.* ppl [\d.]+)", training_log(folder))
    output = cli(
        "validate", corpus / "bin", "--user-dir", USER_DIR, "--task", "translation", "--cpu",
        "--path", folder / "checkpoint_last.pt", "--max-tokens", 400, "--num-workers", 0,
    )  # fmt: skip
    assert re.findall(r"\| valid on 'valid' subset \| (.* ppl [\d.]+)", output) == of_training[-1:]


def training_log(folder: Path) -> str:
    return (folder / "train.log").read_text()


@pytest.mark.slow_presets
def test_generate_translates_every_sentence(
    preset: str, cli: Cli, corpus: Path, trained: Trained
) -> None:
    """With the defaults, all twenty sentences: the last batch of eight is not full."""
    output = generate(corpus / "bin", trained(preset) / "checkpoint_last.pt", "--batch-size", 8)
    assert sorted(hypotheses(output)) == list(range(20))


@pytest.mark.parametrize("beam", [pytest.param(1, marks=pytest.mark.slow), 5])
@pytest.mark.slow_presets
def test_batches_do_not_change_translations(
    preset: str, beam: int, cli: Cli, corpus: Path, trained: Trained
) -> None:
    checkpoint = trained(preset) / "checkpoint_last.pt"
    flags = ["--beam", beam, "--nbest", beam, *WHOLE]
    alone = hypotheses(generate(corpus / "bin", checkpoint, *flags, "--batch-size", 1))
    assert sorted(alone) == list(range(20))
    assert len({hs[0].words for hs in alone.values()}) > 5, "the model must distinguish sentences"
    for batches in (
        ["--batch-size", 8],
        ["--max-tokens", 40],
        ["--batch-size", 20, "--left-pad-source"],  # the flag turns padding on the left off
    ):
        assert_same(hypotheses(generate(corpus / "bin", checkpoint, *flags, *batches)), alone)


@pytest.mark.slow_presets
def test_interactive_equals_generate(preset: str, cli: Cli, corpus: Path, trained: Trained) -> None:
    checkpoint = trained(preset) / "checkpoint_last.pt"
    expected = hypotheses(generate(corpus / "bin", checkpoint, "--batch-size", 8, *WHOLE))
    output = cli(
        "interactive", corpus / "bin", "--user-dir", USER_DIR, "--path", checkpoint, "--cpu",
        *SHORT, "--buffer-size", 7, "--batch-size", 4,
        stdin=(corpus / "test.src").read_text(),
    )  # fmt: skip
    found = hypotheses(output)
    assert list(found) == list(range(20)), "one hypothesis per line, in the order of the lines"
    assert re.findall(r"^S-\d+\t(.*)$", output, re.M) == lines(corpus / "test.src")
    assert_same(found, expected)


@pytest.mark.slow_presets
def test_score_repeats_the_score_of_generate(
    preset: str, cli: Cli, corpus: Path, trained: Trained, tmp_path: Path
) -> None:
    output = generate(corpus / "bin", trained(preset) / "checkpoint_last.pt", *WHOLE)
    translations = [hs[0].words for _, hs in sorted(hypotheses(output).items())]
    system = tmp_path / "system"
    system.write_text("".join(line + "\n" for line in translations))
    score = cli("score", "--sys", system, "--ref", corpus / "test.tgt")
    figures = re.compile(r"BLEU4 = .*reflen=\d+\)")
    assert figures.findall(score) == figures.findall(output) != []
    bleu1 = cli("score", "--sys", system, "--ref", corpus / "test.tgt", "--order", 1)
    expected = sacrebleu.BLEU(max_ngram_order=1, tokenize="none", smooth_method="none")
    value = expected.corpus_score(translations, [lines(corpus / "test.tgt")]).score
    assert value > 1
    assert float(re.search(r"BLEU1 = ([\d.]+)", bleu1)[1]) == pytest.approx(value, abs=0.006)


@pytest.mark.slow_presets
def test_eval_bleu_is_the_bleu_of_generate(
    preset: str, cli: Cli, corpus: Path, tmp_path: Path
) -> None:
    log = cli(
        "train", corpus / "bin", "--user-dir", USER_DIR, "--arch", preset, *SMALL, *TRAIN,
        *preset_flags(preset), "--lr", 0.01, "--dropout", 0, "--max-update", 24, "--eval-bleu",
        "--eval-bleu-args", '{"beam": 2, "max_len_b": 12}',
        "--eval-tokenized-bleu", "--best-checkpoint-metric", "bleu",
        "--maximize-best-checkpoint-metric", "--save-dir", tmp_path, "--no-epoch-checkpoints",
        *WHOLE,
    )  # fmt: skip
    found = [float(bleu) for bleu in re.findall(r"on 'valid' subset.* bleu ([\d.]+)", log)]
    assert len(found) == 6 and max(found) > 0
    best = tmp_path / "checkpoint_best.pt"
    output = generate(corpus / "bin", best, "--gen-subset", "valid", "--beam", 2, *WHOLE)
    translations = [hs[0].words for _, hs in sorted(hypotheses(output).items())]
    bleu = sacrebleu.corpus_bleu(
        translations, [lines(corpus / "valid.tgt")], tokenize="none", force=True
    )
    assert max(found) == pytest.approx(bleu.score, abs=0.01)
    state = torch.load(best, weights_only=True)["extra_state"]
    assert state["best"] == max(found)


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Export a checkpoint and load it by Hugging Face's library, whose cache is in `tmp_path`."""
    load = transformers().AutoModelForSeq2SeqLM.from_pretrained
    cache = "transformers.dynamic_module_utils.HF_MODULES_CACHE"
    monkeypatch.setattr(cache, str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [*sys.path])

    def export(checkpoint: Path, *flags: str, **options: Any) -> Any:
        folder = tmp_path / checkpoint.stem
        words = ["export", "--input", str(checkpoint), "--output", str(folder), *flags]
        assert main(words) == 0
        model, info = load(folder, trust_remote_code=True, output_loading_info=True, **options)
        assert not any(map(len, info.values())), info
        return model

    return export


@pytest.mark.slow_presets
def test_exported_model_is_the_same(
    preset: str, corpus: Path, trained: Trained, exported: Callable[..., Any]
) -> None:
    """Log-probabilities, the loss, and the best of a beam: without a cache, without repetitions."""
    checkpoint = trained(preset) / "checkpoint_last.pt"
    ours, theirs = from_pretrained(checkpoint), exported(checkpoint)
    texts = lines(corpus / "test.src")
    sources, targets = (
        pad_sequence([side.encode(text) for text in texts], True, PAD)
        for side, texts in ((ours.source, texts), (ours.target, lines(corpus / "test.tgt")))
    )
    previous = torch.cat([torch.full((len(texts), 1), EOS), targets[:, :-1]], dim=1)
    with torch.no_grad():
        out = ours.model(sources, sources.ne(PAD).sum(dim=1), previous)
        expected = ours.model.get_normalized_probs(out, log_probs=True)
    real = targets.ne(PAD)
    junk = sources.masked_fill(sources.eq(PAD), 7)  # hidden by the mask
    found = theirs(junk, sources.ne(PAD), labels=targets.masked_fill(~real, -100))
    torch.testing.assert_close(found.logits[real], expected[real], rtol=0, atol=1e-5)
    torch.testing.assert_close(
        found.loss, -expected.gather(2, targets[:, :, None])[:, :, 0][real].mean()
    )
    assert found.loss.requires_grad

    limit = 15
    for use_cache, size in ((True, 0), (False, 0), (True, 2)):
        beams = ours.hypotheses(texts, beam=4, nbest=4, max_len_b=limit, no_repeat_ngram_size=size)
        # Of what has not ended at the limit, `generate` does not score the end.
        best = {n: b[0] for n, b in enumerate(beams) if all(len(h.tokens) <= limit for h in b)}
        assert len({one.text for one in best.values()}) > 3
        bigrams = [[*zip(one.tokens, one.tokens[1:])] for one in best.values()]
        assert any(len(of_one) > len({*of_one}) for of_one in bigrams) == (size == 0)
        got = theirs.generate(
            sources, num_beams=4, max_new_tokens=limit + 1, use_cache=use_cache,
            return_dict_in_generate=True, output_scores=True, no_repeat_ngram_size=size,
        )  # fmt: skip
        for number, one in best.items():
            ids, score = got.sequences[number][1:], got.sequences_scores[number].item()
            assert symbols(ids[ids.ne(PAD)], ours.target.dictionary) == one.tokens
            assert score / math.log(2) == pytest.approx(one.score, abs=1e-5)

    prompts = previous[:, :3].masked_fill(previous[:, :3].eq(PAD), 5)
    continued = [
        theirs.generate(
            sources, decoder_input_ids=prompts, num_beams=2, max_new_tokens=6, use_cache=use_cache
        )
        for use_cache in (True, False)
    ]
    assert torch.equal(*continued) and torch.equal(continued[0][:, :3], prompts)
    # A caller's limits, which count the symbol at the beginning.
    assert theirs.generate(sources, num_beams=1, max_length=5).size(1) == 5
    ends = theirs.generate(sources[:1], num_beams=1).size(1)
    longer = theirs.generate(sources[:1], num_beams=1, min_length=ends + 3).size(1)
    assert 5 < ends < ends + 3 <= longer


def test_exported_model_trains_and_is_saved(exported: Callable[..., Any], tmp_path: Path) -> None:
    """What the model shares stays shared; constants have the precision of the weights."""
    checkpoint, flags = files("srformer_bart_base")["checkpoint"], ["--data", str(FOLDER)]
    model = exported(checkpoint, *flags)
    ids = torch.randint(4, 24, (2, 5))
    loss = model(ids, labels=ids).loss
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert model(ids, labels=ids, use_cache=True).loss == model(ids, labels=ids).loss < loss
    model.save_pretrained(tmp_path / "saved")
    again = type(model).from_pretrained(tmp_path / "saved")
    torch.testing.assert_close(again(ids, labels=ids).logits, model(ids, labels=ids).logits)
    assert sum(p.numel() for p in again.parameters()) == sum(p.numel() for p in model.parameters())
    half = exported(files("transformer_biarn")["checkpoint"], *flags, dtype=torch.bfloat16)
    assert half(ids, labels=ids).loss.isfinite()


def test_page_of_the_export(
    exported: Callable[..., Any], folders: Callable[[str], Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Its example prints the translation, with the dictionaries and subwords of the folder."""
    model = converted(folders("v1.0")) / "model.pt"
    exported(model)
    expected = from_pretrained(model).translate("Ein Hund läuft.")
    page = (Path(__file__).parents[2] / "docs" / "outside_fairseq.md").read_text("utf-8")
    (block,) = (
        b for b in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S) if "exported" in b
    )
    for name, own in (("exported", "model"), ('"de", "en"', '"source", "target"'),
                      ("bpe.model", "spiece.model")):  # fmt: skip
        block = block.replace(name, own)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    exec(block, {})
    assert capsys.readouterr().out == f"{expected}\n" != "\n"


def test_export_of_another_model_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = str(files("rsa_transformer_lm")["checkpoint"])
    words = ["export", "--input", checkpoint, "--data", str(FOLDER), "--output"]
    assert main([*words, str(tmp_path / "out")]) == 2
    assert "export: expected one encoder-decoder" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())
