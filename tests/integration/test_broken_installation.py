"""Where fairseq cannot be imported, every way to start the plug-in says what to install."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
START = [sys.executable, "-m", "fairseq_recur"]
REMEDY = 'pip install "hydra-core>='


@pytest.fixture
def broken(tmp_path: Path) -> dict[str, str]:
    """The environment of processes that find a hydra which is too old and fails on import."""
    (tmp_path / "hydra").mkdir()
    (tmp_path / "hydra/__init__.py").write_text("raise AttributeError('no such type')\n")
    described = tmp_path / "hydra_core-0.9.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: hydra-core\nVersion: 0.9.0\n")
    return {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}


@pytest.mark.parametrize(
    "command, status",
    [
        pytest.param([sys.executable, "-c", "import fairseq_recur"], 1, marks=pytest.mark.slow),
        ([*START, "train", "data-bin"], 2),
        pytest.param([*START, "plan", "--help"], 2, marks=pytest.mark.slow),
    ],
    ids=["import", "train", "plan"],
)
def test_the_error_has_the_remedy(broken: dict[str, str], command: list[str], status: int) -> None:
    done = subprocess.run(command, env=broken, capture_output=True, text=True)
    assert done.returncode == status
    *_, what, remedy = done.stderr.strip().splitlines()
    assert "fairseq cannot be imported (AttributeError: no such type); do what applies:" in what
    assert remedy.startswith("- hydra-core 0.9.0 does not work with") and REMEDY in remedy
    assert ("Traceback" in done.stderr) == (status == 1)


@pytest.mark.slow
def test_check_still_reports(broken: dict[str, str]) -> None:
    done = subprocess.run([*START, "check"], env=broken, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    for line in ("Environment", "Registered\n  nothing", "not applied", "Known problems: 1"):
        assert line in done.stdout
    assert REMEDY in done.stdout
