"""The commands of docs/first_steps.md, followed by somebody with a Chinese-English corpus."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.commands import ROOT
from tests.running import programs_in

PAIRS = 2300
"""Of the one set that the reader has: 1,000 for validation, 1,000 for the test."""

# Updates, translations and subwords are few, because a test is to end.
SHORTER = {
    r"(experiment run .*)": r"\1 --set train.max-update=2 --set generate.max-len-b=5",
    r"--max-epoch 4": "--max-update 2",
    r"(text/test.zh) > test.txt": r"\1 --max-len-b 5 > test.txt",
    r"--output attention.png": "--output attention.png --max-len-b 5",
    r"\b8000\b": "600",
}


def script() -> str:
    """The blocks from the reader's text to the figures, with the reader's languages."""
    page = (ROOT / "docs" / "first_steps.md").read_text(encoding="utf-8")
    part = page[page.index("## Your own text") : page.index("## Which system")]
    blocks = re.findall(r"^```bash\n(.*?)^```", part, re.M | re.S)
    # The other direction, and the command that stands in place of the first one.
    (other,) = [block for block in blocks if "identity" in block]
    (chinese,) = [block for block in blocks if "bpe.py text . 8000 zh en\n" in block]
    theirs = "".join(block for block in blocks if block not in (other, chinese))
    languages = {"en": "zh", "de": "en"}
    theirs = re.sub(r"\b(en|de)\b", lambda found: languages[found[0]], theirs)
    theirs, count = re.subn(r"python .*bpe\.py .*\n", chinese, theirs)
    assert count == 1
    for pattern, replaced in SHORTER.items():
        theirs, count = re.subn(pattern, replaced, theirs)
        assert count == 1, pattern
    return theirs


def write_corpus(folder: Path, name: str, first: int, last: int) -> None:
    """Some pairs of the quick start, with a Chinese character for each letter of the source."""
    data = ROOT / "examples" / "quickstart" / "data"
    for there, here in (("en", "zh"), ("de", "en")):
        lines = (data / f"train.{there}").read_text(encoding="utf-8").split("\n")[first:last]
        if here == "zh":
            lines = [
                "".join(chr(0x4E00 + ord(c) % 500) for c in line if c.isalnum()) for line in lines
            ]
        (folder / f"{name}.{here}").write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.slow
def test_the_page_can_be_followed(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    write_corpus(tmp_path, "corpus", 0, PAIRS)
    write_corpus(tmp_path, "news", PAIRS, PAIRS + 5)
    path = os.pathsep.join([str(programs_in(tmp_path / "programs")), "/usr/bin", "/bin"])
    environment = {
        "PATH": path, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "-euo", "pipefail"], input=script(), env=environment, cwd=tmp_path,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for name, lines in {
        "text/train.zh": PAIRS - 2000, "part/train.en": PAIRS - 2000, "text/valid.en": 1000,
        "pieces/test.zh": 1000, "test.txt": 1000,
    }.items():  # fmt: skip
        assert len((tmp_path / name).read_text(encoding="utf-8").split("\n")) == lines + 1, name
    table = (tmp_path / "work" / "table.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (\w+)", table, re.M)[1:] == [
        "transformer", "control", "transformer_biarn"
    ]  # fmt: skip
    assert "against control" in table and "tok:13a" in table
    for name in ("work/other_sets/news/table.md", "checkpoints/baseline/checkpoint_best.pt",
                 "curves.png", "attention.png"):  # fmt: skip
        assert (tmp_path / name).is_file(), name
