"""The script draws all figures of the documentation, and a page shows each of them."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.docs.commands import ROOT, markdown_files

SCRIPT = ROOT / "scripts" / "documentation" / "figures.py"


@pytest.mark.slow
def test_the_script_draws_the_figures_that_are_there(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-W", "ignore", SCRIPT, tmp_path], env=env, check=True)
    there = {path.name for path in (ROOT / "docs" / "figures").glob("*.svg")}
    assert {path.name for path in tmp_path.iterdir()} == there
    for path in tmp_path.iterdir():
        shapes = ElementTree.parse(path).findall(".//{http://www.w3.org/2000/svg}path")
        assert len(shapes) > 20, path.name


def test_every_figure_is_shown() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in markdown_files())
    for path in (ROOT / "docs" / "figures").iterdir():
        assert f"figures/{path.name})" in pages, path.name
