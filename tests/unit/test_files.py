"""Files are written as a whole or not at all."""

from pathlib import Path

import pytest

from fairseq_recur.files import whole_file


def test_the_new_file_takes_the_place_of_the_old(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.pt"
    for content in (b"old and long", b"new"):
        with whole_file(path) as file:
            file.write(content)
        assert path.read_bytes() == content
    assert [p.name for p in path.parent.iterdir()] == ["a.pt"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_after_an_error_the_old_file_is_there(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(b"old")
    with pytest.raises(type(error)), whole_file(path) as file:
        file.write(b"half")
        file.flush()
        assert path.read_bytes() == b"old"
        raise error
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["a.pt"]


def test_what_a_kill_has_left_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    (tmp_path / "a.pt.tmp").write_bytes(b"half, and longer than what comes")
    with whole_file(path) as file:
        file.write(b"whole")
    assert path.read_bytes() == b"whole" and [p.name for p in tmp_path.iterdir()] == ["a.pt"]
