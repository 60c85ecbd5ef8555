"""`fairseq-recur probe` from the command line: building tasks, probing models, errors."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fairseq_recur.cli import main, probe_run
from fairseq_recur.experiments.machine import commit, machine, versions
from fairseq_recur.probing.report import BAG_OF_WORDS, MAJORITY
from tests.conftest import SMALL, TRAIN
from tests.running import USER_DIR
from tests.unit.test_cli_main import root_logger  # noqa: F401  (used by every test)

WORDS = [a + b + c for a in ("ba", "de", "ki") for b in ("lo", "mu") for c in ("r", "s", "t", "n")]
SIZES = ["--sizes", "60", "12", "12", "--words", "4"]
pytestmark = pytest.mark.slow  # its parts are tested in tests/unit/test_probing.py

FAST = "--l2 1e-5 --max-epochs 8 --hidden 8 --runs 2 --cpu".split()


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, cli: Callable[..., str]) -> Path:
    """A text, its binary data, two models after one update (BiARN and fairseq's), and tasks."""
    folder = tmp_path_factory.mktemp("probe")
    rng = random.Random(1)
    weights = [1 / (i + 1) for i in range(len(WORDS))]
    lines = [" ".join(rng.choices(WORDS, weights, k=rng.randint(5, 28))) for _ in range(700)]
    for side in ("src", "tgt"):
        (folder / f"train.{side}").write_text("\n".join(lines) + "\n")
    cli(
        "preprocess", "--source-lang", "src", "--target-lang", "tgt", "--joined-dictionary",
        "--trainpref", folder / "train", "--validpref", folder / "train",
        "--destdir", folder / "bin",
    )  # fmt: skip
    for arch in ("transformer_biarn", "transformer"):
        cli(
            "train", folder / "bin", "--user-dir", USER_DIR, "--arch", arch, *SMALL, *TRAIN,
            "--max-update", 1, "--disable-validation", "--save-dir", folder / arch,
        )  # fmt: skip
    assert make(folder / "train.src", folder / "tasks", *SIZES) == 0
    return folder


def make(corpus: Path, output: Path, *flags: str) -> int:
    return main(["probe", "make", str(corpus), "--output", str(output), *flags])


def paths(work: Path) -> dict[str, str]:
    names = {"biarn": "transformer_biarn", "base": "transformer"}
    return {name: str(work / arch / "checkpoint_last.pt") for name, arch in names.items()}


def probe(work: Path, *flags: object, tasks: str = "tasks") -> list[str]:
    """Return the arguments that probe both models."""
    models = [f"{name}={path}" for name, path in paths(work).items()]
    return ["probe", "run", str(work / tasks), "--data", str(work / "bin"),
            "--path", *models, *FAST, *map(str, flags)]  # fmt: skip


def test_make_reports_what_it_made(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert make(work / "train.src", tmp_path / "new", *SIZES, "--tasks", "WordContent") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith(f"{work / 'train.src'}: 700 lines, ")
    file = tmp_path / "new" / "word_content.txt"
    counts = "4 labels; sentences: train 60, valid 12, test 12"
    assert printed[1:] == [f"{file}: WordContent, {counts}"]
    assert file.read_bytes() == (work / "tasks" / "word_content.txt").read_bytes()
    assert [line.split("\t")[0] for line in file.read_text().splitlines()] == (
        ["tr"] * 60 + ["va"] * 12 + ["te"] * 12
    )


def test_run_prints_and_writes_the_table(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    files = ["--json", tmp_path / "out.json", "--markdown", tmp_path / "out.md"]
    found_by_itself = [x for x in probe(work, *files) if x not in ("--data", str(work / "bin"))]
    assert main(found_by_itself) == 0
    table = capsys.readouterr().out.splitlines()
    report = json.loads((tmp_path / "out.json").read_text())
    assert table[0].split() == ["system", "encoders", "SeLen", "WC", "BShif"]
    assert [line.split("  ")[0] for line in table[2:6]] == [MAJORITY, BAG_OF_WORDS, "biarn", "base"]
    assert [line.split()[1] for line in table[4:6]] == ["gate", "transformer"]
    assert "over 2 seeds" in table[7]
    rows = {(row["system"], row["task"]): row for row in report["rows"]}
    assert len(rows) == len(report["rows"]) == 4 * 3
    for (system, task), row in rows.items():
        accuracies = [100 * run["test"] for run in row["runs"]]
        column = ["Length", "WordContent", "BigramShift"].index(task)
        shown = f"{row['mean']:.2f}" + (f" ± {row['spread']:.2f}" if accuracies else "")
        line = next(line for line in table if line.startswith(system))
        assert line.count(shown) >= 1 and shown in (tmp_path / "out.md").read_text()
        if accuracies:
            assert row["mean"] == pytest.approx(sum(accuracies) / 2)
            assert [run["seed"] for run in row["runs"]] == [1, 2]
        else:
            assert system == MAJORITY and row["mean"] == pytest.approx([100 / 6, 25, 50][column])
    assert report["checkpoints"] == paths(work)
    assert report["machine"] == machine() and report["versions"] == versions()
    assert report["commit"] == commit() != ""
    assert report["tasks"]["Length"] == {
        "file": "sentence_length.txt", "labels": 6, "train": 60, "valid": 12, "test": 12,
    }  # fmt: skip


def test_equal_seeds_give_equal_results(work: Path, tmp_path: Path) -> None:
    rows = []
    for name in ("a", "b"):
        flags = ["--tasks", "Length", "--combine", "concat", "--json", tmp_path / name]
        assert main(probe(work, *flags)) == 0
        rows.append(json.loads((tmp_path / name).read_text())["rows"])
    assert rows[0] == rows[1]
    assert [row["combine"] for row in rows[0]] == ["", "", "concat", "transformer"]


def test_combining_only_the_recurrence(work: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(probe(work, "--tasks", "Length", "--combine", "recurrence")) == 2
    assert "base has no recurrence encoder" in capsys.readouterr().err
    biarn = ["--path", f"biarn={paths(work)['biarn']}"]
    assert main(probe(work, "--tasks", "Length", "--combine", "recurrence", *biarn)) == 0
    assert "recurrence" in capsys.readouterr().out


def error(arguments: list[str], capsys: pytest.CaptureFixture) -> str:
    assert main(arguments) == 2
    return capsys.readouterr().err


WRONG_RUNS: dict[str, list[str]] = {
    "no file or folder no_model.pt": ["--path", "a=no_model.pt"],
    "--path 'a' occurs twice; give each a different name": [
        "--path",
        "a=torch_file",
        "a=torch_file",
    ],
    "--path 'a=': expected NAME=FILE": ["--path", "a="],
    "has no past_present.txt; it has bigram_shift.txt": ["--tasks", "Tense"],
    "codes: no such file": ["--bpe", "subword_nmt", "--bpe-codes", "codes"],
    "--runs 0: expected 1 to 1000": ["--runs", "0"],
    "--dropout 1.0: expected 0 to 1": ["--dropout", "1"],
    "cannot write no/out: no folder no; create it first": ["--json", "no/out"],
    "probe run cannot be used:.*--hidden -1.*--l2 -1.0": ["--hidden", "-1", "--l2", "-1"],
}


@pytest.mark.parametrize("message", WRONG_RUNS)
def test_invalid_runs_are_refused_at_once(
    work: Path, message: str, tmp_path: Path, capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "torch_file").write_text("no checkpoint")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(probe_run, "load_encoder", None)
    capsys.readouterr()
    printed = error(probe(work, *WRONG_RUNS[message]), capsys)
    assert re.search(message, printed.replace("\n", " ")), printed


def test_invalid_files_and_folders(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert "no such folder" in error(probe(work, tasks="none"), capsys)
    data = ["--data", str(tmp_path)]
    assert "no dict.src.txt and dict.tgt.txt in" in error([*probe(work), *data], capsys)
    (tmp_path / "torch_file").write_text("no checkpoint")
    path = ["--path", f"a={tmp_path / 'torch_file'}"]
    said = "torch_file: 13 bytes that are not a PyTorch checkpoint"
    assert said in error([*probe(work), *path], capsys)
    bad = work / "bad"
    bad.mkdir(exist_ok=True)
    text = (work / "tasks" / "word_content.txt").read_text()
    (bad / "word_content.txt").write_text(text + "te\tnever\tbalor\n")
    assert "word_content.txt, line 85: the label 'never'" in error(probe(work, tasks="bad"), capsys)
    long = " ".join(["balor"] * 1024)
    (bad / "word_content.txt").write_text(f"{text}te\t{text.split()[1]}\t{long}\n")
    printed = error(probe(work, tasks="bad"), capsys)
    assert "WordContent, biarn: a sentence has 1025 subwords" in printed
    assert "at most 1024" in printed


def test_models_that_cannot_be_probed(
    work: Path, tmp_path: Path, cli: Callable[..., str], capsys: pytest.CaptureFixture
) -> None:
    """Models with other dictionaries, and a model without an encoder."""
    cli("preprocess", "--only-source", "--trainpref", work / "train.src", "--validpref",
        work / "train.src", "--destdir", tmp_path / "lm")  # fmt: skip
    small = "--decoder-embed-dim 16 --decoder-ffn-embed-dim 24 --decoder-layers 1".split()
    cli("train", tmp_path / "lm", "--user-dir", USER_DIR, "--task", "language_modeling", "--arch",
        "rsa_transformer_lm", *small, "--decoder-attention-heads", 2, *TRAIN, "--max-update", 1,
        "--disable-validation", "--tokens-per-sample", 16, "--save-dir", tmp_path)  # fmt: skip
    other = tmp_path / "other"
    other.mkdir()
    for side in ("src", "tgt"):
        (other / f"dict.{side}.txt").write_text("balor 1\nbalos 1\n")
    capsys.readouterr()
    for name, data, message in (
        (tmp_path / "checkpoint_last.pt", tmp_path / "lm", "of --task language_modeling, expected"),
        (paths(work)["base"], other, "dictionaries in"),
        (paths(work)["biarn"], other, "its vocabulary has another size"),
    ):
        printed = error(probe(work, "--path", name, "--data", data), capsys)
        assert printed.count("error:") == 1 and message in printed


def test_unknown_words_cause_a_warning(work: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = work / "unknown"
    folder.mkdir(exist_ok=True)
    lines = [f"{split}\t{label}\tnone known" for split in ("tr", "va", "te") for label in "ab"]
    (folder / "odd_man_out.txt").write_text("\n".join(lines) + "\n")
    with caplog.at_level("WARNING"):
        assert main(probe(work, "--runs", 1, tasks="unknown")) == 0
    said = "OddManOut: 66.7% of the subwords are unknown to base; check that --bpe"
    assert said in caplog.text


def test_invalid_corpora_and_plans(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    corpus = work / "train.src"
    capsys.readouterr()
    for flags, message in (
        (["--sizes", "900", "10", "10", "--tasks", "Length"], "is too small: 700 lines"),
        (
            ["--sizes", "60", "5", "12"],
            "--sizes 60 5 12: expected at least 100 each, the number of",
        ),
        (["--bins", "5-9", "9-12"], "--bins: expected each range to begin after the end of the"),
        (["--words", "9", "--tasks", "Length"], "--words 9 has no effect without WordContent"),
        (["--words", "1", "--bins", "5-9"], "at least 2 ranges\n- --words 1: expected at least 2"),
    ):
        assert make(corpus, tmp_path / "new", *flags) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "new").exists()
    assert make(corpus, work / "tasks", *SIZES) == 2
    assert "sentence_length.txt exists already" in capsys.readouterr().err
    assert make(work / "none", tmp_path / "new") == 2
    assert "none: no such file" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        make(corpus, tmp_path / "new", "--bins", "8-5")
    assert "'8-5': expected LOW-HIGH" in capsys.readouterr().err
