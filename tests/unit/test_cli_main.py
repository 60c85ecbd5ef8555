"""Dispatch, help, exit status and the shape of errors."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fairseq_recur
from fairseq_recur import cli
from fairseq_recur.cli import OWN_COMMANDS, TRACEBACK, fairseq_commands, main
from fairseq_recur.errors import CheckpointError, ConfigError

OWN = str(Path(fairseq_recur.__file__).resolve().parent)


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """Undo what a command does to logging: its handler writes to the test's captured stream."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers, root.level = handlers, level


def test_help_lists_every_command(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    printed = capsys.readouterr().out
    assert left.value.code == 0
    assert all(f"\n    {name}" in printed for name in [*fairseq_commands.COMMANDS, *OWN_COMMANDS])


@pytest.mark.parametrize("command", OWN_COMMANDS)
def test_help_of_own_commands(command: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    assert f"usage: fairseq-recur {command}" in capsys.readouterr().out


@pytest.mark.parametrize("command", [c for c in fairseq_commands.COMMANDS if c != "hydra-train"])
def test_help_of_fairseqs_commands(command: str, capsys: pytest.CaptureFixture) -> None:
    before = list(sys.argv)
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    assert f"usage: fairseq-recur {command} " in capsys.readouterr().out
    assert sys.argv == before


@pytest.mark.parametrize("arguments", [[], ["trian"], ["score"], ["path", "--where"]])
def test_wrong_usage_leaves_with_2(arguments: list, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert "fairseq-recur" in capsys.readouterr().err


def test_path_prints_the_package_alone(capsys: pytest.CaptureFixture) -> None:
    assert main(["path"]) == 0
    assert capsys.readouterr().out == OWN + "\n"


def test_module_is_the_same_command(tmp_path: Path) -> None:
    # From another folder; the package is found as in this process.
    code = f"import sys; sys.path.insert(0, {str(Path(OWN).parent)!r}); sys.argv[1:] = ['path']; "
    code += "import runpy; runpy.run_module('fairseq_recur', run_name='__main__', alter_sys=True)"
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, OWN + "\n"), done.stderr


@pytest.mark.parametrize(
    "error, message",
    [
        (ConfigError("two things"), "two things"),
        (CheckpointError("a.pt is broken"), "a.pt is broken"),
        (FileNotFoundError(2, "No such file", "x.txt"), "No such file: x.txt"),
        (FileNotFoundError("Dataset not found: valid"), "FileNotFoundError: Dataset not found: v"),
        (PermissionError(13, "Permission denied", "x.txt"), "Permission denied: x.txt"),
    ],
)
def test_input_errors_are_one_message(
    error: Exception, message: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(argv: list) -> int:
        raise error

    monkeypatch.setattr(cli, "_dispatch", fail)
    monkeypatch.delenv(TRACEBACK, raising=False)
    assert main(["check"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"fairseq-recur: error: {message}") and printed.count("\n") == 1
    for arguments, variable in ((["--debug", "check"], "0"), (["check"], "1")):
        monkeypatch.setenv(TRACEBACK, variable)
        assert main(arguments) == 2
        assert "Traceback" in capsys.readouterr().err


def test_defects_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(argv: list) -> int:
        raise RuntimeError("a defect")

    monkeypatch.setattr(cli, "_dispatch", fail)
    with pytest.raises(RuntimeError, match="a defect"):
        main(["check"])


def test_log_format_is_fairseqs_and_foreign_handlers_stay(capsys: pytest.CaptureFixture) -> None:
    root, other = logging.getLogger(), logging.NullHandler()
    root.handlers = [logging.StreamHandler(), other]
    for _ in range(2):
        fairseq_commands.set_up_logging(sys.stdout)
    logging.getLogger("valid").info("done")
    printed = capsys.readouterr()
    assert printed.err == "" and printed.out.count("\n") == 1
    assert printed.out.endswith(" | INFO | valid | done\n")
    assert other in root.handlers and len(root.handlers) == 2
