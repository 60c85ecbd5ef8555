"""The figure of SRformer's lengths has what its records and the table beside it say."""

import re
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from documentation import lengths
from matplotlib.image import imread
from PIL import Image

from tests.docs.commands import ROOT

PAGE = ROOT / "docs" / "srformer.md"
SYSTEMS = {
    "training": ["SRformer", "torch's fused attention"],
    "decoding": ["SRformer", "plain segments"],
}


def table() -> dict[int, list[list[float]]]:
    """The numbers of each cell of the page's table, by the source's length."""
    text = PAGE.read_text(encoding="utf-8").partition("| source, tokens |")[2]
    rows = {}
    for line in text.partition("<!-- end -->")[0].splitlines()[2:]:
        first, *cells = line.strip("|").replace(",", "").split("|")
        rows[int(first)] = [[float(x) for x in re.findall(r"[\d.]+", cell)] for cell in cells]
    return rows


def curves(axes: Any) -> dict[str, dict[int, float]]:
    """The values of each system by the length whose tick is nearest."""
    ticks = axes.get_xticks()
    return {
        bars.get_label(): {
            int(min(ticks, key=lambda tick: abs(tick - x))): y for x, y in bars[0].get_xydata()
        }
        for bars in axes.containers
    }


def test_the_figure_has_the_numbers_of_the_table() -> None:
    *speeds, memory = map(curves, lengths.draw().axes)
    for place, (work, systems) in enumerate(SYSTEMS.items()):
        assert [*speeds[place]] == [f"{system}, {work}" for system in systems]
        wanted = {n: cells[2 * place : 2 * place + 2] for n, cells in table().items()}
        wanted = {n: cells for n, cells in wanted.items() if cells[0]}
        assert len(wanted) == len(speeds[place][f"SRformer, {work}"]) >= 3
        for length, ((speed,), (peak, full)) in wanted.items():
            drawn = speeds[place][f"SRformer, {work}"][length]
            assert drawn == pytest.approx(speed, abs=0.0051)
            drawn = memory[f"SRformer, {work}"][length]
            assert drawn == pytest.approx(peak / full, abs=0.6 / full)
    assert {*memory} == {*speeds[0], *speeds[1]}


def test_the_figure_is_of_its_records(tmp_path: Path) -> None:
    """As drawn by the version of matplotlib that drew it."""
    with Image.open(lengths.FIGURE) as image:
        made_with = image.info["Software"]
    if f"version{matplotlib.__version__}," not in made_with:
        pytest.skip(f"the figure was drawn by {made_with}")
    lengths.main(["--output", str(tmp_path / "again.png")])
    again, there = imread(tmp_path / "again.png"), imread(lengths.FIGURE)
    out_of_date = "out of date: run python scripts/documentation/lengths.py"
    assert again.shape == there.shape and np.abs(again - there).max() < 0.1, out_of_date


def test_the_page_shows_the_figure_and_its_records() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert f"](figures/{lengths.FIGURE.name})" in text
    for name in (*lengths.TRAINING, *lengths.DECODING):
        assert f"benchmarks/results/{name}" in text
