"""Libraries of scores are imported with the first score, and the scores are theirs."""

import importlib.util
import subprocess
import sys
from contextlib import suppress
from types import ModuleType

import pytest

from fairseq_recur.compat.imports import USERS, ImportsLater, postpone, stand_ins

LIBRARIES = ("sklearn", "sklearn.metrics", "scipy.stats")


@pytest.fixture
def not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not imported them."""
    for name in LIBRARIES:
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_a_command_starts_without_them_and_computes_their_scores() -> None:
    code = (
        "import sys, fairseq_recur; from fairseq.criterions import sentence_prediction as module; "
        f"print([name for name in {LIBRARIES} if name in sys.modules]); "
        "one, other = [0, 1, 1, 0], [0, 1, 0, 0]; scores = ('f1_score', 'pearsonr', 'spearmanr'); "
        "print(*(getattr(module, name)(one, other) for name in scores)); "
        "import sklearn.metrics, scipy.stats; print(sklearn.metrics.f1_score(one, other), "
        "scipy.stats.pearsonr(one, other), scipy.stats.spearmanr(one, other))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported, ours, theirs = done.stdout.splitlines()
    assert imported == "[]"
    assert ours == theirs and ours.startswith("0.666")


@pytest.mark.parametrize("name", USERS)
def test_a_module_finds_functions_in_their_place(name: str, not_imported: None) -> None:
    parent = importlib.import_module(name.rpartition(".")[0])
    spec = ImportsLater().find_spec(name, parent.__path__)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with suppress(ValueError):  # its class is registered already
        spec.loader.exec_module(module)
    found = vars(module).get("sklearn_metrics", vars(module).get("f1_score"))
    assert found is not None and not any(library in sys.modules for library in LIBRARIES)


def test_what_is_imported_already_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ModuleType("sklearn")
    monkeypatch.setitem(sys.modules, "sklearn", real)
    monkeypatch.delitem(sys.modules, "scipy.stats", raising=False)
    with stand_ins():
        assert sys.modules["sklearn"] is real
        assert not hasattr(sys.modules["scipy.stats"], "__path__")
    assert sys.modules["sklearn"] is real and "scipy.stats" not in sys.modules


def test_there_is_one_finder(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the mends are applied."""
    others = [finder for finder in sys.meta_path if not isinstance(finder, ImportsLater)]
    monkeypatch.setattr(sys, "meta_path", [*others])
    for _ in range(2):
        postpone()
    assert [type(finder) for finder in sys.meta_path if finder not in others] == [ImportsLater]


def test_other_modules_are_left_to_python() -> None:
    assert ImportsLater().find_spec("fairseq.criterions.cross_entropy", []) is None
