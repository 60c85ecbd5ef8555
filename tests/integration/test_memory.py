"""Memory grows only while everything is allocated for the first time."""

import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark as a module."""
    if not Path("/proc/self/statm").is_file():
        pytest.skip("memory is read from /proc, which only Linux has")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import memory

    yield memory
    sys.modules.pop("memory")


@pytest.mark.slow
def test_hours_of_work(preset: str, memory: Any) -> None:
    """The second 500 epochs, and the second 5,000 sentences, need no more than a few MiB."""
    curves = memory.measure([preset], sentences=10_000, epochs=1_000)
    for kind, curve in curves[preset].items():
        growth = curve.slope * curve.done[-1] / 2 / 1024
        assert growth < 8, f"{kind}: {growth:.1f} MiB more, {curve.slope:.2f} KiB each time"


def test_growth_is_detected(memory: Any) -> None:
    """A leak of 10 KiB per sentence has a slope of 10; memory that stays constant has none."""
    done = [*range(0, 1000, 10)]
    assert memory.Curve(done, [300 + n * 10 / 1024 for n in done]).slope == pytest.approx(10)
    assert memory.Curve(done, [min(n, 400) for n in done]).slope == pytest.approx(0)
