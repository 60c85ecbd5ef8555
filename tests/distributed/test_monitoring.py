"""Training logs monitor the recurrent parts over all processes together."""

from pathlib import Path

import pytest

from fairseq_recur.experiments.training_log import read_log
from tests.conftest import SMALL, TRAIN
from tests.distributed.several import run_plan
from tests.distributed.test_presets_by_several import SENTENCES, data  # noqa: F401
from tests.running import USER_DIR, run_command

NAMES = [*(f"fusion_gate_decoder_{i}" for i in (0, 1)), "saturation_recurrence_0"]


def arguments(data: Path, folder: Path, *flags: str) -> list[str]:  # noqa: F811
    return [
        str(data), "--user-dir", USER_DIR, "--arch", "transformer_biarn", "--recurrence", "birnn",
        *"--recurrence-fusion gated_sum --recurrence-fused-layers all --dropout 0".split(),
        *SMALL, *TRAIN, "--max-update", "2", "--disable-validation", "--no-save", "--save-dir",
        str(folder), "--monitor-interval", "1", "--log-file", str(folder / "log"),
        "--attention-dropout", "0", *flags,
    ]  # fmt: skip


def line(folder: Path) -> dict[str, float]:
    return read_log(folder / "log").steps[1]


@pytest.mark.slow
def test_two_processes_show_what_one_does(data: Path, tmp_path: Path) -> None:  # noqa: F811
    folders = {name: tmp_path / name for name in ("two", "one")}
    for folder in folders.values():
        folder.mkdir()
    half = ["--batch-size", str(SENTENCES // 2)]
    run_plan(2, [arguments(data, folders["two"], *half)], tmp_path)
    run_command("train", *arguments(data, folders["one"], *half, "--update-freq", "2"))
    two, one = (line(folder) for folder in folders.values())
    for name in NAMES:
        assert two[name] == pytest.approx(one[name], abs=1e-4), name
    # Half of the batch gives other values.
    run_command("train", *arguments(data, folders["one"], *half))
    assert any(line(folders["one"])[name] != pytest.approx(two[name], abs=2e-4) for name in NAMES)
