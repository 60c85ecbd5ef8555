"""Every command of README.md is run: here on a small corpus, or through what it names."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fairseq_recur import cli as program
from tests.conftest import SMALL
from tests.docs.commands import ROOT, USER_DIR, commands

README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [" ".join(words) for words in commands(README)]
TRAIN = f"fairseq-train data-bin --user-dir {USER_DIR} --arch"
# What a test cannot run in itself, and the file that runs it.
ELSEWHERE: dict[str, str] = {
    "bash scripts/test.sh": ".ci/run",  # this is what runs the tests
    "bash examples/quickstart/run.sh": "tests/docs/test_commands.py",  # and its steps are parsed
    "pip install .": "tests/integration/test_package.py",
}


def test_every_command_is_run_somewhere() -> None:
    here = [c for c in COMMANDS if c.startswith(TRAIN) or c == "fairseq-recur check"]
    assert len(here) == 4 and set(COMMANDS) - set(here) == set(ELSEWHERE)
    for command, file in ELSEWHERE.items():
        name = command.split()[-1].rpartition("/")[2] if command.startswith("bash") else "pip"
        assert name in (ROOT / file).read_text(encoding="utf-8"), f"{file} does not run {command}"


# The module that makes each of the systems what it is.
PARTS = ["RecurrenceEncoder", "RecurrenceEncodingMatrices", "SRformerAttention"]


@pytest.mark.parametrize("part", PARTS)
def test_the_three_trainings_run(
    part: str,
    corpus: Path,
    cli: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The commands are those of the page, but run on a small corpus for two updates."""
    found = [words for words in commands(README) if words[0] == "fairseq-train"]
    words = found[PARTS.index(part)]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data-bin").symlink_to(corpus / "bin")
    if "--eval-rouge" in words:
        words = [*words, "--eval-rouge-args", '{"max_len_b": 5}']
    few = ["--max-update", 2, "--cpu", "--no-progress-bar", "--num-workers", 0]
    said = cli("train", *words[1:], *SMALL, *few)
    assert [name for name in PARTS if f": {name}(" in said] == [part]
    assert (tmp_path / "checkpoints" / "checkpoint_best.pt").is_file()


def test_the_check_runs(capsys: pytest.CaptureFixture) -> None:
    assert program.main(["check"]) in (0, 1)  # 1: a problem of this machine
    assert "transformer_biarn" in capsys.readouterr().out
