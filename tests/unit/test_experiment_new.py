"""`experiment new`: what is wrong with its paths, the title, and shared embeddings."""

from pathlib import Path

import pytest
import yaml

from fairseq_recur.cli import main
from fairseq_recur.experiments.settings import arguments


def test_paths_of_another_kind_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    command = "experiment new new.yaml -s de -t en".split()
    wrong = "--data file --reference folder --sentencepiece-model folder/none".split()
    assert main([*command, *wrong]) == 2
    said = capsys.readouterr().err
    for problem in ("no folder file", "no file folder", "no file folder/none"):
        assert f"- {problem}; give one that exists\n" in said
    assert not (tmp_path / "new.yaml").exists()


def test_a_system_given_twice_is_one_in_the_title(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("text", "dict.de.txt", "dict.en.txt"):
        (tmp_path / name).touch()
    command = "experiment new new.yaml -s de -t en --data . --reference text --system"
    assert main([*command.split(), "srformer", "srformer"]) == 0
    written = yaml.safe_load((tmp_path / "new.yaml").read_text())
    assert written["title"] == "srformer and the Transformer"


@pytest.mark.parametrize("scratch", [False, True])
def test_matrices_begin_nearly_closed_in_a_trained_model(
    scratch: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("text", "dict.de.txt", "dict.en.txt"):
        (tmp_path / name).touch()
    command = "experiment new new.yaml -s de -t en --data . --reference text".split()
    command += ["--from-scratch"] * scratch + ["--system", "rsa_transformer"]
    assert main(command) == 0
    written = yaml.safe_load((tmp_path / "new.yaml").read_text())
    flags = written["systems"]["rsa_transformer"]["flags"]
    assert flags.get("rsa-gate-init") == (None if scratch else -3)
    assert arguments(flags)[2:] == ([] if scratch else ["--rsa-gate-init", "-3"])


def test_embeddings_are_shared_if_the_dictionaries_are_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").touch()
    (tmp_path / "dict.en.txt").write_text("the 1\n")
    command = "experiment new new.yaml -s en -t de --data . --reference text".split()
    assert main(command) == 2
    assert "- no file dict.de.txt; check -s and -t" in capsys.readouterr().err
    for words, shared in (("das 1\n", False), ("the 1\n", True)):
        (tmp_path / "dict.de.txt").write_text(words)
        assert main(command) == 0
        train = yaml.safe_load((tmp_path / "new.yaml").read_text())["train"]
        assert ("share-all-embeddings" in train) is shared
        (tmp_path / "new.yaml").unlink()
