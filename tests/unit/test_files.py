"""Files are written as a whole or not at all."""

import io
import json
import os
import sys
from pathlib import Path

import pytest

from fairseq_recur.cli import main
from fairseq_recur.errors import ConfigError
from fairseq_recur.files import check_outputs, inside, output_problems, whole_file, write_text


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


@pytest.mark.parametrize("left", ["a.pt.tmp", "a.pt.0123abcd.tmp", "a.json.0123abcd.tmp"])
def test_what_a_kill_has_left_is_written_over(tmp_path: Path, left: str) -> None:
    path = tmp_path / ".".join(left.split(".")[:2])
    (tmp_path / left).write_bytes(b"half, and longer than what comes")
    with whole_file(path) as file:
        file.write(b"whole")
    assert path.read_bytes() == b"whole" and [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_users_own_temporary_file_stays(tmp_path: Path) -> None:
    """Only fairseq's checkpoints are written to names that end in .tmp alone."""
    own = tmp_path / "a.json.tmp"
    own.write_bytes(b"mine")
    write_text(tmp_path / "a.json", "new")
    assert own.read_bytes() == b"mine"


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    folder, link = tmp_path / "elsewhere", tmp_path / "link"
    folder.mkdir()
    link.symlink_to("elsewhere/a")
    for content in ("new", "newer"):  # the first makes the file, the second replaces it
        assert list(output_problems(link)) == []
        write_text(link, content)
        assert link.is_symlink() and (folder / "a").read_text() == content
    assert [p.name for p in folder.iterdir()] == ["a"]
    link.unlink()
    link.symlink_to("gone/a")
    (problem,) = output_problems(link)
    assert problem == f"cannot write {link}: no folder {tmp_path}/gone; create it first"


def test_a_checkpoint_is_written_behind_a_link(tmp_path: Path) -> None:
    link = tmp_path / "link.pt"
    link.symlink_to("average.pt")
    for _ in range(2):
        assert main(["average", "--inputs", MODEL, "--output", str(link)]) == 0
        assert link.is_symlink() and (tmp_path / "average.pt").stat().st_size > 1000


def test_a_file_that_is_standard_output_is_not_replaced(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as out:
        (problem,) = output_problems(f"/proc/self/fd/{out.fileno()}")
    assert f"it is the open file {tmp_path / 'out'}; name another" in problem


def test_files_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("old")
    monkeypatch.chdir(tmp_path)
    usable = ("a", tmp_path / "c", "b", "/dev/null", None)
    assert list(output_problems(*usable)) == []
    check_outputs(*usable)
    folder, missing = output_problems(tmp_path, "b", "gone/a")
    assert "this is a folder; expected a file name" in folder
    assert missing == "cannot write gone/a: no folder gone; create it first"
    with pytest.raises(ConfigError) as refused:
        check_outputs(tmp_path, "gone/a")
    assert folder in str(refused.value) and missing in str(refused.value)
    monkeypatch.setattr(os, "access", lambda place, mode: Path(place) != tmp_path)
    (forbidden,) = output_problems("b")
    assert f"cannot write b: {tmp_path} is not writable" in forbidden
    assert list(output_problems("/dev/null")) == []


FROZEN = Path(__file__).resolve().parents[1] / "frozen"
MODEL = str(FROZEN / "rsa_transformer.pt")
COMMANDS = {
    "average": f"average --inputs {MODEL} --output gone/x",
    "forecast": "forecast none.pt --output gone/x",
    "score": "score --reference none --system none --json gone/x",
    "compare": "compare --reference none --baseline a=none --system b=none --json gone/x",
    "plot curves": "plot curves none --output gone/x.png",
    "plot attention": "plot attention none.pt --source w1 --output x.png --json gone/x",
    "probe run": "probe run none --path none.pt --json gone/x",
    "plan": "plan --arch transformer_biarn_tiny --gpu v100-16 --json gone/x",
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_it_is_known_before_any_work(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Before the input is read, of which some does not exist; and nothing is written."""
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 2
    assert "cannot write gone/x" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_is_inside_a_folder(tmp_path: Path) -> None:
    (tmp_path / "real/a").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real/out").symlink_to("/etc")
    for folder in (tmp_path / "real", tmp_path / "link"):
        for path, expected in (
            ("real/a", "a"), ("link/a/b", "a/b"), ("real/", "."), ("real/a/..", "."),
            ("real/out", "out"), ("real/..b", "..b"),
        ):  # fmt: skip
            assert inside(f"{tmp_path}/{path}", str(folder)) == expected
        for path in ("real/../c", "real/..", "realm/a", "link/out/x", "link"):
            assert inside(f"{tmp_path}/{path}", str(folder)) == f"{tmp_path}/{path}"
        assert inside("a/b", str(folder)) == "a/b"


def test_two_files_have_two_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("a")
    for other in ("a", tmp_path / "a", "./a", "link"):
        (problem,) = output_problems("a", "b", other)
        assert problem.startswith(f"cannot write {Path(other)}: a is the same file; give each a ")
    os.mkfifo("pipe")
    for same in ("/dev/null", "pipe"):
        assert list(output_problems(same, same)) == []


def test_an_input_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under any of its names; a new file, another one and a pipe can be written."""
    monkeypatch.chdir(tmp_path)
    for name in ("in", "other"):
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to("in")
    os.mkfifo("pipe")
    inputs = [None, "none", "pipe", tmp_path, "link"]
    for name in ("in", "./in", "link", str(tmp_path / "in")):
        (problem,) = output_problems("other", name, None, inputs=inputs)
        assert problem == f"cannot write {Path(name)}: this command reads it; give another name"
    assert list(output_problems("other", "none", "pipe", inputs=inputs)) == []
    with pytest.raises(ConfigError, match="cannot write in: this command reads it"):
        check_outputs("in", inputs=inputs)


READERS = [
    ("forecast none.pt --series-file FILE --output FILE", "FILE"),
    ("forecast FILE --output FILE", "FILE"),
    ("forecast FOLDER --output FOLDER/a.pt", "FOLDER/a.pt"),
    ("score --reference FILE --system none --json FILE", "FILE"),
    ("score --reference none --system a=FILE --json FILE", "FILE"),
    ("score --metrics comet --reference none --system b --source FILE --json FILE", "FILE"),
    ("compare --reference FILE --baseline b=none --system none --json FILE", "FILE"),
    ("compare --reference none --baseline b=FILE --system none --json FILE", "FILE"),
    ("compare --reference none --baseline b=none --system a=FILE --json FILE", "FILE"),
    ("plot attention FILE --source w1 --output x.png --json FILE", "FILE"),
    ("plot attention FOLDER --source w1 --output x.png --json FOLDER/a.pt", "FOLDER/a.pt"),
    ("plot attention no.pt --source w --bpe-codes FILE --output x.png --json FILE", "FILE"),
    ("probe run FOLDER --path none.pt --json FOLDER/word_content.txt", "FOLDER/word_content.txt"),
    ("probe run none --path a=FILE --markdown FILE", "FILE"),
    ("probe run none --path a=FOLDER --json FOLDER/a.pt", "FOLDER/a.pt"),
    ("probe run none --path none.pt --bpe-codes FILE --json FILE", "FILE"),
]


@pytest.mark.parametrize("command, file", READERS)
def test_no_command_replaces_its_input(
    command: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    """It is known before the inputs are read, of which some do not exist."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FOLDER").mkdir()
    for name in ("FILE", "FOLDER/a.pt", "FOLDER/word_content.txt"):
        (tmp_path / name).write_text("mine")
    assert main(command.split()) == 2
    said = f"cannot write {file}: this command reads it; give another name"
    assert capsys.readouterr().err.count(said) == 1
    assert (tmp_path / file).read_text() == "mine" and not (tmp_path / "x.png").exists()


def test_both_files_of_plot_attention_are_checked_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, said in (("a.svg", "a.svg: a.svg is the same file"), ("no/a.svg", "no folder no")):
        words = f"plot attention none.pt --source w1 --output {name} --json {name}"
        assert main(words.split()) == 2
        printed = capsys.readouterr().err
        assert said in printed and printed.count("\n") == 1


class Closed(io.StringIO):
    """Standard output of which the reader has ended."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize(
    "words, key",
    [
        ("score --reference text --system text", "systems"),
        ("compare --reference text --baseline a=text --system b=text --samples 5", "baseline"),
        ("plan --arch transformer_tiny --gpu v100-16 --vocabulary 100", "plan"),
    ],
)
def test_the_file_is_written_whatever_happens_to_the_output(
    words: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("one text of some words\n" * 3)
    for name in ("make_plan", "report"):  # of `plan`, which takes seconds
        monkeypatch.setattr(f"fairseq_recur.cli.plan.{name}", lambda *_: "a report")
    monkeypatch.setattr("fairseq_recur.cli.plan.as_json", lambda *_: {"plan": {}})
    monkeypatch.setattr(sys, "stdout", Closed())
    main([*words.split(), "--json", "out.json"])
    assert key in json.loads((tmp_path / "out.json").read_text())
