"""A trained model of every preset, for the tests that use one."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conftest import SMALL, TRAIN, preset_flags
from tests.huggingface import convert, converted, save_bart, save_t5
from tests.running import USER_DIR

# Enough updates that the model's hypotheses differ from sentence to sentence.
TRAINED: list[str] = [*SMALL, *TRAIN, *"--lr 0.02 --dropout 0 --max-update 40".split()]


@pytest.fixture(scope="session")
def trained(
    tmp_path_factory: pytest.TempPathFactory, cli: Callable[..., str], corpus: Path
) -> Callable[..., Path]:
    """The folder of an architecture's checkpoints, trained when it is first asked for.

    It holds ``checkpoint5.pt``, ``checkpoint10.pt``, ``checkpoint_last.pt`` and ``train.log``.
    """
    folders: dict[str, Path] = {}

    def train(arch: str, *flags: str) -> Path:
        name = "".join((arch, *flags))
        if name not in folders:
            folder = tmp_path_factory.mktemp(arch)
            log = cli(
                "train", corpus / "bin", "--user-dir", USER_DIR, "--arch", arch, *TRAINED,
                *preset_flags(arch), *flags, "--save-interval", 5, "--validate-interval", 5,
                "--save-dir", folder,
            )  # fmt: skip
            (folder / "train.log").write_text(log)
            folders[name] = folder
        return folders[name]

    return train


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder with a model NAME of each kind, and its converted form NAME-fairseq."""
    root = tmp_path_factory.mktemp("convert")

    def make(kind: str) -> Path:
        folder = root / kind
        if not folder.exists():
            torch.manual_seed(3)
            save_bart(folder) if kind == "bart" else save_t5(folder, kind)
            convert(folder, converted(folder))
        return folder

    return make
