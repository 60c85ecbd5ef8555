"""Small models learn through the command line: to copy and reverse, to recall, to forecast."""

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import sacrebleu
from fairseq.models import ARCH_MODEL_REGISTRY

from tests import series
from tests.conftest import FORECASTERS, LANGUAGE_MODELS, SEGMENTS, fast_or_slow, write_corpus
from tests.integration.test_memory_model import (
    OF_POSITIONS,
    TRAINING,
    arguments,
    preprocess,
    repeating,
)
from tests.running import USER_DIR, generate, hypotheses
from tests.systems import has_neuron
from tests.unit.test_memory_model import MEMORY_STRUCTURES

Cli = Callable[..., str]

TASKS: dict[str, Callable[[list[str]], list[str]]] = {
    "copy": lambda words: words,
    "reverse": lambda words: words[::-1],
}

# Further flags that a system needs to learn these tasks.
NEEDS = {
    # Without positions the states do not know the order of words: BLEU 13 after 2500 updates.
    ("gated_sum", "all", "scalar"): ["--recurrence-positions"],
    # Its queries are not scaled: copying was at BLEU 66 after 800 updates with a threshold of 0.1,
    # at 97.6 after 1600 with 10 and with 40.
    ("srformer_t5_small",): (
        "--srformer-threshold-init 40 --max-update 2400 --total-num-update 2400"
    ).split(),
    # Without O_S, an ablation: reversing was at BLEU 97.07 after 1600 updates.
    ("--srformer-no-segmented-term",): "--max-update 3200 --total-num-update 3200".split(),
}

# SRformer's neurons learn later with their threshold of 0.1, which is for pretrained models. The
# presets and the unit scale are tested as they are, other options with a threshold that learns
# sooner; at the unit scale no neuron would fire with it.
UPDATES, NEURON_UPDATES = 800, 3200
SOONER = "--srformer-threshold-init 10 --max-update 1600 --total-num-update 1600".split()


SIZES = (
    "--encoder-embed-dim 64 --encoder-ffn-embed-dim 128 --encoder-layers 2 --decoder-layers 2 "
    "--encoder-attention-heads 4 --decoder-attention-heads 4 --share-all-embeddings "
    "--dropout 0 --attention-dropout 0"
).split()
LEARNING = (
    "--optimizer adamw_fused --lr 0.004 --lr-scheduler polynomial_decay --warmup-updates 100 "
    "--clip-norm 1.0 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 "
    "--max-tokens 600 --cpu --seed 1 --num-workers 0 --log-format simple --disable-validation "
    "--no-epoch-checkpoints --no-save-optimizer-state --save-interval 1000"
).split()


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory, cli: Cli) -> Path:
    """For each task, 8000 sentence pairs for training and 200 different ones for testing."""
    root = tmp_path_factory.mktemp("tasks")
    for task, change in TASKS.items():
        folder = root / task
        folder.mkdir()
        for name, pairs, seed in (("train", 8000, 1), ("test", 200, 2)):
            write_corpus(folder, name, pairs, change, seed)
        seen = set((folder / "train.src").read_text().splitlines())
        held_out = [s for s in (folder / "test.src").read_text().splitlines() if s not in seen]
        (folder / "test.src").write_text("".join(s + "\n" for s in held_out))
        (folder / "test.tgt").write_text(
            "".join(" ".join(change(s.split())) + "\n" for s in held_out)
        )
        cli(
            "preprocess", "--source-lang", "src", "--target-lang", "tgt", "--joined-dictionary",
            "--trainpref", folder / "train", "--validpref", folder / "test",
            "--testpref", folder / "test", "--destdir", folder / "bin",
        )  # fmt: skip
    return root


def learn(cli: Cli, folder: Path, save_dir: Path, updates: int, *flags: str) -> float:
    """Train, and return BLEU on the held-out sentences."""
    cli(
        "train", folder / "bin", "--user-dir", USER_DIR, *SIZES, *LEARNING,
        "--max-update", updates, "--total-num-update", updates, "--save-dir", save_dir, *flags,
    )  # fmt: skip
    found = hypotheses(
        generate(
            folder / "bin", save_dir / "checkpoint_last.pt", "--beam", 1, "--max-tokens", 1000,
            "--required-batch-size-multiple", 1,
        )
    )  # fmt: skip
    references = (folder / "test.tgt").read_text().splitlines()
    assert sorted(found) == list(range(len(references))) and len(references) > 150
    translations = [found[i][0].words for i in range(len(references))]
    return sacrebleu.corpus_bleu(translations, [references], tokenize="none", force=True).score


def test_copying_is_learnt(cli: Cli, tasks: Path, tmp_path: Path) -> None:
    # Small, because it is a fast test; BLEU was 98.98 after 250 updates, 100 after 300.
    flags = "--arch transformer_biarn_tiny --encoder-layers 1 --decoder-layers 1 --max-tokens 400"
    assert learn(cli, tasks / "copy", tmp_path, 300, *flags.split()) >= 98


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_every_system_learns(
    system: list[str], task: str, cli: Cli, tasks: Path, tmp_path: Path
) -> None:
    needs = [flag for values, flags in NEEDS.items() if {*values} <= {*system} for flag in flags]
    updates = NEURON_UPDATES if has_neuron(system) else UPDATES
    others = {"--srformer-scale", "--srformer-threshold-init"}
    if has_neuron(system) and system[2:] != SEGMENTS and not others & {*system}:
        needs = [*SOONER, *needs]
    assert learn(cli, tasks / task, tmp_path, updates, *system, *needs) >= 98


def validation(log: str, subset: str, name: str) -> float:
    """The last value of a statistic on a set."""
    return float(re.findall(rf"'{subset}' subset .*?\| {name} ([\d.]+)", log)[-1])


CARRIED: dict[str, str] = {
    "block_recurrent": (
        "--recurrent-layer 1 --recurrent-block 1 --recurrent-state-length 4 "
        "--lr 0.003 --max-update 125"
    ),
    "latent": "--latent-every 1 --latent-chunk 2 --latent-states 4 --lr 0.005 --max-update 3000",
}
"""Flags of models whose one layer sees earlier blocks of one or two words by its state alone.

A latent state may be of no use for 1,500 updates, and then all at once.
"""

STATES = {
    arch: memory
    for arch in MEMORY_STRUCTURES
    if (memory := ARCH_MODEL_REGISTRY[arch].config_class().decoder_memory) in CARRIED
}
assert {*STATES, *OF_POSITIONS} == {*MEMORY_STRUCTURES}, "each memory is to learn something"
RECALLING = (
    "--decoder-embed-dim 32 --decoder-input-dim 32 --decoder-output-dim 32 --decoder-layers 1 "
    "--decoder-ffn-embed-dim 64 --task language_modeling --sample-break-mode eos --batch-size 32 "
    "--tokens-per-sample 17 --clip-norm 0.25 --validate-interval 100"
).split()


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory, cli: Cli) -> Path:
    """Lines of 16 words; most repeat the word two places before."""
    folder, rng = tmp_path_factory.mktemp("lines"), random.Random(1)
    for name, count in (("train", 2000), ("valid", 100)):
        (folder / name).write_text("".join(repeating(rng, 16, 2) + "\n" for _ in range(count)))
    return preprocess(folder, ("train", "valid"), cli)


@pytest.mark.parametrize("arch", LANGUAGE_MODELS)
def test_language_models_learn_what_came_before(
    arch: str, lines: Path, cli: Cli, tmp_path: Path
) -> None:
    """To 1.7 bits a token, of 1.0 with all words before it, and 2.9 with the last one alone."""
    flags = [*RECALLING, "--decoder-attention-heads", 2, "--dropout", 0, "--max-update", 300]
    words = [lines, "--user-dir", USER_DIR, "--arch", arch, *TRAINING, *flags, "--no-save"]
    assert validation(cli("train", *words, "--lr", 0.01), "valid", "loss") < 1.7


@pytest.mark.slow
@pytest.mark.parametrize("arch", STATES)
def test_a_state_learns_what_a_block_does_not_hold(
    arch: str, lines: Path, cli: Cli, tmp_path: Path
) -> None:
    """To 1.7 bits a token.

    A token has 1.0 bits if all words before are known, 1.9 with the word before alone, as a chunk
    of two has it every other time, and 2.9 without it, as in a block of one.
    """
    flags = [*RECALLING, *CARRIED[STATES[arch]].split()]
    if STATES[arch] == "block_recurrent":  # its gates learn late from small weights
        flags += ["--init-std", "0.2"]
    log = cli("train", *arguments(lines, tmp_path / "out", arch, *flags))
    assert validation(log, "valid", "loss") < 1.7


REMEMBERING = [
    arch
    for arch in FORECASTERS
    if ARCH_MODEL_REGISTRY[arch].config_class().encoder_memory != "none"
]

FORECASTING = (
    "--dropout 0 --attention-dropout 0 --activation-dropout 0 --lr 0.001 --batch-size 8 "
    "--no-save --valid-subset test --label-length 1"
).split()


def forecast_error(cli: Cli, arch: str, path: Path, *flags: object) -> float:
    """Train a forecaster; return its error on the last fifth of the series."""
    words = ["--user-dir", USER_DIR, "--arch", arch, *series.flags(path, *FORECASTING, *flags)]
    return validation(cli("train", *words), "test", "mse")


@pytest.mark.parametrize("arch", [fast_or_slow(a, a, a == "log_sparse") for a in FORECASTERS])
def test_forecasters_learn_the_level_of_a_window(arch: str, cli: Cli, tmp_path: Path) -> None:
    """From the encoder's twelve rows, to an MSE of 0.57; the decoder's one row alone gives 0.7."""
    path = series.write_values(tmp_path / "x.csv", series.levels(1200))
    assert forecast_error(cli, arch, path, "--max-epoch", 2) < 0.63


@pytest.mark.slow
@pytest.mark.parametrize("arch", [a for a in FORECASTERS if a.startswith("rsa_")])
def test_matrices_find_the_season(arch: str, cli: Cli, tmp_path: Path) -> None:
    """Those of a dilation of six rows, to half of the error of the mean, 0.8."""
    path = series.write_values(tmp_path / "x.csv", series.seasons(1500))
    dilated = "--rsa-heads 0,0,0,2,0,0 --rsa-dilations 6,6 --lr 0.003 --max-epoch 5".split()
    assert forecast_error(cli, arch, path, *dilated) < 0.4


@pytest.mark.slow
@pytest.mark.parametrize("arch", REMEMBERING)
def test_forecasters_learn_from_their_memory(arch: str, cli: Cli, tmp_path: Path) -> None:
    """What follows from the row three rows before, which no window of two rows holds."""
    path = series.write_values(tmp_path / "x.csv", series.seasons(1500, 3))
    short = "--input-length 2 --horizon 1 --batch-size 2 --lr 0.003 --max-epoch 3".split()
    assert forecast_error(cli, arch, path, *short) < 0.6
    assert forecast_error(cli, arch, path, *short, "--encoder-memory", "none") > 0.7
