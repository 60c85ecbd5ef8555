"""Uses of checkpoints, with every preset: averages, ensembles, Python, fine-tuning."""

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY

from fairseq_recur.cli.average import average_checkpoints
from fairseq_recur.errors import CheckpointError
from tests.conftest import SMALL, TRAIN, preset_flags, stock_of
from tests.running import USER_DIR, generate, hypotheses, saved_weights, token_scores, update_losses

Cli = Callable[..., str]
Trained = Callable[..., Path]

# With a learning rate of zero, the checkpoint after the first update has the initial weights.
STANDING_STILL = "--lr 0 --lr-scheduler fixed --max-update 1 --no-epoch-checkpoints".split()


def start(cli: Cli, corpus: Path, arch: str, folder: Path, *flags: Any) -> str:
    """Train for one update that changes nothing, and return the log."""
    system = ["--arch", arch, *preset_flags(arch)]
    return start_system(cli, corpus, system, folder, *flags)


def start_system(cli: Cli, corpus: Path, system: list[str], folder: Path, *flags: Any) -> str:
    """The same for the flags of a whole system."""
    return cli(
        "train", corpus / "bin", "--user-dir", USER_DIR, *SMALL, *TRAIN, *system,
        *STANDING_STILL, "--save-dir", folder, *flags,
    )  # fmt: skip


@pytest.mark.slow_presets
def test_averaged_checkpoints_translate(
    preset: str, corpus: Path, trained: Trained, tmp_path: Path
) -> None:
    folder = trained(preset)
    files = [folder / "checkpoint5.pt", folder / "checkpoint10.pt"]
    averaged = tmp_path / "averaged.pt"
    torch.save(average_checkpoints(files), averaged)
    five, ten = map(saved_weights, files)
    assert saved_weights(averaged).keys() == five.keys()
    for name, value in saved_weights(averaged).items():
        torch.testing.assert_close(value, (five[name] + ten[name]) / 2)
    assert any((five[name] != ten[name]).any() for name in five)
    found = hypotheses(generate(corpus / "bin", averaged, "--batch-size", 8))
    assert found and found != hypotheses(generate(corpus / "bin", files[1], "--batch-size", 8))


@pytest.mark.slow
def test_ensemble_averages_the_probabilities(corpus: Path, trained: Trained) -> None:
    folder = trained("transformer_biarn")
    one, other = str(folder / "checkpoint5.pt"), str(folder / "checkpoint10.pt")
    flags = ["--score-reference", "--batch-size", 8]
    of_one, of_other, of_both = (
        token_scores(generate(corpus / "bin", path, *flags))
        for path in (one, other, f"{one}:{other}")
    )
    assert of_one != of_other
    for number, scores in of_both.items():
        expected = [math.log2((2**a + 2**b) / 2) for a, b in zip(of_one[number], of_other[number])]
        assert scores == pytest.approx(expected, abs=3e-4)  # printed with four digits
    for beam in (1, 5):
        found = hypotheses(generate(corpus / "bin", f"{one}:{other}", "--beam", beam))
        assert found.keys() >= of_both.keys()


@pytest.mark.slow_presets
def test_ensemble_of_a_model_with_itself_is_the_model(
    preset: str, corpus: Path, trained: Trained
) -> None:
    path = str(trained(preset) / "checkpoint_last.pt")
    alone, twice = (
        hypotheses(generate(corpus / "bin", paths, "--batch-size", 8))
        for paths in (path, f"{path}:{path}")
    )
    assert alone
    for number, (hypothesis,) in alone.items():
        assert twice[number][0].words == hypothesis.words
        assert twice[number][0].score == pytest.approx(hypothesis.score, abs=1e-5)


@pytest.fixture(scope="session")
def bpe_codes(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """BPE merges that make every word of the corpus one unit."""
    codes = tmp_path_factory.mktemp("bpe") / "codes"
    subprocess.run(
        [sys.executable, "-m", "subword_nmt.learn_bpe", "-s", "200", "--min-frequency", "1",
         "-i", corpus / "train.src", "-o", codes],
        check=True, capture_output=True,
    )  # fmt: skip
    return codes


@pytest.mark.slow_presets
@pytest.mark.parametrize("with_bpe", [False, True], ids=["words", "bpe"])
def test_translate_in_python_equals_generate(
    preset: str, with_bpe: bool, corpus: Path, trained: Trained, bpe_codes: Path
) -> None:
    folder = trained(preset)
    expected = hypotheses(generate(corpus / "bin", folder / "checkpoint_last.pt"))
    model = ARCH_MODEL_REGISTRY[preset].from_pretrained(
        str(folder), "checkpoint_last.pt", str(corpus / "bin"),
        **({"bpe": "subword_nmt", "bpe_codes": str(bpe_codes)} if with_bpe else {}),
    )  # fmt: skip
    sources = (corpus / "test.src").read_text().splitlines()
    if with_bpe:
        assert model.apply_bpe("w1 w9w9") == "w1 w@@ 9@@ w9"
    found = model.translate(sources, beam=5, max_len_b=12)
    assert found == [expected[i][0].words for i in range(len(sources))]
    assert model.translate(sources[3], beam=5, max_len_b=12) == found[3]


def fresh_parts(log: str) -> list[str]:
    """The parts that the log names as freshly initialised."""
    mark = "initialised fresh, as the checkpoint does not have it: "
    return [line.split(mark)[1].split()[0] for line in log.splitlines() if mark in line]


Stock = Callable[[list[str]], Path]


@pytest.fixture
def stock_checkpoint(trained: Trained) -> Stock:
    """A checkpoint of the host of a system."""

    def make(system: list[str]) -> Path:
        return trained(*stock_of(system)[1:]) / "checkpoint_last.pt"

    return make


@pytest.mark.slow_presets
def test_finetune_starts_from_the_stock_transformer(
    preset: str, cli: Cli, corpus: Path, stock_checkpoint: Stock, tmp_path: Path
) -> None:
    stock = stock_checkpoint(["--arch", preset])
    log = start(cli, corpus, preset, tmp_path, "--finetune-from-model", stock)
    expected, found = saved_weights(stock), saved_weights(tmp_path / "checkpoint_last.pt")
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
    added = found.keys() - expected.keys()
    parts = fresh_parts(log)
    assert added == {n for n in added if n.startswith(tuple(part + "." for part in parts))}
    for part in parts:
        assert any(name.startswith(part + ".") for name in added)


# Flags that keep the standard parts, or select parts without weights.
WITHOUT_WEIGHTS = {
    *(f"--cross-attention {name}" for name in ("segmented", "xl", "global")),
    "--srformer-no-neuron",
    "--arch transformer_disan",
    "--decoder-self-attention log_sparse",
}
WITH_WEIGHTS = {"rnn", "rnn_all_heads", "transient", "rsa", "biarn", "transformer_rnn_multicolumn"}


@pytest.mark.slow
def test_finetune_starts_every_system(
    system: list[str], cli: Cli, corpus: Path, stock_checkpoint: Stock, tmp_path: Path
) -> None:
    stock = stock_checkpoint(system)
    log = start_system(cli, corpus, system, tmp_path, "--finetune-from-model", stock)
    expected, found = saved_weights(stock), saved_weights(tmp_path / "checkpoint_last.pt")
    if "replace" in system:  # the recurrence takes the place of the cross-attention
        expected = {n: x for n, x in expected.items() if n in found or ".encoder_attn" not in n}
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
    assert (fresh_parts(log) == []) == (found.keys() == expected.keys())
    words = f"{' '.join(system)} "
    bare = any(f"{x} " in words for x in WITHOUT_WEIGHTS) and not WITH_WEIGHTS & set(system)
    plain = stock_of(system) == system or system[-2:] == ["--recurrence", "none"] or bare
    assert (fresh_parts(log) == []) == plain


@pytest.mark.slow_presets
def test_finetuned_model_continues_to_learn(
    preset: str,
    cli: Cli,
    corpus: Path,
    trained: Trained,
    stock_checkpoint: Stock,
    tmp_path: Path,
) -> None:
    """The first loss is near the baseline's last loss, far from that of a new model."""
    log = cli(
        "train", corpus / "bin", "--user-dir", USER_DIR, "--arch", preset, *SMALL, *TRAIN,
        *preset_flags(preset), "--finetune-from-model", stock_checkpoint(["--arch", preset]),
        "--max-update", 12, "--save-dir", tmp_path, "--no-epoch-checkpoints", "--dropout", 0,
    )  # fmt: skip
    losses = update_losses(log)
    new = update_losses((trained(preset) / "train.log").read_text())
    # A fresh recurrent term of SRformer disturbs the baseline at first: it is over its threshold.
    assert losses[1] < new[1] - (0.1 if "srformer" in preset else 0.5)
    assert min(losses.values()) < losses[1]
    again = start(
        cli, corpus, preset, tmp_path / "again",
        "--finetune-from-model", tmp_path / "checkpoint_last.pt",
    )  # fmt: skip
    assert fresh_parts(again) == []


KEPT = "--encoder-layers 3 --decoder-layers 3 --decoder-layers-to-keep 0,2".split()


@pytest.mark.parametrize("arch, fresh", [("transformer_biarn", False), ("rsa_transformer", True)])
def test_a_training_with_layers_to_keep(
    arch: str, fresh: bool, cli: Cli, corpus: Path, tmp_path: Path
) -> None:
    """It starts from a deeper model or from nothing, is resumed by the same command, generates."""
    flags = [*KEPT, "--recurrence-fused-layers", "all"] if arch == "transformer_biarn" else KEPT
    folder, whole = tmp_path / "kept", tmp_path / "whole"
    if not fresh:
        start(cli, corpus, arch, whole, *flags[:4], *flags[6:])
        flags = [*flags, "--finetune-from-model", whole / "checkpoint_last.pt"]
    start(cli, corpus, arch, folder, *flags)
    before = saved_weights(folder / "checkpoint_last.pt")
    if not fresh:
        expected, own = saved_weights(whole / "checkpoint_last.pt"), "layers.1.fc1.weight"
        assert torch.equal(before[f"decoder.{own}"], expected["decoder.layers.2.fc1.weight"])
        assert torch.equal(before[f"encoder.{own}"], expected[f"encoder.{own}"])
    assert list(update_losses(start(cli, corpus, arch, folder, *flags, "--max-update", 2))) == [2]
    after = saved_weights(folder / "checkpoint_last.pt")
    assert after.keys() == before.keys()
    assert {n.split(".")[2] for n in after if n.startswith("decoder.layers.")} == {"0", "1"}
    assert all(torch.equal(after[name], before[name]) for name in after)
    assert hypotheses(generate(corpus / "bin", folder / "checkpoint_last.pt", "--batch-size", 8))


@pytest.mark.slow_presets
def test_restore_file_starts_from_another_training(
    preset: str, cli: Cli, corpus: Path, trained: Trained, tmp_path: Path
) -> None:
    other = trained(preset) / "checkpoint5.pt"
    log = start(
        cli, corpus, preset, tmp_path, "--restore-file", other, "--reset-optimizer",
        "--reset-dataloader", "--reset-meters", "--reset-lr-scheduler",
    )  # fmt: skip
    assert list(update_losses(log)) == [1]
    expected, found = saved_weights(other), saved_weights(tmp_path / "checkpoint_last.pt")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.slow_presets
def test_stock_checkpoint_that_lacks_a_weight_is_refused(
    preset: str, cli: Cli, corpus: Path, trained: Trained, tmp_path: Path
) -> None:
    name = "encoder.layers.1.fc1.weight"
    stock = trained(stock_of(["--arch", preset])[1]) / "checkpoint_last.pt"
    state = torch.load(stock, weights_only=True)
    del state["model"][name]
    torch.save(state, tmp_path / "bad.pt")
    with pytest.raises(CheckpointError, match=f"lacks.*{name}"):
        start(cli, corpus, preset, tmp_path, "--finetune-from-model", tmp_path / "bad.pt")
