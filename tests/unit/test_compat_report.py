"""What `fairseq-recur check` knows of a machine, each problem made with a fake module."""

import importlib.metadata
import sys
from pathlib import Path

import pytest
import torch

from fairseq_recur import compat
from fairseq_recur.compat import safe_loading


def titles() -> str:
    return "\n".join(p.title for p in compat.known_problems())


def versions(monkeypatch: pytest.MonkeyPatch, **known: str) -> None:
    real = importlib.metadata.version
    known = {name.replace("_", "-"): value for name, value in known.items()}

    def version(name: str) -> str:
        if name in known:
            return known[name]
        if known and name in ("fairseq", "ve-fairseq", "fairseq-fixed"):
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)


def fake_modules(monkeypatch: pytest.MonkeyPatch, folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)
        # Importing it must not be needed to judge it.
        (folder / name / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(str(folder))


def test_this_machine_has_no_problem() -> None:
    assert [p for p in compat.known_problems() if p.severity == "error"] == []


def test_the_report_names_what_a_run_depends_on() -> None:
    report = compat.environment_report()
    values = dict(report)
    assert [name for name, _ in report] == (
        "python platform torch CUDA device fairseq hydra-core omegaconf numpy sacrebleu "
        "sentencepiece subword-nmt"
    ).split()
    assert values["torch"] == torch.__version__
    assert values["python"] == ".".join(map(str, sys.version_info[:3]))
    assert values["fairseq"].split()[0] in ("ve-fairseq", "fairseq-fixed", "fairseq")
    assert values["fairseq"].split()[1].startswith("0.12.")


def test_no_apex_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "apex" not in titles()


def test_the_other_program_called_apex(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_modules(monkeypatch, tmp_path, "apex", "apex/lib")
    assert "not NVIDIA's: PyPI's `apex` is a toolkit for the Pyramid" in titles()


def test_a_half_built_apex(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_modules(monkeypatch, tmp_path, "apex", "apex/normalization")
    assert "extensions fused_layer_norm_cuda, amp_C are missing" in titles()


def test_a_whole_apex(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("apex", "apex/normalization", "fused_layer_norm_cuda", "amp_C")
    fake_modules(monkeypatch, tmp_path, *names)
    assert "apex" not in titles()


@pytest.mark.parametrize("hydra", ["1.4.0.dev1", "1.0.7", "1.3.1", "not a version"])
def test_a_hydra_that_does_not_go_with_main(monkeypatch: pytest.MonkeyPatch, hydra: str) -> None:
    versions(monkeypatch, ve_fairseq="0.12.3", hydra_core=hydra)
    assert f"hydra-core {hydra} does not work with ve-fairseq 0.12.3" in titles()


@pytest.mark.parametrize("hydra", ["1.3.2", "1.3.8"])
def test_a_hydra_that_does(monkeypatch: pytest.MonkeyPatch, hydra: str) -> None:
    versions(monkeypatch, ve_fairseq="0.12.3", hydra_core=hydra)
    assert "hydra" not in titles()


def test_the_official_fairseq_wants_an_old_hydra(monkeypatch: pytest.MonkeyPatch) -> None:
    versions(monkeypatch, fairseq="0.12.2", hydra_core="1.3.2")
    assert "hydra-core 1.3.2 does not work with fairseq 0.12.2" in titles()
    versions(monkeypatch, fairseq="0.12.2", hydra_core="1.0.7")
    assert "hydra" not in titles()


@pytest.mark.parametrize("python, wrong", [((3, 10, 9), False), ((3, 11, 0), True)])
def test_the_official_fairseq_wants_python_3_10(
    monkeypatch: pytest.MonkeyPatch, python: tuple, wrong: bool
) -> None:
    versions(monkeypatch, fairseq="0.12.2", hydra_core="1.0.7")
    monkeypatch.setattr(sys, "version_info", python)
    assert ("fairseq 0.12.2 cannot be imported by Python" in titles()) == wrong


@pytest.mark.parametrize(
    "version, old", [("2.5.1", True), ("2.6.0+cu124", False), ("2.10.0", False)]
)
def test_a_torch_with_the_hole(monkeypatch: pytest.MonkeyPatch, version: str, old: bool) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert ("CVE-2025-32434" in titles()) == old


def test_the_unsafe_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_loading, "removed_variables", set())
    assert compat.UNSAFE_VARIABLE not in titles()
    monkeypatch.setenv(compat.UNSAFE_VARIABLE, "1")
    assert compat.UNSAFE_VARIABLE in titles()


def test_fairscale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "fairscale" not in titles()
    fake_modules(monkeypatch, tmp_path, "fairscale")
    assert "fully_sharded and slowmo are not supported" in titles()


def test_every_problem_has_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_modules(monkeypatch, tmp_path, "apex", "apex/normalization", "fairscale")
    versions(monkeypatch, fairseq="0.12.2", hydra_core="1.4")
    monkeypatch.setattr(sys, "version_info", (3, 12, 0))
    monkeypatch.setattr(torch, "__version__", "2.2.0")
    monkeypatch.setenv(compat.UNSAFE_VARIABLE, "1")
    found = compat.known_problems()
    assert len(found) == 6
    for problem in found:
        assert problem.remedy and problem.severity in ("error", "warning", "note")
