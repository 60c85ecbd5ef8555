"""Preparing the translation recipes on small mirrors, once for all tests of a session."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from recipes.translation import main

from tests.translation_archives import ROOT, wmt14, wmt17

EXAMPLES = ROOT / "examples"
RECIPES = {"wmt14_en_de": wmt14, "wmt17_zh_en": wmt17}
SMALL = {"BPE_SIZE": "150", "BPE_THRESHOLD": "2", "WORKERS": "1"}
SEPARATE = {"BPE_SIZE": "60", "WORKERS": "1"}
OURS = (
    "SOURCE TARGET TOKENIZER SEGMENTATION NORMALISE DASHES BPE BPE_SIZE BPE_THRESHOLD DICTIONARY "
    "MIN_LENGTH MAX_LENGTH RATIO LOWERCASE CORPORA SAMPLE DOWNLOAD_ONLY WORKERS WORK "
    "WMT_MIRROR ARCH RUN SEED LR DROPOUT AVERAGE "
    "MAX_UPDATES SAVE_EVERY START_FROM BASELINE LAUNCHER BATCH_TOKENS MAX_TOKENS GPUS PROCESSES "
    "PRECISION PYTHON PRINT"
).split()
"""Variables of the recipes, which must not come into a test from outside."""

SECONDS: dict[Path, float] = {}
"""What a preparation took."""


@pytest.fixture(scope="session")
def mirrors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mirror of each recipe's archives."""
    folder = tmp_path_factory.mktemp("mirrors")
    wmt14(folder / "wmt14_en_de", 150)
    wmt17(folder / "wmt17_zh_en", 20)
    return folder


def prepare(recipe: str, mirror: Path, work: Path, **variables: str) -> int:
    """Prepare in this process; return the command's status."""
    with pytest.MonkeyPatch.context() as patch:
        for name in OURS:
            patch.delenv(name, raising=False)
        for name, value in {**variables, "WORK": str(work), "WMT_MIRROR": str(mirror)}.items():
            patch.setenv(name, value)
        patch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'scripts'}")
        return main(["prepare", str(EXAMPLES / recipe / "recipe.yaml")])


@pytest.fixture(scope="session")
def prepared(mirrors: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a preparation with these options, made when it is first asked for."""
    folders: dict[str, Path] = {}

    def make(recipe: str, **variables: str) -> Path:
        name = f"{recipe} {sorted(variables.items())}"
        if name not in folders:
            folders[name], begin = tmp_path_factory.mktemp(recipe), time.monotonic()
            assert prepare(recipe, mirrors / recipe, folders[name], **variables) == 0
            SECONDS[folders[name]] = time.monotonic() - begin
        return folders[name]

    return make


def lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").split("\n")[:-1]


def text_of(pieces: str) -> str:
    return pieces.replace("@@ ", "")
