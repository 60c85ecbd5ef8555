"""scripts/setup.sh keeps environments that it has not made, and works alone."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def with_an_environment(folder: Path, program: str) -> Path:
    """Copy what sets up, and make a program in an environment that it has not made."""
    for name in ("scripts", "requirements"):
        shutil.copytree(ROOT / name, folder / name)
    own = folder / ".venv" / program
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    return own


@pytest.mark.parametrize("program", ["bin/pip", "bin/python"])
def test_an_environment_of_somebody_else_is_kept(program: str, tmp_path: Path) -> None:
    """Also one without pip, such as uv makes."""
    own = with_an_environment(tmp_path, program)
    done = subprocess.run(
        ["bash", tmp_path / "scripts/setup.sh"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and "was not made by this script" in done.stderr
    assert own.read_text() == "mine" and not (tmp_path / ".venv.begun").exists()


@pytest.mark.skipif(shutil.which("flock") is None, reason="the lock is that of the command flock")
def test_a_second_one_waits(tmp_path: Path) -> None:
    with_an_environment(tmp_path, "bin/python")
    first = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(first, fcntl.LOCK_EX)
    command = ["bash", str(tmp_path / "scripts/setup.sh")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as second:
        assert second.stdout is not None and second.stderr is not None
        assert second.stdout.readline().startswith("Waiting for another script that works in ")
        assert second.poll() is None
        os.close(first)
        assert "was not made by this script" in second.stderr.read()
    assert second.returncode == 1


@pytest.mark.parametrize(("python", "problem"), [
    ("missing", "PYTHON=missing does not run; name a Python 3.11 or"),
    ("./old", "/old is Python 3.8; expected 3.11 or 3.12 or 3.10 or 3.13"),
    ("./bare", "/bare has no modules venv and ensurepip; install them"),
])  # fmt: skip
def test_an_interpreter_that_cannot_be_used(python: str, problem: str, tmp_path: Path) -> None:
    """It is refused before the environment that is there is looked at."""
    own = with_an_environment(tmp_path, "bin/python")
    says = {"old": "echo 3.8", "bare": 'case "$2" in *ensurepip*) exit 1 ;; *) echo 3.11 ;; esac'}
    for name, line in says.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["bash", "scripts/setup.sh"],
        capture_output=True, text=True, timeout=60, cwd=tmp_path,
        env={**os.environ, "PYTHON": python},
    )  # fmt: skip
    assert done.returncode == 1 and done.stderr.startswith("error: PYTHON=")
    assert problem in done.stderr and len(done.stderr.splitlines()) == 1
    assert own.read_text() == "mine"
