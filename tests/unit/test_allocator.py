"""A training keeps the memory that it frees, and otherwise does as the user says."""

import subprocess
import sys

import fairseq_cli.generate
import fairseq_cli.train  # noqa: F401  (their main functions are replaced)
import pytest
import torch

from fairseq_recur.cli import allocator, fairseq_commands, preflight
from tests.unit.test_cli_main import root_logger  # noqa: F401  (used by every test)

FAULTS = """
import resource, runpy, sys, numpy

keep_freed_memory = runpy.run_path(sys.argv[1])["keep_freed_memory"]
print(KEEP)
for _ in range(6):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    numpy.ones(20_000_000)  # 160 MB, freed at once
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(keep: str, **environment: str) -> tuple[bool, int]:
    """Whether memory is kept, and the page faults of an allocation that was made before."""
    code = FAULTS.replace("KEEP", keep)
    env = {"PATH": "", **environment}
    done = subprocess.run(
        [sys.executable, "-c", code, allocator.__file__],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    kept, count = done.stdout.split()
    return kept == "True", int(count)


def test_memory_is_kept() -> None:
    kept, count = faults("keep_freed_memory()")
    assert kept and count < 100
    _, count = faults("False")
    assert count > 20  # one per page, of 4 KiB or, if the system likes, of 2 MiB


@pytest.mark.parametrize(
    "name, value",
    [("MALLOC_MMAP_THRESHOLD_", "100000"), ("GLIBC_TUNABLES", "glibc.malloc.mmap_max=9")],
)
def test_the_users_settings_stay(name: str, value: str) -> None:
    assert not faults("keep_freed_memory()", **{name: value})[0]


@pytest.mark.parametrize(
    "command, words, cuda, keeps",
    [
        ("train", ["--cpu"], True, True),
        ("train", [], False, True),
        ("train", [], True, False),
        ("generate", ["--cpu"], False, False),
    ],
)
def test_a_training_without_a_gpu_keeps_it(
    command: str, words: list[str], cuda: bool, keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []
    monkeypatch.setattr(allocator, "keep_freed_memory", lambda: called.append("kept"))
    monkeypatch.setattr(f"fairseq_cli.{command}.cli_main", lambda: called.append("run"))
    monkeypatch.setattr(preflight, "check", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    assert fairseq_commands.run(command, ["data", *words]) == 0
    assert called == (["kept", "run"] if keeps else ["run"])
