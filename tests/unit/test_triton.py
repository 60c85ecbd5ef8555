"""The Triton kernels: when they are used, what they refuse, and runs in Triton's interpreter."""

import ast
import importlib.util
import inspect
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fairseq_recur.cli import check
from fairseq_recur.ops import mixture, triton
from fairseq_recur.ops.triton import dispatch
from fairseq_recur.ops.triton.banded import ROWS, band_product
from fairseq_recur.ops.triton.mixed import mix, mixes
from fairseq_recur.ops.triton.recurrence import additive_energies, gated_states
from fairseq_recur.ops.triton.segment_softmax import segment_softmax
from fairseq_recur.ops.triton.segmented_recurrent import fired_sums
from tests.unit.triton_interpreted import FUNCTIONS

ROOT = Path(__file__).parents[2]
NEWER_SETTING = hasattr(torch.backends.cuda.matmul, "fp32_precision")
installed = importlib.util.find_spec("triton") is not None


@pytest.mark.skipif(not installed, reason="Triton is not installed")
@pytest.mark.parametrize("marked", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_kernels_equal_the_loops(marked: str) -> None:
    """Triton reads when it is imported whether its interpreter is to run the kernels."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", marked,
         "tests/unit/triton_interpreted.py"],
        cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout and "skipped" not in done.stdout, done.stdout


def triton_functions() -> dict[str, type]:
    """The operations of the package that kernels compute, by name."""
    modules = [import_module(f"{triton.__name__}.{info.name}") for info in kernel_modules(False)]
    return {
        name: kind
        for module in modules
        for name, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, torch.autograd.Function) and kind.__module__ == module.__name__
    }


def kernel_modules(kernels: bool) -> list[pkgutil.ModuleInfo]:
    """The modules of the kernels, which import Triton, or those around them."""
    found = pkgutil.iter_modules(triton.__path__)
    return [info for info in found if info.name.endswith("_kernels") == kernels]


def test_every_operation_is_interpreted() -> None:
    """The file that the test above runs counts their calls."""
    found = triton_functions()
    assert found.keys() == {function.__name__ for function in FUNCTIONS}
    assert {*found.values()} == {*FUNCTIONS}


def test_every_kernel_belongs_to_an_operation() -> None:
    """An operation, a function that it calls, or another kernel starts or calls each of them."""
    folder = Path(triton.__path__[0])
    files = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in folder.glob("*.py")}
    names = {
        node.name
        for info in kernel_modules(True)
        for node in files[info.name].body
        if isinstance(node, ast.FunctionDef)
        and any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)
    }
    assert len(names) > 10
    used = {
        node.id
        for tree in files.values()
        for statement in tree.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and node.id != getattr(statement, "name", "")
    }
    assert names - used == set()


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with TRITON_INTERPRET=1 and Triton installed."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(dispatch, "obstacle", lambda: "")


def test_a_cpu_uses_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(dispatch, "obstacle", lambda: "")
    assert not dispatch.usable(torch.zeros(2, 16))


def test_kernels_support_these_tensors(interpreted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    known = torch.zeros(2, 128)
    assert dispatch.usable(known) and dispatch.usable(known.double())
    assert dispatch.usable(torch.zeros(2, 129), widest=None)
    assert dispatch.usable(known.half(), half=True)
    for unknown in (known.half(), torch.zeros(2, 129), known[:0], known.to("meta")):
        assert not dispatch.usable(unknown)
    with monkeypatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert not dispatch.usable(known)
    monkeypatch.setenv("FAIRSEQ_RECUR_TRITON", "0")
    assert not dispatch.usable(known)


def test_kernels_support_these_maps(interpreted: None) -> None:
    maps, values, matrix = torch.zeros(1, 2, 9, 64), torch.zeros(1, 2, 64, 8), torch.zeros(2, 9, 64)
    assert mixes(maps, values, matrix)
    long = torch.zeros(1, 2, 9, 65)
    assert not mixes(long, torch.zeros(1, 2, 65, 8), long[0])
    assert not mixes(maps, torch.zeros(1, 2, 64, 129), matrix)
    assert not mixes(maps, values, matrix[None])  # a matrix for each sentence
    assert not mixes(maps, values, matrix[:, :1])  # a row for all rows of a beam


@pytest.mark.parametrize(
    "dtype,capability,expected",
    [
        (torch.float32, (8, 0), True),
        (torch.float32, (9, 0), True),
        (torch.float32, (7, 5), False),
        (torch.float16, (9, 0), False),
        (torch.float64, (9, 0), False),
    ],
)
def test_kernels_support_these_gpus(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, capability: tuple[int, int], expected: bool
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(dispatch, "obstacle", lambda: "")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    device = SimpleNamespace(type="cuda")
    there = SimpleNamespace(device=device, dtype=dtype, size=lambda _: 64, numel=lambda: 1)
    assert dispatch.usable(there) == expected


@pytest.fixture
def fresh() -> Iterator[None]:
    """Triton has not been looked for."""
    dispatch.obstacle.cache_clear()
    yield
    dispatch.obstacle.cache_clear()


def test_without_triton_torch_does_it(
    fresh: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setitem(sys.modules, "triton", None)  # importing it fails
    caplog.set_level("INFO")
    maps, values, matrix, gate = (
        torch.rand(shape) for shape in [(3, 2, 4, 5), (3, 2, 5, 6), (2, 4, 5), (2, 1, 1)]
    )
    for _ in range(2):
        out, mixed = mixture.mixed_map(maps, values, matrix, gate)
        torch.testing.assert_close(mixed, (1 - gate) * maps + gate * matrix)
        torch.testing.assert_close(out, mixed @ values)
    assert caplog.text.count("in place of Triton kernels") == 1


def test_where_triton_cannot_start_torch_does_it(
    fresh: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It compiles a program first; without a C compiler that fails."""

    class Driver:
        @property
        def active(self) -> None:
            raise RuntimeError("Failed to find C compiler.")

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "triton.runtime", SimpleNamespace(driver=Driver()))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    caplog.set_level("INFO")
    device = SimpleNamespace(type="cuda")
    there = SimpleNamespace(device=device, dtype=torch.float32, size=lambda _: 64, numel=lambda: 1)
    assert not dispatch.usable(there) and not dispatch.usable(there)
    assert caplog.text.count("Failed to find C compiler.; it needs a C compiler") == 1
    assert "take their place: Failed to find C compiler." in check.gpu_kernels()


@pytest.fixture
def own_precision() -> Iterator[None]:
    """What the test sets is undone."""
    yield
    if NEWER_SETTING:
        torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(
    "setting,expected", [("highest", "ieee"), ("high", "tf32x3"), ("medium", "tf32")]
)
def test_precision_is_the_users(
    own_precision: None, monkeypatch: pytest.MonkeyPatch, setting: str, expected: str
) -> None:
    torch.set_float32_matmul_precision(setting)
    monkeypatch.setattr(torch.version, "hip", None)
    assert dispatch.precision() == expected
    monkeypatch.setattr(torch.version, "hip", "6.0")
    assert dispatch.precision() == "ieee"


@pytest.mark.skipif(not NEWER_SETTING, reason="torch is older")
@pytest.mark.parametrize("setting,expected", [("ieee", "ieee"), ("tf32", "tf32x3")])
def test_precision_by_torchs_newer_setting(
    own_precision: None, setting: str, expected: str
) -> None:
    torch.backends.cuda.matmul.fp32_precision = setting
    assert dispatch.precision() == expected


def test_blocks_hold_what_they_must() -> None:
    assert [dispatch.block(n) for n in (1, 16, 17, 64, 100, 128)] == [16, 16, 32, 64, 128, 128]
    assert dispatch.block(100, 32) == 32


def misread() -> Iterator[tuple[str, object]]:
    """Calls with a tensor that a kernel would misread."""
    queries, keys = torch.zeros(2, 3, 4, 16), torch.zeros(2, 3, 5, 16)
    neuron = weight, leak, _ = torch.zeros(16, 16), torch.tensor(1.0), torch.tensor(0.1)
    yield "values", lambda: fired_sums(queries, keys, keys[:, :, :4], *neuron)
    yield "keys", lambda: fired_sums(queries, keys.double(), keys, *neuron)
    yield "weight", lambda: fired_sums(queries, keys, keys, weight[1:], *neuron[1:])
    yield "threshold", lambda: fired_sums(queries, keys, keys, weight, leak, torch.ones(1))
    yield "steps", lambda: fired_sums(queries, keys[:, :2], keys[:, :2], *neuron)
    yield "values", lambda: segment_softmax(queries, keys, keys.double())
    yield "mask", lambda: segment_softmax(queries, keys, keys, torch.zeros(2, 3, 5), heads=2)
    yield "steps", lambda: segment_softmax(queries, keys[:, :2], keys[:, :2])
    added = {"added": queries, "unit": torch.zeros(2, 1)}
    yield "unit", lambda: segment_softmax(queries, keys, keys, **added)
    states, bias = torch.zeros(2, 3, 4), torch.zeros(2, 4)
    yield "keys", lambda: additive_energies(states, torch.zeros(2, 9, 5), bias[0])
    yield "score", lambda: additive_energies(states, states, bias)
    gates = torch.zeros(2, 3, 12)
    yield "u", lambda: gated_states(gates, gates[:, :2], bias, states)
    yield "bias", lambda: gated_states(gates, gates, bias[0], states)
    values = torch.zeros(1, 2, 9, 16)
    yield "band", lambda: band_product(torch.zeros(2, ROWS, ROWS), values, 1)
    yield "band", lambda: band_product(torch.zeros(1, ROWS, ROWS), values, 0)
    maps, gate = torch.zeros(1, 2, 3, 9), torch.zeros(2, 1, 1)
    yield "matrix", lambda: mix(maps, values, torch.zeros(2, 9, 3), gate)
    yield "gate", lambda: mix(maps, values, maps[0], gate[:1])
    yield "value", lambda: mix(maps, values[:, :, :8], maps[0], gate)


@pytest.mark.parametrize("name,call", list(misread()))
def test_tensors_that_kernels_would_misread_are_refused(name: str, call: object) -> None:
    with pytest.raises(ValueError, match=f"{name}.*expected.*; (convert|give) "):
        call()


@pytest.mark.parametrize(
    "found,switch,expected",
    [
        (None, "1", "not installed"),
        (object(), "1", "on a GPU"),
        (object(), "0", "FAIRSEQ_RECUR_TRITON=0"),
    ],
)
def test_check_says_whether_there_are_kernels(
    monkeypatch: pytest.MonkeyPatch, found: object, switch: str, expected: str
) -> None:
    monkeypatch.setenv("FAIRSEQ_RECUR_TRITON", switch)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    assert expected in check.gpu_kernels()
