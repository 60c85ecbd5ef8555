"""Invalid input gets one clear error; unusual lines get what fairseq's users expect."""

import shutil
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_recur.cli import main, preflight
from fairseq_recur.errors import CheckpointError, ConfigError
from tests.conftest import SMALL, TRAIN
from tests.running import SHORT, USER_DIR, generate, hypotheses

Cli = Callable[..., str]
Trained = Callable[[str], Path]


@pytest.fixture
def train(cli: Cli, corpus: Path, tmp_path: Path) -> Callable[..., str]:
    """Train one update; nothing may have been saved when it fails."""

    def run(*flags: Any, data: Any = corpus / "bin", arch: str = "transformer_biarn") -> str:
        return cli(
            "train", data, "--user-dir", USER_DIR, "--arch", arch, *SMALL, *TRAIN,
            "--max-update", 1, "--save-dir", tmp_path / "save", *flags,
        )  # fmt: skip

    return run


def nothing_saved(tmp_path: Path) -> bool:
    return not list(tmp_path.rglob("save/*.pt"))


def test_conflicting_options_are_listed_at_once(train: Callable[..., str], tmp_path: Path) -> None:
    """Each alone is in tests/unit/test_config.py."""
    flags = (
        "--recurrence-steps 0 --recurrence-fused-layers 7 --encoder-attention-heads 3 "
        "--recurrence-gate scalar --no-token-positional-embeddings --recurrence-positions"
    )
    problems = [
        "--recurrence-steps 0: expected at least 1",
        "--recurrence-fused-layers 7: the decoder has 2 layers",
        "--encoder-embed-dim 16 cannot be split evenly among --encoder-attention-heads 3",
        "--recurrence-gate scalar has no effect: it needs --recurrence-fusion gated_sum",
        "--recurrence-positions needs position embeddings, which "
        "--no-token-positional-embeddings removes",
    ]
    with pytest.raises(ConfigError) as error:
        train(*flags.split())
    message = str(error.value)
    assert all(problem in message for problem in problems), message
    assert message.count("\n- ") == len(problems), message
    assert nothing_saved(tmp_path)


@pytest.mark.parametrize(
    "how", ["--restore-file", pytest.param("--finetune-from-model", marks=pytest.mark.slow)]
)
def test_checkpoint_of_another_architecture(
    how: str, train: Callable[..., str], corpus: Path, trained: Trained, tmp_path: Path
) -> None:
    """Other sizes, and a plug-in checkpoint for the stock model's structure: resume, finetune."""
    checkpoint = trained("transformer_biarn") / "checkpoint_last.pt"
    with pytest.raises(CheckpointError, match="to another architecture: give the --arch") as error:
        train(how, checkpoint, "--encoder-embed-dim", 24, "--encoder-ffn-embed-dim", 32)
    assert "is (16, 48)" in str(error.value) or "in the checkpoint and" in str(error.value)
    with pytest.raises(CheckpointError, match="the model does not have .*fusion"):
        train(how, checkpoint, "--recurrence", "none")
    assert nothing_saved(tmp_path)


@pytest.fixture
def other_data(corpus: Path, tmp_path: Path) -> Path:
    """The corpus with a dictionary that has three words fewer."""
    folder = tmp_path / "other"
    shutil.copytree(corpus / "bin", folder)
    for side in ("src", "tgt"):
        file = folder / f"dict.{side}.txt"
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:-3]))
    return folder


def test_dictionary_that_does_not_fit(
    train: Callable[..., str], cli: Cli, other_data: Path, trained: Trained, tmp_path: Path
) -> None:
    checkpoint = trained("transformer_biarn") / "checkpoint_last.pt"
    said = "its vocabulary has another size.*--srcdict"
    with pytest.raises(CheckpointError, match=said):
        generate(other_data, checkpoint)
    with pytest.raises(CheckpointError, match=said):
        cli(
            "interactive", other_data, "--user-dir", USER_DIR, "--path", checkpoint, "--cpu",
            stdin="w1\n",
        )  # fmt: skip
    with pytest.raises(CheckpointError, match=said):
        train("--restore-file", checkpoint, data=other_data)
    assert nothing_saved(tmp_path)


def test_dictionary_with_other_words(
    train: Callable[..., str], cli: Cli, corpus: Path, trained: Trained, tmp_path: Path
) -> None:
    """As many words, but others: all would be translated, into nonsense."""
    checkpoint = trained("transformer_biarn") / "checkpoint_last.pt"
    shutil.copytree(corpus / "bin", other := tmp_path / "other")
    file = other / "dict.tgt.txt"
    first, *rest = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*rest, first]))
    said = "the target dictionary has other words, or another order of them"
    with pytest.raises(ConfigError, match=f"{said}.*: give the data that were prepared"):
        generate(other, checkpoint)
    with pytest.raises(ConfigError, match=f"checkpoint_last.pt: {said}"):
        train("--restore-file", checkpoint, data=other)
    assert nothing_saved(tmp_path)
    warned = "so its embeddings belong to other words"
    assert warned in train("--finetune-from-model", checkpoint, data=other)
    generate(other, tmp_path / "save" / "checkpoint_last.pt")
    # The numbers in a dictionary tell nothing of its order, and older checkpoints nothing at all.
    file.write_text("".join(f"{line.split()[0]} 1\n" for line in [first, *rest]))
    generate(other, checkpoint)
    state = torch.load(checkpoint, weights_only=True)
    assert state["task_state"].pop("dictionaries").keys() == {"source", "target"}
    torch.save(state, old := tmp_path / "old.pt")
    file.write_text("".join([*rest, first]))
    generate(other, old)


def test_a_failed_training_is_not_continued(
    train: Callable[..., str], trained: Trained, tmp_path: Path
) -> None:
    state = torch.load(trained("transformer_biarn") / "checkpoint_last.pt", weights_only=True)
    state["model"]["decoder.layers.0.fc1.weight"][1, 2] = float("nan")
    torch.save(state, failed := tmp_path / "failed.pt")
    for flag in ("--restore-file", "--finetune-from-model"):
        with pytest.raises(CheckpointError, match="decoder.layers.0.fc1.weight has NaN values"):
            train(flag, failed)
    assert nothing_saved(tmp_path)


def test_another_optimizer_or_schedule_at_a_resume(
    train: Callable[..., str], tmp_path: Path
) -> None:
    train("--optimizer", "adam", "--lr-scheduler", "fixed")
    before = (tmp_path / "save" / "checkpoint_last.pt").read_bytes()
    alignment = "label_smoothed_cross_entropy_with_alignment"
    for flags, said in (
        (["--optimizer", "sgd"], "another optimizer, FairseqAdam, now SGD: .*--reset-optimizer"),
        (["--criterion", alignment], "another criterion, .*--reset-optimizer"),
        (["--lr-scheduler", "inverse_sqrt"], "another --lr-scheduler: .*--reset-lr-scheduler"),
        (["--lr-scheduler", "reduce_lr_on_plateau"], "another --lr-scheduler"),
    ):
        first = "--optimizer adam --lr-scheduler fixed --max-update 2".split()
        with pytest.raises(ConfigError, match=said):
            train(*first, *flags)
        assert (tmp_path / "save" / "checkpoint_last.pt").read_bytes() == before


def test_a_metric_that_no_validation_computes(train: Callable[..., str]) -> None:
    said = "--best-checkpoint-metric acuracy: the validation has no such value; it has bsz, loss,"
    with pytest.raises(ConfigError, match=said):
        train("--best-checkpoint-metric", "acuracy", "--max-update", 1)


def test_missing_data_folder(train: Callable[..., str], trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no-such-folder"):  # fairseq's own
        train(data=tmp_path / "no-such-folder")
    checkpoint = trained("transformer_biarn") / "checkpoint_last.pt"
    with pytest.raises(FileNotFoundError, match="no-such-folder"):
        generate(tmp_path / "no-such-folder", checkpoint)
    assert nothing_saved(tmp_path)


def test_missing_checkpoint_to_start_from(train: Callable[..., str], tmp_path: Path) -> None:
    with pytest.raises((CheckpointError, ValueError), match="no-such.pt"):
        train("--finetune-from-model", tmp_path / "no-such.pt")
    assert nothing_saved(tmp_path)


def test_a_file_to_restore_that_is_missing(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """fairseq would start from random weights; in the folder of the training it is the last one."""
    words = [str(corpus / "bin"), *SMALL, *TRAIN, "--arch", "transformer_biarn_tiny", "--save-dir"]
    words += [str(tmp_path / "save"), "--restore-file"]
    assert main(["train", *words, str(tmp_path / "modle.pt")]) == 2
    assert f"--restore-file {tmp_path}/modle.pt: no such file in" in capsys.readouterr().err
    parsed = partial(Namespace, save_dir=str(tmp_path / "save"))
    for file in ("checkpoint_last.pt", "none", str(tmp_path / "save" / "checkpoint_last.pt")):
        assert preflight.restored(parsed(restore_file=file)) is None
    assert preflight.restored(parsed(restore_file="bart/model.pt")) == "bart/model.pt"


@pytest.fixture(scope="module")
def strange(cli: Cli, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five lines: ordinary, empty, longer than any position table, unknown words, ordinary."""
    folder = tmp_path_factory.mktemp("strange")
    lines = ["w1 w2 w3", "", " ".join(["w4"] * 2000), "neverseen", "w5"]
    (folder / "test.src").write_text("\n".join(lines) + "\n")
    (folder / "test.tgt").write_text("\n".join(["w1"] * 5) + "\n")
    cli(
        "preprocess", "--source-lang", "src", "--target-lang", "tgt", "--testpref",
        folder / "test", "--srcdict", corpus / "bin" / "dict.src.txt", "--tgtdict",
        corpus / "bin" / "dict.tgt.txt", "--destdir", folder / "bin",
    )  # fmt: skip
    return folder


@pytest.mark.slow_presets
def test_empty_line(preset: str, cli: Cli, corpus: Path, trained: Trained) -> None:
    """It has a hypothesis whose score is a number, and does not change its neighbours."""
    flags = [
        "interactive", corpus / "bin", "--user-dir", USER_DIR, "--cpu", *SHORT,
        "--path", trained(preset) / "checkpoint_last.pt",
    ]  # fmt: skip
    lines = "w1 w2 w3\n\nw5\n"
    found = hypotheses(cli(*flags, "--buffer-size", 3, "--batch-size", 3, stdin=lines))
    alone = hypotheses(cli(*flags, stdin=lines))
    assert list(found) == list(alone) == [0, 1, 2]
    for number in alone:
        assert found[number][0].words == alone[number][0].words
        assert found[number][0].score == pytest.approx(alone[number][0].score, abs=1e-5)


def test_too_long_line_is_an_error(strange: Path, trained: Trained) -> None:
    with pytest.raises(Exception, match="Size of sample .* is invalid"):
        generate(strange / "bin", trained("transformer_biarn") / "checkpoint_last.pt")


@pytest.mark.slow_presets
def test_too_long_line_is_truncated_or_skipped_on_demand(
    preset: str, cli: Cli, corpus: Path, strange: Path, trained: Trained
) -> None:
    checkpoint = trained(preset) / "checkpoint_last.pt"
    whole = ["--required-batch-size-multiple", 1]
    skipped = generate(strange / "bin", checkpoint, "--skip-invalid-size-inputs-valid-test", *whole)
    assert sorted(hypotheses(skipped)) == [0, 1, 3, 4]
    truncated = hypotheses(generate(strange / "bin", checkpoint, "--truncate-source", *whole))
    assert sorted(truncated) == [0, 1, 2, 3, 4]
    interactive = cli(
        "interactive", corpus / "bin", "--user-dir", USER_DIR, "--cpu", "--path", checkpoint,
        *SHORT, "--truncate-source", "--buffer-size", 5, "--batch-size", 5,
        stdin=(strange / "test.src").read_text(),
    )  # fmt: skip
    found = hypotheses(interactive)
    assert list(found) == [0, 1, 2, 3, 4]
    assert [h[0].words for h in found.values()] == [truncated[i][0].words for i in range(5)]
