"""`convert` and `export` write a folder completely or not at all."""

import io
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_recur.cli import main
from fairseq_recur.cli.new_folder import _locked, new_folder, whole_or_nothing
from fairseq_recur.errors import CheckpointError, ConfigError
from fairseq_recur.files import unfinished_name


def fill(target: Path) -> None:
    """Write a folder with one file."""
    with whole_or_nothing(target) as folder:
        (folder / "a").write_text("whole")


def test_a_link_leads_to_the_folder(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for place in ("empty", "new"):
        link = tmp_path / f"to_{place}"
        link.symlink_to(place)
        fill(new_folder(str(link)))
        assert link.is_symlink() and (tmp_path / place / "a").read_text() == "whole"
        with pytest.raises(ConfigError, match=f"{place} exists already; give another name"):
            new_folder(str(link))


@pytest.mark.parametrize(
    "words", ["convert --input none --output file/x/new", "export --input none --output file/new"]
)
def test_a_file_above_it_is_noticed_before_the_work(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The input does not exist, so it has not been read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert main(words.split()) == 2
    said = f"{tmp_path}/file is not a folder with write permission; give another name"
    assert said in capsys.readouterr().err
    assert new_folder("new/newer/newest") == Path("new/newer/newest")


def test_what_a_kill_has_left_is_removed(tmp_path: Path) -> None:
    target = tmp_path / "model.pt"
    killed, alive = unfinished_name(target), unfinished_name(target)
    own = tmp_path / "model.pt.tmp"
    for folder in (killed, alive, own):
        folder.mkdir()
        (folder / "half").touch()
    with _locked(alive):
        fill(target)
    assert (target / "a").exists() and not killed.exists()
    assert (alive / "half").exists() and (own / "half").exists()


def test_a_finished_folder_is_nobodys_leftover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process looks for leftovers just before this one gives its folder the name."""
    target, rename = tmp_path / "model.pt", os.replace

    def replace(*names: Any) -> None:
        monkeypatch.setattr(os, "replace", rename)
        with whole_or_nothing(tmp_path / "model.pt"):  # removes what a kill has left
            assert Path(names[0]).exists()
        (tmp_path / "model.pt").rmdir()
        rename(*names)

    monkeypatch.setattr(os, "replace", replace)
    fill(target)
    assert (target / "a").read_text() == "whole"


def test_a_full_disk_is_explained_and_a_defect_is_not(tmp_path: Path) -> None:
    class Full(io.BytesIO):
        """A file on a disk that is full after 100 bytes."""

        def write(self, data: Any) -> int:
            if self.tell() > 100:
                raise OSError(28, "No space left on device")
            return super().write(data)

    target = tmp_path / "new"
    with pytest.raises(CheckpointError, match="new could not be written .RuntimeError.* free some"):
        with whole_or_nothing(target):
            torch.save({"a": torch.ones(9999)}, Full())
    with pytest.raises(CheckpointError, match="No space left"):
        with whole_or_nothing(target):
            raise OSError(28, "No space left on device")
    with pytest.raises(RuntimeError, match="^sizes differ$"):
        with whole_or_nothing(target):
            raise RuntimeError("sizes differ")
    with pytest.raises(CheckpointError, match="^damaged$"):
        with whole_or_nothing(target):
            raise CheckpointError("damaged")
    assert list(tmp_path.iterdir()) == []
