"""The command line itself: help, dispatch, import time, exit status and the form of errors."""

import io
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fairseq_recur
from fairseq_recur import cli
from fairseq_recur.cli import GROUPS, OWN_COMMANDS, TRACEBACK, fairseq_commands, main
from fairseq_recur.errors import INPUT_ERRORS, CheckpointError, ConfigError, ProcessError

OWN = str(Path(fairseq_recur.__file__).resolve().parent)


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """Undo what a command does to logging: its handler writes to the test's captured stream."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers, root.level = handlers, level


def left(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[object, str, str]:
    """Run a command that exits by argparse: the status, stdout and stderr."""
    with pytest.raises(SystemExit) as error:
        main(arguments)
    return (error.value.code, *capsys.readouterr())


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    status, printed, _ = left(["--help"], capsys)
    names = {*fairseq_commands.COMMANDS, *GROUPS, *(n for n in OWN_COMMANDS if " " not in n)}
    assert status == 0 and all(f"\n    {name}" in printed for name in names)
    for group in GROUPS:
        status, printed, _ = left([group, "--help"], capsys)
        words = [name.split()[1] for name in OWN_COMMANDS if name.startswith(f"{group} ")]
        assert status == 0 and words and all(f"\n    {word}" in printed for word in words)


@pytest.mark.parametrize("command", OWN_COMMANDS)
def test_help_of_own_commands(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, printed, _ = left([*command.split(), "--help"], capsys)
    assert status == 0 and f"usage: fairseq-recur {command}" in printed


@pytest.mark.parametrize("command", [c for c in fairseq_commands.COMMANDS if c != "hydra-train"])
def test_help_of_fairseqs_commands(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = list(sys.argv)
    if command == "train":  # its help is our own
        assert main(["train", "--help"]) == 0
        printed = capsys.readouterr().out
    else:
        status, printed, _ = left([command, "--help"], capsys)
        assert status == 0
    assert f"usage: fairseq-recur {command} " in printed
    assert sys.argv == before


def test_help_of_train_shows_the_options_of_what_is_chosen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Those of the model that fairseq lacks come first, then our other parts, then fairseq's."""
    chosen = "--arch transformer_biarn --optimizer adamw_fused --criterion cross_entropy".split()
    assert main(["train", *chosen, "--help"]) == 0
    printed = capsys.readouterr().out
    wanted = ["--recurrence-steps ", "--adam-betas ", "--encoder-layers ", "--max-tokens "]
    places = [printed.index(f"\n  {option}") for option in (wanted[0], wanted[2], wanted[1])]
    places.append(printed.index(wanted[3]))
    assert places == sorted(places) and "--sentence-avg" in printed
    assert printed.index("\n--optimizer adamw_fused:") < printed.index("\n--task translation:")
    assert main(["train", "--arch", "srformer_tyni", "-h"]) == 2
    assert "did you mean srformer_tiny" in capsys.readouterr().err


def test_list_of_train_shows_all_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--list"]) == 0
    printed = capsys.readouterr().out
    for name in ("transformer_biarn_tiny", "biarn", "srformer", "rsa", "adamw_fused", "lstm_lm"):
        assert name in printed.replace(",", " ").split()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "required: COMMAND"),
        (["score"], "required: --reference"),
        (["path", "--where"], "fairseq-recur path: error: unknown argument '--where'; see --help"),
        (["trian"], "unknown command 'trian'; did you mean train?"),
        (["plot"], "required: SUBCOMMAND"),
        (["plot", "checkpoints"], "unknown command 'plot checkpoints'; did you mean plot check"),
        (
            ["translate", "--", "-x.pt", "a.txt", "--cpu"],
            "'--cpu' after --, which ends the options",
        ),
        (["score", "--reference=", "--system", "a=b"], "argument --reference: expected a value"),
        (["plot", "curves", "", "--output", "a.png"], "argument LOG: expected a value, found"),
        (["average", "--imputs", "a", "--inputs", "b", "--output", "c"], "did you mean --inputs?"),
    ],
)
def test_wrong_usage_leaves_with_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, said = left(arguments, capsys)
    assert status == 2 and message in said


LIGHT: dict[str, set[str]] = {
    "path": {"torch", "fairseq", "sacrebleu", "numpy", "matplotlib"},
    "--version": {"torch", "fairseq", "sacrebleu", "numpy", "matplotlib"},
    "--help": {"torch", "fairseq", "sacrebleu", "numpy", "matplotlib"},
    "score --help": {"torch", "fairseq", "matplotlib"},
    "compare --help": {"torch", "fairseq", "matplotlib"},
    "plot curves --help": {"torch", "fairseq"},
}
"""Packages that cost seconds and that a command must not import."""


@pytest.mark.parametrize("line", LIGHT)
def test_commands_import_only_what_they_need(line: str, tmp_path: Path) -> None:
    """In a new process and from another folder; ``python -m`` is the same command."""
    run = [sys.executable, "-X", "importtime", "-m", "fairseq_recur", *line.split()]
    environment = {"PYTHONPATH": str(Path(OWN).parent)}
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [row for row in done.stderr.splitlines() if row.startswith("import time:")]
    names = [row.rpartition("|")[2].strip() for row in lines]
    assert not LIGHT[line] & set(names)
    assert len(names) < (250 if "sacrebleu" in LIGHT[line] else 900)
    if line == "path":
        assert done.stdout == OWN + "\n", "and nothing else"


@pytest.mark.slow
def test_the_command_registers_when_it_needs_fairseq(tmp_path: Path) -> None:
    """All other imports of the package register at once, which the other tests rely on."""
    code = (
        "import sys; sys.argv = ['/bin/fairseq-recur']; import fairseq_recur\n"
        "assert 'fairseq' not in sys.modules\n"
        "assert fairseq_recur.models is sys.modules['fairseq_recur.models']\n"
        "from fairseq.models import ARCH_MODEL_REGISTRY\n"
        "assert 'transformer_biarn' in ARCH_MODEL_REGISTRY\n"
    )
    environment = {"PYTHONPATH": str(Path(OWN).parent), "HOME": str(tmp_path)}
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "error, message, status",
    [
        (ConfigError("two things"), "two things", 2),
        (CheckpointError("a.pt is broken"), "a.pt is broken", 2),
        (FileNotFoundError(2, "No such file", "x"), "No such file: x; give a path that exists", 2),
        (FileExistsError(17, "File exists", "x"), "File exists: x; give another name, or rem", 2),
        (NotADirectoryError(20, "Not a directory", "x"), "Not a directory: x; expected a fo", 2),
        (IsADirectoryError(21, "Is a directory", "x"), "Is a directory: x; expected a file; ", 2),
        (FileNotFoundError("Dataset not found: valid"), "FileNotFoundError: Dataset not f", 2),
        (PermissionError(13, "Permission denied", "x.txt"), "Permission denied: x.txt; chang", 2),
        (OSError(36, "File name too long", "x" * 9), "File name too long: xxxxxxxxx; give a", 2),
        (ProcessError("rank 1 has died"), "rank 1 has died", 1),
        (RuntimeError("a defect"), None, None),
        (OSError(28, "No space left on device", "x.pt"), "No space left on device: x.pt", 2),
        (OSError(28, "No space left on device"), "No space left on device: the output; ", 2),
        (OSError(30, "Read-only file system", "x"), "Read-only file system: x; write to ano", 2),
        (OSError(5, "Input/output error"), None, None),
    ],
)
def test_errors(
    error: Exception,
    message: str | None,
    status: int | None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Input errors are one message, with a traceback on demand; a defect keeps its traceback."""

    def fail(argv: list[str]) -> int:
        raise error

    monkeypatch.setattr(cli, "_dispatch", fail)
    monkeypatch.delenv(TRACEBACK, raising=False)
    if message is None:
        with pytest.raises(type(error), match=str(error.args[-1])):
            main(["check"])
        return
    assert main(["check"]) == status
    printed = capsys.readouterr().err
    assert printed.startswith(f"fairseq-recur: error: {message}") and printed.count("\n") == 1
    for arguments, variable in ((["--debug", "check"], "0"), (["check"], "1")):
        monkeypatch.setenv(TRACEBACK, variable)
        assert main(arguments) == status
        is_input_error = isinstance(error, INPUT_ERRORS)
        assert ("Traceback" in capsys.readouterr().err) is is_input_error


@pytest.mark.parametrize(
    "line, status",
    [
        ("score --reference a b", 0),
        ("experiment status work", 0),
        ("experiment run a.yaml --work-dir work --dry-run", 0),
        ("train --list", 0),
        ("experiment run a.yaml --work-dir work", 1),
        ("experiment score work", 1),
        ("train data-bin", 1),
        ("generate data-bin", 1),
    ],
)
def test_a_reader_that_ends_early(
    line: str, status: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs nothing where a command only prints; otherwise the work is not done."""

    def fail(argv: list[str]) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(cli, "_dispatch", fail)
    assert main(line.split()) == status
    said = capsys.readouterr().err
    assert said.count("\n") == status and ("run the same command again" in said) == bool(status)


def test_a_reader_of_both_streams_that_ends_early() -> None:
    """As with `2>&1 | tee` after Ctrl-C: also then Python does not fail at exit."""
    code = (
        "import sys; sys.argv[0] = 'fairseq-recur'; from fairseq_recur import cli\n"
        "cli._dispatch = lambda argv: print('done')\n"
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    environment = {"PYTHONPATH": str(Path(OWN).parent)}
    for command, status in (("path", 0), ("average", 1)):
        reading, writing = os.pipe()
        os.close(reading)
        run = [sys.executable, "-c", code, command]
        done = subprocess.run(run, env=environment, stdout=writing, stderr=writing)
        os.close(writing)
        assert done.returncode == status


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_characters_that_standard_output_lacks(
    encoding: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(argv: list[str]) -> int:
        print("1.5 \u2192 2")
        return 0

    monkeypatch.setattr(cli, "_dispatch", run)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
    assert main(["check"]) == 2
    said = f"standard output is {encoding}, which lacks '\\u2192'; set PYTHONIOENCODING=utf-8\n"
    assert capsys.readouterr().err == f"fairseq-recur: error: {said}"
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "utf-8"))
    assert main(["check"]) == 0
    monkeypatch.setattr(cli, "_dispatch", lambda _: print("\udcff"))  # a defect
    with pytest.raises(UnicodeEncodeError):
        main(["check"])


def test_a_wrong_level_of_the_log_is_one_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before fairseq is imported, which would set this level."""
    for level in ("debug", "ERROR"):
        monkeypatch.setenv("LOGLEVEL", level)
        assert main(["path"]) == 0
    for level in ("foo", "", "10"):
        monkeypatch.setenv("LOGLEVEL", level)
        assert main(["path"]) == 2
        printed = capsys.readouterr().err
        assert f"error: LOGLEVEL={level}: expected DEBUG, INFO, WARNING" in printed
        assert printed.count("\n") == 1
    monkeypatch.setattr(fairseq_recur, "register", lambda: pytest.fail("it is too late then"))
    assert main(["train", "--list"]) == main(["plan", "--help"]) == 2


def test_log_format_is_fairseqs_and_other_handlers_stay(capsys: pytest.CaptureFixture[str]) -> None:
    root, other = logging.getLogger(), logging.NullHandler()
    root.handlers = [logging.StreamHandler(), other]
    for _ in range(2):
        fairseq_commands.set_up_logging(sys.stdout)
    logging.getLogger("valid").info("done")
    printed = capsys.readouterr()
    assert printed.err == "" and printed.out.count("\n") == 1
    assert printed.out.endswith(" | INFO | valid | done\n")
    assert other in root.handlers and len(root.handlers) == 2
