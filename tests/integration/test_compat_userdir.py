"""The user-dir in both import orders, and what a run prints, each in a separate process."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_recur.compat.fairseq_options import PACKAGE
from tests.conftest import SMALL, TRAIN

REGISTERED = """
from fairseq.models import ARCH_MODEL_REGISTRY as A, MODEL_REGISTRY as M
from fairseq.optim import OPTIMIZER_REGISTRY as O
ours = lambda r: sorted(n for n, c in r.items() if c.__module__.startswith("fairseq_recur"))
print(ours(A), ours(M), ours(O))
"""
USER_DIR = """
import argparse
from fairseq.utils import import_user_module
import_user_module(argparse.Namespace(user_dir={!r}))
"""


def python(code: str, folder: Path, path: Path = PACKAGE.parent) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def by_name(tmp_path_factory: pytest.TempPathFactory) -> str:
    done = python("import fairseq_recur" + REGISTERED, tmp_path_factory.mktemp("x"))
    assert "transformer_biarn" in done.stdout and "adamw_fused" in done.stdout, done.stderr
    return done.stdout


@pytest.mark.slow
def test_package_first_then_every_way_to_write_its_folder(by_name: str, tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(PACKAGE.parent)
    (tmp_path / "renamed").symlink_to(PACKAGE)
    ways = (
        str(PACKAGE),
        f"{PACKAGE}/",
        os.path.relpath(PACKAGE, tmp_path),
        "linked/fairseq_recur",
        "linked/../linked/fairseq_recur/",
        "renamed",
    )
    code = "import fairseq_recur" + "".join(USER_DIR.format(w) for w in ways) + REGISTERED
    done = python(code + USER_DIR.format("/nowhere/fairseq_recur"), tmp_path)
    assert done.stdout == by_name, done.stderr
    assert "FileNotFoundError: /nowhere/fairseq_recur" in done.stderr


@pytest.mark.slow
def test_user_dir_first_then_package_and_user_dir_again(by_name: str, tmp_path: Path) -> None:
    first = USER_DIR.format(str(PACKAGE))
    again = "import fairseq_recur" + first + USER_DIR.format(f"{PACKAGE}/") + REGISTERED
    done = python(first + REGISTERED + again, tmp_path, tmp_path)
    assert done.stdout == 2 * by_name, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("import_first", ["import fairseq_recur", USER_DIR.format(str(PACKAGE))])
def test_another_copy_is_named(tmp_path: Path, import_first: str) -> None:
    copy = tmp_path / "other" / "fairseq_recur"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    done = python(import_first + USER_DIR.format("other/fairseq_recur"), tmp_path)
    last = done.stderr.strip().splitlines()[-1]
    assert "ConfigError: --user-dir other/fairseq_recur is another copy" in last
    assert str(PACKAGE) in last and "Leave --user-dir out" in last


NOISE = (
    "hydra",
    "version_base",
    "ConfigStore",
    "package header",
    "strict flag",
    "pin_memory",
    "autocast",
    "key_padding_mask",
    "Warning",
    "DEBUG",
)


@pytest.mark.slow
def test_a_run_prints_no_warnings(tmp_path: Path, corpus: Path) -> None:
    folder = tmp_path / "model"
    shared = ["--user-dir", str(PACKAGE), "--cpu", "--num-workers", "0"]
    train = [
        "train", str(corpus / "bin"), "--arch", "transformer_biarn_tiny", *SMALL, *TRAIN, *shared,
        "--max-update", "2", "--save-dir", str(folder), "--eval-bleu", "--eval-bleu-detok", "space",
    ]  # fmt: skip
    generate = [
        "generate", str(corpus / "bin"), "--path", str(folder / "checkpoint_last.pt"), *shared,
        "--max-tokens", "400",
    ]  # fmt: skip
    for command, *arguments in (train, generate):
        call = [sys.executable, "-m", f"fairseq_cli.{command}", *arguments]
        done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=True)
        lines = (done.stdout + done.stderr).splitlines()
        # torch warns while fairseq itself is imported, before any plug-in can say no.
        lines = [n for n in lines if "jit" not in n and "warnings.warn(" not in n]
        noisy = [n for n in lines if any(word in n for word in NOISE) and "INFO" not in n]
        assert noisy == []
