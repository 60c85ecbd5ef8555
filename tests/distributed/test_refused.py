"""Processes whose options or data differ are refused, each of them, before they train."""

from pathlib import Path

from tests.conftest import SMALL, TRAIN
from tests.distributed.several import run_plan
from tests.running import USER_DIR

DIFFERENCES: dict[str, tuple[list[str], str]] = {
    "seed": (["--seed", "1$RANK"], "seed is 10 on rank 0 and 11 on rank 1"),
    "norm": (["--clip-norm", "0.$RANK"], "clip_norm is 0.0 on rank 0 and 0.1 on rank 1"),
    "valid": ([], "hash of some sentences of valid is "),
}
"""Flags whose values differ, and what the refusal says."""


def test_real_processes_compare_options_and_data(corpus: Path, tmp_path: Path) -> None:
    """The second process validates on the first one's test set, which has as many sentences."""
    for rank in ("0", "1"):
        (tmp_path / rank).mkdir()
        for file in (corpus / "bin").iterdir():
            name = file.name if rank == "0" else file.name.replace("test", "valid")
            if rank == "0" or not file.name.startswith("valid"):
                (tmp_path / rank / name).symlink_to(file)
    plan = [
        [
            str(tmp_path / ("$RANK" if name == "valid" else "0")), "--user-dir", USER_DIR,
            "--arch", "transformer_biarn_tiny", *SMALL, *TRAIN, "--max-update", "1",
            "--save-dir", str(tmp_path / name), *flags,
        ]
        for name, (flags, _) in DIFFERENCES.items()
    ]  # fmt: skip
    said = run_plan(2, plan, tmp_path, refused=True)
    for number, (_, why) in enumerate(DIFFERENCES.values()):
        for rank in (0, 1):
            start = f"training {number} on rank {rank}: the processes of this training differ: "
            assert start + why in said, said
    assert not list(tmp_path.glob("*/*.pt"))
