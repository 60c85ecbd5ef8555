"""fairseq's commands in sequence, with every preset."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import sacrebleu
import torch
from fairseq.data import Dictionary

from tests.conftest import SMALL, TRAIN
from tests.running import SHORT, USER_DIR, Hypothesis, generate, hypotheses, update_losses

Cli = Callable[..., str]
Trained = Callable[[str], Path]

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


def test_preprocess_keeps_every_sentence(corpus: Path) -> None:
    dictionary = Dictionary.load(str(corpus / "bin" / "dict.src.txt"))
    assert sorted(dictionary.symbols[dictionary.nspecial :]) == sorted(f"w{i}" for i in range(20))
    assert (corpus / "bin" / "dict.tgt.txt").read_text() == (
        corpus / "bin" / "dict.src.txt"
    ).read_text()


def test_training_lowers_the_loss(preset: str, trained: Trained) -> None:
    losses = update_losses((trained(preset) / "train.log").read_text())
    assert list(losses) == list(range(1, 41))
    assert losses[40] < losses[1] - 1


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
        "--lr", 0.01, "--dropout", 0, "--max-update", 24, "--eval-bleu",
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
