"""`experiment new`: what is wrong with its paths, and the title."""

from pathlib import Path

import pytest
import yaml

from fairseq_recur.cli import main


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
    (tmp_path / "text").touch()
    command = "experiment new new.yaml -s de -t en --data . --reference text --system"
    assert main([*command.split(), "srformer", "srformer"]) == 0
    written = yaml.safe_load((tmp_path / "new.yaml").read_text())
    assert written["title"] == "srformer and the Transformer"
