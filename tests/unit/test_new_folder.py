"""`convert` and `export` write a folder completely or not at all."""

import errno
import fcntl
import io
import multiprocessing
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_recur.cli import main
from fairseq_recur.cli.new_folder import new_folder, whole_or_nothing
from fairseq_recur.compat.checkpoint_writing import whole_checkpoint
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
    killed, own = unfinished_name(target), tmp_path / "model.pt.tmp"
    for folder in (killed, own):
        folder.mkdir()
        (folder / "half").touch()
    with pytest.raises(ConfigError, match="model.pt was made by another process in the meantime"):
        with whole_or_nothing(target) as alive:
            (alive / "half").touch()
            fill(target)
            assert (target / "a").exists() and not killed.exists()
            assert (alive / "half").exists() and (own / "half").exists()
    assert sorted(tmp_path.iterdir()) == [target, own] and [*target.iterdir()] == [target / "a"]


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


@pytest.mark.parametrize("place, name", [(Path, "mkdir"), (os, "open"), (fcntl, "flock")])
def test_a_new_folder_is_nobodys_leftover(
    place: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process looks for leftovers when this one has a folder, but no lock yet."""
    target, call, made = tmp_path / "model.pt", getattr(place, name), []

    def after_others(*given: Any, **options: Any) -> Any:
        found = call(*given, **options)
        if not made and (unfinished := [*tmp_path.glob("model.pt.*")]):
            made.extend(unfinished)
            with pytest.raises(ZeroDivisionError), whole_or_nothing(target):
                raise ZeroDivisionError
        return found

    monkeypatch.setattr(place, name, after_others)
    fill(target)
    assert (target / "a").read_text() == "whole" and [*tmp_path.iterdir()] == [target]
    assert len(made) == 1


def test_of_two_processes_one_makes_the_folder(tmp_path: Path) -> None:
    def write(number: int, target: Path, start: Any, answers: Any) -> None:
        start.wait(60)
        try:
            with whole_or_nothing(target) as folder:
                for name in "ab":
                    (folder / name).write_text(str(number))
            answers.put("whole")
        except Exception as error:
            answers.put(f"{type(error).__name__}: {error}")

    fork = multiprocessing.get_context("fork")
    for attempt in range(5):
        target = tmp_path / str(attempt) / "new"
        start, answers = fork.Barrier(2), fork.Queue()
        writers = [
            fork.Process(target=write, args=(number, target, start, answers), daemon=True)
            for number in (1, 2)
        ]
        for writer in writers:
            writer.start()
        refused, whole = sorted(answers.get(timeout=60) for _ in writers)
        for writer in writers:
            writer.join(60)
        assert whole == "whole" and refused == (
            f"ConfigError: --output {target} was made by another process in the meantime; give "
            "another name"
        )
        assert len({(target / name).read_text() for name in "ab"}) == 1
        assert [*target.parent.iterdir()] == [target]


def test_an_unreadable_input_is_named(tmp_path: Path) -> None:
    """As the system names it; the disk of the output has nothing to do with it."""
    lost, other = tmp_path / "lost", tmp_path / "new2" / "lost"
    for file in (lost, other):
        with pytest.raises(FileNotFoundError) as raised, whole_or_nothing(tmp_path / "new"):
            file.read_bytes()
        assert raised.value.filename == str(file)
    with pytest.raises(FileNotFoundError), whole_or_nothing(tmp_path / "new"):
        shutil.copyfile(lost, other)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_is_named_with_its_reason(tmp_path: Path) -> None:
    target, source = tmp_path / "new", tmp_path / "source"
    source.touch()
    what = "new could not be written"
    with pytest.raises(CheckpointError, match=f"{what} .NotADir.*intact: expected a folder; give"):
        with whole_or_nothing(target) as folder:
            (folder / "a").touch()
            (folder / "a" / "b").touch()
    with pytest.raises(CheckpointError, match=f"{what} .OSError.*look at its disk, and at that of"):
        with whole_or_nothing(target):
            raise OSError(errno.EIO, "Input/output error")
    with pytest.raises(CheckpointError, match=f"{what} .OSError.*GB left.*free some space"):
        with whole_or_nothing(target) as folder:  # as shutil names a copy's files
            raise OSError(errno.ENOSPC, "No space", str(source), None, str(folder / "source"))
    with pytest.raises(CheckpointError, match="file/a could not be written .*expected a f"):
        with whole_checkpoint(str(tmp_path / "source" / "file" / "a")):
            pass


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
