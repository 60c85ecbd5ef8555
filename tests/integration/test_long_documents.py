"""Sources of thousands of tokens in fairseq's commands, with both tasks."""

import random
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from fairseq_recur.errors import ConfigError
from tests.conftest import TRAIN, fast_or_slow
from tests.running import USER_DIR, generate, hypotheses, run_command, update_losses

LIMIT = 4000
"""--max-source-positions, including the end of the sentence."""

LENGTHS = {"train": [3100, 3600, 3999, 5200], "valid": [3000, 3999, 4700], "test": [3999, 3200]}
"""Words of the sources; one source each of the train and valid set is too long."""

MODEL = (
    "--arch srformer_tiny --encoder-embed-dim 16 --encoder-ffn-embed-dim 24 --encoder-layers 1 "
    "--decoder-layers 1 --encoder-attention-heads 2 --decoder-attention-heads 2 --dropout 0"
).split()

TASKS: dict[str, list[str]] = {
    # At most 63 segments and a longer target, so that each segment is read.
    "summarization": "--truncate-source --segment-size 64 --target-length 70".split(),
    # The target is a third of the number of segments, so that some are skipped.
    "translation": "--segment-size 64 --target-length-mode ratio --target-ratio 0.005".split(),
}

DECODE: dict[str, list[str]] = {
    "summarization": [],  # the checkpoint stores the limit
    "translation": ["--max-source-positions", str(LIMIT)],  # fairseq needs the limit again
}
for task, flags in DECODE.items():
    flags += ["--task", task, "--beam", "4", "--batch-size", "2"]


class Trained(NamedTuple):
    """A task, its checkpoint, and the log of its training."""

    task: str
    checkpoint: Path
    log: str


def sources(words: list[int], seed: int) -> list[str]:
    """Random texts with these numbers of words."""
    rng = random.Random(seed)
    return [" ".join(f"w{rng.randrange(40)}" for _ in range(count)) for count in words]


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A preprocessed corpus: (folder)/bin, (folder)/*.source; a target is each 400th word."""
    folder = tmp_path_factory.mktemp("documents")
    for seed, (name, words) in enumerate(LENGTHS.items()):
        texts = sources(words, seed)
        short = [" ".join(text.split()[::400]) for text in texts]
        (folder / f"{name}.source").write_text("".join(line + "\n" for line in texts))
        (folder / f"{name}.target").write_text("".join(line + "\n" for line in short))
    run_command(
        "preprocess", "--source-lang", "source", "--target-lang", "target", "--joined-dictionary",
        "--trainpref", folder / "train", "--validpref", folder / "valid", "--testpref",
        folder / "test", "--destdir", folder / "bin",
    )  # fmt: skip
    return folder


@pytest.fixture(
    scope="module", params=[fast_or_slow(task, task, task == "summarization") for task in TASKS]
)
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, documents: Path
) -> Trained:
    """A model after two updates, each on one or two documents, and a validation."""
    folder = tmp_path_factory.mktemp(request.param)
    log = run_command(
        "train", documents / "bin", "--user-dir", USER_DIR, "--task", request.param,
        *TASKS[request.param], *MODEL, *TRAIN, "--max-tokens", 2 * LIMIT, "--max-update", 2,
        "--max-source-positions", LIMIT, "--skip-invalid-size-inputs-valid-test",
        "--save-dir", folder,
    )  # fmt: skip
    return Trained(request.param, folder / "checkpoint_last.pt", log)


def decode(trained: Trained, documents: Path, *flags: str) -> str:
    """fairseq-generate, by default of the test set."""
    return generate(documents / "bin", trained.checkpoint, *DECODE[trained.task], *flags)


def type_in(trained: Trained, documents: Path, texts: list[str], *flags: str) -> str:
    """fairseq-interactive."""
    return run_command(
        "interactive", documents / "bin", "--user-dir", USER_DIR, "--path", trained.checkpoint,
        *DECODE[trained.task], "--cpu", "--buffer-size", len(texts), "--max-len-b", 12, *flags,
        stdin="".join(text + "\n" for text in texts),
    )  # fmt: skip


def test_training_and_validation(trained: Trained) -> None:
    losses = update_losses(trained.log)
    assert sorted(losses) == [1, 2] and all(0 < loss < 20 for loss in losses.values())
    (valid,) = re.findall(r"'valid' subset \| loss ([\d.]+)|valid on .* loss ([\d.]+)", trained.log)
    assert 0 < float("".join(valid)) < 20


def test_documents_that_are_too_long_for_training(trained: Trained) -> None:
    """They are truncated if the flag requests it, otherwise skipped with a warning."""
    if trained.task == "summarization":
        assert (
            f"train: 1 of 4 sources are longer than {LIMIT} tokens and are truncated" in trained.log
        )
        assert (
            f"valid: 1 of 3 sources are longer than {LIMIT} tokens and are truncated" in trained.log
        )
        assert "will be skipped" not in trained.log
    else:
        skipped = re.findall(r"(\d+) samples have invalid sizes and will be skipped", trained.log)
        assert skipped == ["1", "1"]


def test_decoding(trained: Trained, documents: Path) -> None:
    """Generate and interactive find the same hypotheses by beam search."""
    found = hypotheses(decode(trained, documents))
    texts = (documents / "test.source").read_text().splitlines()
    typed = hypotheses(type_in(trained, documents, texts))
    assert sorted(found) == sorted(typed) == [0, 1]
    for number, (best,) in found.items():
        assert best.words and typed[number][0].words == best.words
        assert typed[number][0].score == pytest.approx(best.score, abs=1e-4)


def test_every_part_of_a_document_counts(trained: Trained, documents: Path) -> None:
    """A different word near the start, in the middle or at the end changes the score."""
    (text,) = sources([3999], seed=7)
    texts = [text]
    for place in (70, 2000, 3998):
        words = text.split()
        words[place] = "w3" if words[place] != "w3" else "w4"
        texts.append(" ".join(words))
    scores = [best.score for (best,) in hypotheses(type_in(trained, documents, texts)).values()]
    assert len(set(scores)) == 4


@pytest.mark.slow
def test_documents_that_are_too_long_for_decoding(trained: Trained, documents: Path) -> None:
    long = sources([4700, 3000], seed=8)
    if trained.task == "translation":
        with pytest.raises(ConfigError, match=r"Size of sample .* invalid .*--truncate-source"):
            decode(trained, documents, "--gen-subset", "valid")
        with pytest.raises(
            ConfigError, match=r"line 1 .* 4701 tokens, .* 4000: .*--truncate-source"
        ):
            type_in(trained, documents, long)
        cut = ["--truncate-source"]
    else:
        cut = []  # the checkpoint stores the flag
    for limit in (LIMIT, 1500):
        shorter = [*cut, "--max-source-positions", str(limit)] if limit < LIMIT else cut
        by_hand = [" ".join(text.split()[: limit - 1]) for text in long]
        found = hypotheses(type_in(trained, documents, long, *shorter))
        assert found == hypotheses(type_in(trained, documents, by_hand))
    assert len(hypotheses(decode(trained, documents, "--gen-subset", "valid", *cut))) == 3
