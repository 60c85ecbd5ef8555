"""The example of associative recall, in miniature."""

import json
import sys
from pathlib import Path

import pytest
import torch

from fairseq_recur.experiments.runs import LOCK
from fairseq_recur.files import hold

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
    with pytest.raises(SystemExit, match="has 1 updates, this run 2. Choose another --output"):
        recall.main(options)
