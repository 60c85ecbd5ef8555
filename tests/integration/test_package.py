"""The wheel and an editable checkout in clean environments, and use without installation."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SMALL, TRAIN
from tests.running import update_losses

pytest.importorskip("setuptools", reason="building without isolation needs it")

ROOT = Path(__file__).parents[2]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
OFFLINE = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]


def run(*command: Any, cwd: Path) -> str:
    """The standard output of a command that must succeed, outside this checkout."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env={**kept, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean copy of the sources of a wheel, together with tests as in the repository."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("fairseq_recur", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(*PIP, "wheel", checkout, *OFFLINE, "--wheel-dir", folder, cwd=folder)
    (file,) = folder.glob("*.whl")
    return file


def clean_environment(folder: Path) -> Path:
    """The Python of a new environment that has the dependencies of this one, by reference."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder)
    here = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (Path(site.strip()) / "dependencies.pth").write_text("\n".join(sorted(here)) + "\n")
    return python


def test_wheel_has_the_package_and_nothing_else(wheel: Path, checkout: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        str(file.relative_to(checkout))
        for file in (checkout / "fairseq_recur").rglob("*")
        if file.is_file()
    }
    assert {"fairseq_recur/py.typed", "fairseq_recur/config/translation.yaml"} <= names
    assert {name for name in names if ".dist-info/" not in name} == expected


def test_wheel_says_what_it_needs(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (metadata,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
    fields = Parser().parsestr(archive.read(metadata).decode())
    assert fields["Name"] == "fairseq-recur"
    assert fields["Requires-Python"] is not None
    needed = " ".join(fields.get_all("Requires-Dist"))
    for name in ("fairseq", "hydra-core", "torch", "sacrebleu", "sentencepiece", "subword-nmt"):
        assert name in needed


def train_two_updates(program: list[Any], data: Path, user_dir: Any, cwd: Path) -> None:
    log = run(
        *program, data, *(["--user-dir", user_dir] if user_dir else []), "--arch",
        "transformer_biarn_tiny", *SMALL, *TRAIN, "--max-update", 2, "--no-save",
        "--disable-validation", cwd=cwd,
    )  # fmt: skip
    assert list(update_losses(log)) == [1, 2]


def programs(folder: Path, checkout: Path, *package: Any) -> tuple[Path, str]:
    """Install in a new environment; its Python, and the folder that `path` prints."""
    python = clean_environment(folder)
    run(*PIP, "--python", python, "install", *OFFLINE, *package, cwd=folder)
    by_module = run(python, "-m", "fairseq_recur", "path", cwd=folder)
    assert run(folder / "bin" / "fairseq-recur", "path", cwd=folder) == by_module
    return python, by_module.strip()


@pytest.mark.slow
def test_installed_wheel_trains(wheel: Path, checkout: Path, corpus: Path, tmp_path: Path) -> None:
    python, path = programs(tmp_path, checkout, wheel)
    assert Path(path).is_relative_to(tmp_path)
    train_two_updates([python, "-m", "fairseq_cli.train"], corpus / "bin", path, tmp_path)


@pytest.mark.slow
def test_editable_install_trains(checkout: Path, corpus: Path, tmp_path: Path) -> None:
    python, path = programs(tmp_path, checkout, "--editable", checkout)
    assert Path(path) == checkout / "fairseq_recur"
    train_two_updates([python, "-m", "fairseq_cli.train"], corpus / "bin", path, tmp_path)
    own = [tmp_path / "bin" / "fairseq-recur", "train"]
    train_two_updates(own, corpus / "bin", None, tmp_path)


@pytest.mark.slow
def test_user_dir_without_install(checkout: Path, corpus: Path, tmp_path: Path) -> None:
    python = clean_environment(tmp_path / "clean")
    find = "import importlib.util as u; print(u.find_spec('fairseq_recur'))"
    if run(python, "-c", find, cwd=tmp_path).strip() != "None":
        pytest.skip("this environment has the package installed")
    program = [python, "-m", "fairseq_cli.train"]
    train_two_updates(program, corpus / "bin", checkout / "fairseq_recur", tmp_path)
