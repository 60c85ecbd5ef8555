"""The evaluation of a recipe's training: its commands, and what is repeated."""

import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from recipes import summarization, translation
from recipes.evaluation import Evaluation, decode, score

from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments import runner
from tests.docs.commands import parse

PROGRAM = """
import pathlib, sys
words = sys.argv[1:]
if words[0] == "average":
    pathlib.Path(words[words.index("--output") + 1]).write_text("average")
else:
    for number in range(2):
        print(f"H-{number}\\t-0.5\\ta\\nD-{number}\\t-0.5\\tein Satz")
if "--fail" in words:
    sys.exit("out of memory")
"""


def calls(text: str) -> list[str]:
    """The steps that the runner has started."""
    return [line.rpartition(": ")[2] for line in text.splitlines() if line.endswith(("ge", "te"))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a training; fairseq-recur is replaced by a small program."""
    monkeypatch.setattr(runner, "PROGRAM", [sys.executable, "-c", PROGRAM])
    monkeypatch.setattr(runner, "POLL", 0.01)
    found = tmp_path / "runs" / "biarn" / "seed1"
    found.mkdir(parents=True)
    (found / "checkpoint_1_2.pt").touch()
    return found


def test_steps_are_done_once_for_each_checkpoint(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation = Evaluation(folder, ["--last", "5"], "average.pt", ["data", "--beam", "4"])
    assert decode(evaluation).read_text().startswith("H-0\t")
    assert calls(capsys.readouterr().out) == ["average", "generate"]
    decode(evaluation)
    assert calls(capsys.readouterr().out) == []
    decode(Evaluation(folder, ["--last", "5"], "average.pt", ["data", "--beam", "5"]))
    assert calls(capsys.readouterr().out) == ["generate"]
    os.utime(folder / "checkpoint_1_2.pt", (1, 1))  # the training has gone on
    decode(evaluation)
    assert calls(capsys.readouterr().out) == ["average", "generate"]
    with pytest.raises(ConfigError, match="is not evaluated"):
        decode(Evaluation(folder, [], "checkpoint_best.pt", ["data", "--fail"]))
    assert "out of memory" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="not trained; run train.sh first"):
        decode(Evaluation(folder / "none", [], "checkpoint_best.pt", []))


def test_output_that_was_removed_is_made_again(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation = Evaluation(folder, ["--last", "5"], "average.pt", ["data"])
    for lost, again in (("generate.out", ["generate"]), ("average.pt", ["average", "generate"])):
        decode(evaluation)
        (folder / lost).unlink()
        capsys.readouterr()
        assert decode(evaluation).is_file() and (folder / "average.pt").is_file()
        assert calls(capsys.readouterr().out) == again


def test_a_baseline_of_another_search_is_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The flags of the machine are no other search."""
    other = tmp_path / "runs" / "baseline"
    other.mkdir()
    (other / "checkpoint_best.pt").touch()
    decode(Evaluation(other, [], "checkpoint_best.pt", ["data", "--beam", "4", "--cpu"]))
    (other / "test.txt").touch()
    flags = ["data", "--max-tokens=9", "--beam", "4", "--num-workers", "2", "--max-tokens", "99"]
    same = Evaluation(folder, ["--last", "5"], "average.pt", flags)
    decode(same, other)
    assert capsys.readouterr().err == ""
    decode(Evaluation(folder, ["--last", "5"], "average.pt", ["data", "--beam", "1"]), other)
    assert capsys.readouterr().err == (
        f"warning: BASELINE={other} was decoded with other flags, so the difference is not that of "
        "the models alone: --beam 4; here --beam 1\n"
    )


def test_data_that_were_prepared_anew_are_decoded_again(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their folder keeps its name, but its key changes."""
    data = tmp_path / "data-bin"
    data.mkdir()
    (data / ".key").write_text("first")
    evaluation = Evaluation(folder, ["--last", "5"], "average.pt", [str(data)])
    decode(evaluation)
    (data / ".key").write_text("second")
    capsys.readouterr()
    decode(evaluation)
    assert calls(capsys.readouterr().out) == ["generate"]


def test_data_that_a_training_did_not_see_are_refused(folder: Path, tmp_path: Path) -> None:
    """Also those of the baseline; dictionaries of one size would not show it."""
    data, baseline = tmp_path / "data-bin", tmp_path / "runs" / "baseline"
    data.mkdir(), baseline.mkdir()
    (data / ".key").write_text("first")
    (baseline / "test.txt").touch()
    evaluation = Evaluation(folder, ["--last", "5"], "average.pt", [str(data)])
    for trained in (folder, baseline):
        (trained / "settings").write_text("first --arch transformer --dropout 0.1\n")
    decode(evaluation, baseline)
    for other in (baseline, folder):
        (other / "settings").write_text("second --arch transformer\n")
        with pytest.raises(ConfigError, match=f"{other} was trained with other data than are now"):
            decode(evaluation, baseline)


def test_a_baseline_has_the_same_references(folder: Path, tmp_path: Path) -> None:
    baseline, references = tmp_path / "baseline", tmp_path / "references"
    baseline.mkdir()
    for name in (baseline / "test.txt", folder / "test.txt", references):
        name.write_text("ein Satz\nnoch ein Satz\n")
    score(baseline, "baseline", references, ("--metrics", "bleu"), None)
    score(folder, "biarn", references, ("--metrics", "bleu"), baseline)
    references.write_text("ein Satz\nund noch einer\n")
    with pytest.raises(ConfigError, match="was evaluated with other references"):
        score(folder, "biarn", references, ("--metrics", "bleu"), baseline)


def test_a_training_is_evaluated_as_what_it_was_trained_as(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """RUN does not tell the settings, with which the results would be labelled."""
    xsum = Path(__file__).parents[2] / "examples" / "summarization" / "xsum"
    trained = tmp_path / "gpt2-1024-128/runs/srformer_bart_base-x"
    trained.mkdir(parents=True)
    (trained / "choices").write_text("SETTINGS=paper START=bart.base\n")
    words = ["evaluate", "--recipe", str(xsum), "--work-dir", str(tmp_path)]
    assert summarization.main([*words, "--run", "srformer_bart_base-x"]) == 2
    said = capsys.readouterr().err
    assert "was trained with SETTINGS=paper START=bart.base, not with SETTINGS=fairseq" in said


@pytest.mark.parametrize("recipe", [translation, summarization])
def test_a_signal_stops_an_evaluation_with_one_line(
    recipe: ModuleType, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    interrupted = "import os, signal, time; os.kill(os.getppid(), signal.SIGINT); time.sleep(60)"
    monkeypatch.setattr(runner, "PROGRAM", [sys.executable, "-c", interrupted])
    words = [str(folder), "data", "--languages", "en", "de", "--average", "5", "--reference", "x"]
    if recipe is summarization:
        xsum = Path(__file__).parents[2] / "examples" / "summarization" / "xsum"
        words = ["--recipe", str(xsum), "--work-dir", str(tmp_path)]
        trained = tmp_path / "gpt2-1024-128/runs/srformer_bart_base-fairseq-seed1"
        trained.mkdir(parents=True)
    assert recipe.main(["evaluate", *words]) == 130
    assert capsys.readouterr().err == "\nstopped by SIGINT; the same command continues from here\n"


@pytest.mark.parametrize("recipe", [translation, summarization])
def test_ctrl_c_stops_a_preparation_with_one_line(
    recipe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    read = "read_recipe" if recipe is translation else "read_data_set"
    monkeypatch.setattr(recipe, read, interrupted)
    words = [str(tmp_path)]
    if recipe is summarization:
        words = ["--recipe", str(tmp_path), "--work-dir", str(tmp_path)]
    assert recipe.main(["prepare", *words]) == 130
    assert capsys.readouterr().err == "\nstopped by SIGINT; the same command continues from here\n"


def test_a_translation_is_scored_and_compared(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reference, baseline = folder / "text.de", folder.parent / "other"
    reference.write_text("ein Satz\nnoch ein Satz\n")
    given = [
        "evaluate", str(folder), "data", "--languages", "en", "de", "--average", "5",
        "--reference", str(reference), "--baseline", str(baseline),
        "--flags", "--bpe", "subword_nmt", "--bpe-codes", "codes", "--lenpen", "1",
    ]  # fmt: skip
    assert translation.main(given) == 2
    assert f"BASELINE={baseline}: no test.txt there" in capsys.readouterr().err
    baseline.mkdir()
    (baseline / "test.txt").write_text("Satz\nein\n")
    assert translation.main(given) == 0
    assert "(not comparable with the scores above) BLEU of Moses's" in capsys.readouterr().out
    assert (folder / "test.txt").read_text() == "ein Satz\nein Satz\n"
    state = json.loads((folder / "state.json").read_text())
    for step in ("average", "generate"):
        words = [word for word in state[step]["key"] if " " not in word]
        parse(["fairseq-recur", *words])
    assert words[words.index("--beam") + 1] == "4" and words[-4:-2] == ["--lenpen", "1"]
    assert "tok:13a" in (folder / "scores.json").read_text()
    assert "chrF2" in (folder / "compared.json").read_text()
