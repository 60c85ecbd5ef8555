"""Small models learn to copy and to reverse sentences, through the command line."""

from collections.abc import Callable
from pathlib import Path

import pytest
import sacrebleu

from tests.conftest import SEGMENTS, write_corpus
from tests.running import USER_DIR, generate, hypotheses

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
    # at 97.6 after 1600 with 10.
    ("srformer_t5_small",): (
        "--srformer-threshold-init 40 --max-update 1600 --total-num-update 1600"
    ).split(),
    # Without O_S, an ablation: reversing was at BLEU 97.07 after 1600 updates.
    ("--srformer-no-segmented-term",): "--max-update 3200 --total-num-update 3200".split(),
}

# SRformer's neurons learn later with their threshold of 0.1, which is for pretrained models. The
# presets are tested as they are, their options with a threshold that learns sooner.
UPDATES, NEURON_UPDATES = 800, 3200
SOONER = "--srformer-threshold-init 10 --max-update 1600 --total-num-update 1600".split()


def has_neuron(system: list[str]) -> bool:
    """Whether a system has SRformer's accumulate-and-fire neuron."""
    without = {"--cross-attention", "--srformer-no-neuron"}
    return system[1].startswith("srformer") and not without & {*system}


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
    for task, change in TASKS.items():
        folder = tmp_path_factory.getbasetemp() / "tasks" / task
        folder.mkdir(parents=True)
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
    return tmp_path_factory.getbasetemp() / "tasks"


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
    if has_neuron(system) and system[2:] != SEGMENTS and "--srformer-threshold-init" not in system:
        needs = [*SOONER, *needs]
    assert learn(cli, tasks / task, tmp_path, updates, *system, *needs) >= 98
