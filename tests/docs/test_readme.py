"""Every command of README.md is run: here on a small corpus, or through what it names."""

import ast
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from fairseq_recur import cli as program
from fairseq_recur.compat import environment_report, known_problems
from tests.conftest import REGISTERED, SMALL
from tests.docs.commands import ROOT, USER_DIR, commands

README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [" ".join(words) for words in commands(README)]
TRAIN = f"fairseq-train data-bin --user-dir {USER_DIR} --arch"
# What a test cannot run in itself: the file that runs it, and for a test that file's own words.
ELSEWHERE: dict[str, tuple[str, tuple[str, ...]]] = {
    "bash scripts/test.sh": (".ci/run", ()),  # this is what runs the tests
    "bash examples/quickstart/run.sh": (
        "tests/integration/test_example_scripts.py",
        ("script", "quickstart/run.sh"),
    ),
    "pip install .": ("tests/integration/test_package.py", ("run", "*PIP", "install")),
}


def run_by_script(text: str) -> set[str]:
    """The commands of a shell script, line by line; not its comments."""
    lines = (" ".join(shlex.split(line, comments=True)) for line in text.splitlines())
    return {line.removesuffix(" &").removesuffix(" || status=$?") for line in lines}


def run_by_tests(text: str) -> list[set[str]]:
    """The calls in test functions and in what these call, as the function and its arguments.

    An argument is a string, or ``*NAME``.
    """
    functions = {f.name: f for f in ast.parse(text).body if isinstance(f, ast.FunctionDef)}
    waiting = [name for name in functions if name.startswith("test_")]
    found, seen = [], set(waiting)
    while waiting:
        function = functions[waiting.pop()]
        for call in ast.walk(function):
            if isinstance(call, ast.Call):
                words = {a.value for a in call.args if isinstance(a, ast.Constant)}
                words |= {ast.unparse(a) for a in call.args if isinstance(a, ast.Starred)}
                found.append({ast.unparse(call.func), *map(str, words)})
        asked = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
        asked |= {a.arg for a in function.args.args}  # fixtures
        new = (asked & functions.keys()) - seen
        seen |= new
        waiting += new
    return found


def test_every_command_is_run_somewhere() -> None:
    here = [c for c in COMMANDS if c.startswith(TRAIN) or c == "fairseq-recur check"]
    assert len(here) == 1 + len(PARTS) and set(COMMANDS) - set(here) == set(ELSEWHERE)
    for command, (file, wanted) in ELSEWHERE.items():
        text = (ROOT / file).read_text(encoding="utf-8")
        if wanted:
            assert any({*wanted} <= call for call in run_by_tests(text)), f"{file}: {command}"
        else:
            assert command in run_by_script(text), f"{file} does not run {command}"


def test_what_counts_as_run() -> None:
    """Neither comments nor longer commands, texts, or functions that no test calls."""
    shell = (
        "# bash a.sh\necho bash b.sh\nbash c.sh &\nbash d.sh --dry-run  # bash e.sh\nbash f.sh # f"
    )
    assert run_by_script(shell) & {f"bash {x}.sh" for x in "abcdef"} == {"bash c.sh", "bash f.sh"}
    program = """
def unused(): script("a.sh")
def used(): run(*PIP, "b")
def made(): script("c.sh")
def test_it(made): "script d.sh"; used(); script(WORK="e.sh")
"""
    calls = run_by_tests(program)
    assert {"run", "*PIP", "b"} in calls and {"script", "c.sh"} in calls
    assert not {"a.sh", "d.sh", "e.sh"} & set().union(*calls)


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
    """It prints versions, registered components, and each known problem with its remedy."""
    status = program.main(["check"])
    printed = " ".join(capsys.readouterr().out.split())
    versions, problems = environment_report(), known_problems()
    assert versions and status == any(problem.severity == "error" for problem in problems)
    for name, version in versions:
        assert f" {name} {' '.join(version.split())} " in printed
    for name in REGISTERED:
        assert re.search(rf" {name}\b", printed), name
    for problem in problems:
        found = f"{problem.severity}: {problem.title} remedy: {problem.remedy}"
        assert " ".join(found.split()) in printed
