"""The example of associative recall, in miniature."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_recur.experiments.steps import LOCK
from fairseq_recur.locks import hold

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "recall"
sys.path.insert(0, str(EXAMPLE))
import recall  # noqa: E402

sys.path.remove(str(EXAMPLE))


def test_a_query_asks_for_a_pair_of_its_source() -> None:
    random = torch.Generator().manual_seed(1)
    keys, _, queries, places = recall.draw_batch(5, 12, 6, random)
    for row in range(5):
        assert len({*keys[row].tolist()}) == 6 and {*queries[row].tolist()} == {*keys[row].tolist()}
        assert [int(keys[row, place]) for place in places[row]] == queries[row].tolist()


@pytest.mark.parametrize(
    "kind,updates,outside", [("full", 100, (0.95, 1)), ("segmented", 60, (0, 0.1)),
                               ("unit", 200, (0.95, 1))],
)  # fmt: skip
def test_who_recalls_from_other_segments(
    kind: str, updates: int, outside: tuple[float, float]
) -> None:
    cell = recall.train(kind, pairs=16, segments=4, width=64, updates=updates, seed=1)
    assert outside[0] <= cell["outside"] <= outside[1]
    if kind == "unit":
        for point in cell["curve"]:
            assert 0.2 < point["spike"] < 0.8
            assert all(size > 1e-5 for name, size in point.items() if "gradient" in name)


@pytest.mark.parametrize("updates, measured", [(1, [0, 1]), (19, [*range(0, 19, 2), 19])])
def test_the_last_update_is_measured(updates: int, measured: list[int]) -> None:
    cell = recall.train("segmented", pairs=4, segments=2, width=16, updates=updates, seed=1)
    assert [point["update"] for point in cell["curve"]] == measured


def test_sizes_of_the_sweep_that_do_not_fit_are_left_out() -> None:
    """Nine pairs would give nine segments of one pair in place of eight."""
    base = {"pairs": 9, "segments": 3, "width": 64}
    sizes = [size for _, size in recall.cells(["unit"], base, True)]
    assert sizes == [base, {**base, "width": 32}, {**base, "width": 128}]
    base = {"pairs": 24, "segments": 8, "width": 32}
    changed = [size for system, size in recall.cells(["unit"], base, True) if size != base]
    assert changed == [
        {**base, "pairs": 16}, {**base, "pairs": 64}, {**base, "segments": 2},
        {**base, "width": 128},
    ]  # fmt: skip


def test_the_figure_averages_over_seeds() -> None:
    def cell(system: str, seed: int, outside: float, updates: int = 2) -> dict[str, Any]:
        curve = [{"update": n, "spike": outside + n} for n in range(updates)]
        ends = {"inside": 1.0, "outside": outside}
        return {"system": system, **recall.BASE, "seed": seed, **ends, "curve": curve}

    averaged = sys.modules["recall_figure"].averaged
    one, other = averaged([cell("unit", 1, 0.2), cell("full", 1, 1.0), cell("unit", 2, 0.4, 3)])
    assert (one["system"], other["system"]) == ("unit", "full") and other["outside"] == 1
    assert one["outside"] == pytest.approx(0.3)
    assert [point["update"] for point in one["curve"]] == [0, 1]
    assert [point["spike"] for point in one["curve"]] == pytest.approx([0.3, 1.3])


def test_the_figure_draws_every_system_of_the_sweep(tmp_path: Path) -> None:
    names = ("outside", "spike", "membrane_sd")
    curve = [{"update": n, **dict.fromkeys(names, 0.5)} for n in range(2)]
    cells = [
        {"system": system, **sizes, "seed": 1, "inside": 1.0, "outside": 0.5, "curve": curve}
        for system, sizes in recall.cells(list(recall.SYSTEMS), recall.BASE, sweep=True)
    ]
    recall.draw({"settings": {}, "cells": cells}, tmp_path / "recall.png")
    assert (tmp_path / "recall.png").is_file()


def test_a_base_size_of_the_sweep_is_computed_once() -> None:
    base = {"pairs": 16, "segments": 2, "width": 64}
    found = [tuple(size.values()) for _, size in recall.cells(["full"], base, sweep=True)]
    assert len(found) == len({*found}) == 6
    assert found[0] == (16, 2, 64) and (64, 2, 64) in found


def test_finished_cells_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--output", str(tmp_path), "--no-sweep", "--updates", "1", "--systems", "segmented"]
    recall.main(options)
    recall.main([*options, "paper_III"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines if "inside" in line] == ["segmented", "paper_III"]
    cells = json.loads((tmp_path / "results.json").read_text())["cells"]
    assert len(cells) == 2 and (tmp_path / "recall.png").stat().st_size > 1000
    options[options.index("1")] = "2"
    with (
        hold(tmp_path / LOCK),
        pytest.raises(SystemExit, match=f"error: {tmp_path} is in use by another run; wait, or"),
    ):
        recall.main(options)
    with pytest.raises(SystemExit, match="has 1 updates, this run 2; choose another --output"):
        recall.main(options)
    for damaged in ("[]", '{"settings": {}}', '{"sett'):
        (tmp_path / "results.json").write_text(damaged)
        with pytest.raises(SystemExit, match="error: .*results.json is damaged.*remove it"):
            recall.main(options)


def test_seeds_are_computed_in_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--no-sweep --updates 1 --pairs 4 --segments 2 --width 16 --systems full segmented"
    options = ["--output", str(tmp_path), *words.split()]
    recall.main(options)
    recall.main([*options, "--seeds", "1", "3", "2", "3"])
    results = json.loads((tmp_path / "results.json").read_text())
    assert [(cell["system"], cell["seed"]) for cell in results["cells"]] == [
        (system, seed) for seed in (1, 3, 2) for system in ("full", "segmented")
    ]
    first, second = (run["command"] for run in results["runs"])
    assert "--seeds" not in first and " --seeds 1 3 2 --systems full segmented" in second
    assert capsys.readouterr().out.count(", seed 3: inside") == 2


def test_another_base_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--output", str(tmp_path), "--no-sweep", "--updates", "1", "--systems", "unit"]
    recall.main([*options, "--pairs", "8", "--segments", "2"])
    results = json.loads((tmp_path / "results.json").read_text())
    (cell,), (run,) = results["cells"], results["runs"]
    assert (cell["pairs"], cell["segments"], cell["width"]) == (8, 2, 64)
    assert "--updates 1 --pairs 8 --segments 2 --systems unit" in run["command"]
    with pytest.raises(SystemExit, match="has 8 pairs, this run 32; choose another --output"):
        recall.main(options)
    for wrong, said in (
        ("--pairs 9", "expected at least two segments of equally"),
        ("--pairs 9 --segments 1", "expected at least two segments of equally"),
        ("--width 20", "multiple of"),
    ):
        with pytest.raises(SystemExit):
            recall.main([*options, *wrong.split()])
        assert said in capsys.readouterr().err
