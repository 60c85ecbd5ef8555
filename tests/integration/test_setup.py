"""scripts/setup.sh keeps environments that it has not made."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("program", ["bin/pip", "bin/python"])
def test_an_environment_of_somebody_else_is_kept(program: str, tmp_path: Path) -> None:
    """Also one without pip, such as uv makes."""
    for name in ("scripts", "requirements"):
        shutil.copytree(ROOT / name, tmp_path / name)
    own = tmp_path / ".venv" / program
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    done = subprocess.run(
        ["bash", tmp_path / "scripts/setup.sh"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and "was not made by this script" in done.stderr
    assert own.read_text() == "mine" and not (tmp_path / ".venv.begun").exists()
