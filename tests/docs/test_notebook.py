"""The notebook runs from its first cell to its last, and shows what its text describes."""

import base64
import io
import re
from typing import Any

import pytest
from PIL import Image

from tests.docs.commands import ROOT

nbformat = pytest.importorskip("nbformat", reason="the notebook needs nbclient and ipykernel")
nbclient = pytest.importorskip("nbclient", reason="the notebook needs nbclient and ipykernel")
pytest.importorskip("ipykernel", reason="the notebook needs nbclient and ipykernel")

NOTEBOOK = ROOT / "examples" / "notebook" / "first_steps.ipynb"


def test_stored_with_its_outputs() -> None:
    """A reader sees the figures without running it, and nothing of the machine that ran it."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    shown = [output for cell in code for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in shown) == 3
    printed = "".join(output.get("text", "") for output in shown)
    assert "test sentences are right" in printed
    assert not re.search(r"(^|[\s'\"(])/\w", printed), "a path of a machine"
    assert all(output.get("name") != "stderr" for output in shown)


def test_links_lead_somewhere() -> None:
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        for target in re.findall(r"\]\(([^)#]+)\)", cell.source):
            assert (NOTEBOOK.parent / target).exists(), target


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The output of each cell: {"text": printed, "images": [...]}."""
    folder = tmp_path_factory.mktemp("notebook")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("JUPYTER_PLATFORM_DIRS", "1")
        notebook = nbformat.read(NOTEBOOK, as_version=4)
        nbclient.NotebookClient(
            notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}
        ).execute()
    found = []
    for cell in notebook.cells:
        shown = cell.get("outputs", [])
        text = "".join(output.get("text", "") for output in shown)
        images = [o["data"]["image/png"] for o in shown if "image/png" in o.get("data", {})]
        found.append({"source": cell.source, "text": text, "images": images})
    assert (folder / "work" / "model" / "checkpoint_best.pt").is_file()
    return found


def of(outputs: list[dict[str, Any]], words: str) -> dict[str, Any]:
    """The only cell that contains these words."""
    (found,) = [output for output in outputs if words in output["source"]]
    return found


@pytest.mark.slow
def test_model_learns(outputs: list[dict[str, Any]]) -> None:
    losses = re.findall(r"\bloss ([\d.]+)", of(outputs, '"train", work')["text"])
    assert len(losses) > 5 and float(losses[-1]) < float(losses[0]) / 2
    printed = of(outputs, "test sentences are right")["text"]
    right = re.search(r"(\d+) of 40 test sentences are right", printed)
    assert right and int(right[1]) >= 30
    assert "40/40" in printed  # the bar
    assert of(outputs, "print(model)")["text"].endswith("red old small\n")
    scores = of(outputs, "log_probability")["text"]
    backwards, forwards = (float(x) for x in re.findall(r"given:\s+(\S+)", scores))
    assert backwards > forwards + 5


@pytest.mark.slow
def test_figures_are_shown(outputs: list[dict[str, Any]]) -> None:
    for words in ('"loss", "gate")', '"matrices"', 'figure("attention"'):
        (image,) = of(outputs, words)["images"]
        with Image.open(io.BytesIO(base64.b64decode(image))) as picture:
            assert picture.format == "PNG" and min(picture.size) > 300
            assert len(set(picture.convert("RGB").getdata())) > 50
    assert "gate 1" in of(outputs, "model.look")["text"]
