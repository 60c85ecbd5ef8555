"""The quick start's program for subwords, which the first steps use for other languages."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import sentencepiece

PROGRAM = Path(__file__).parents[2] / "examples" / "quickstart" / "bpe.py"
LINE = "\u4f60\u597d\uff0c\u4e16\u754c\u3002"  # "Hello, world." with full-width punctuation


def words(folder: Path, *rule: str, size: str = "60") -> list[str]:
    return [str(folder), str(folder / "work"), size, "en", "zh", *rule]


def run(folder: Path, *rule: str) -> int:
    """Run the program in this process; return its exit status."""
    return runpy.run_path(str(PROGRAM))["main"](words(folder, *rule))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}.en").write_text("Hello, world.\nIs the world open?\n" * 5)
        (tmp_path / f"{name}.zh").write_text(f"{LINE}\n\u4e16\u754c\u2028\u597d\n" * 5)
    return tmp_path


@pytest.mark.parametrize(("rule", "comma"), [((), ","), (("identity",), "\uff0c")])
def test_full_width_punctuation_can_be_kept(
    texts: Path, rule: tuple[str], comma: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(texts, *rule) == 0
    pieces = (texts / "work" / "pieces" / "train.zh").read_text().split("\n")
    assert len(pieces) == 10 + 1  # U+2028 is no end of a line
    count = sum(len(line.split(" ")) for line in pieces[:-1])
    assert f"train.zh: 10 lines, 50 characters, {count} subwords\n" in capsys.readouterr().out
    model = sentencepiece.SentencePieceProcessor(model_file=str(texts / "work" / "bpe.model"))
    assert model.decode(pieces[0].split()) == LINE.replace("\uff0c", comma)


def test_what_is_wrong_is_reported_before_anything_is_written(
    texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(texts, "none")
    assert "invalid choice: 'none'" in capsys.readouterr().err
    (texts / "test.zh").unlink()
    assert run(texts) == 2
    assert "test.zh: there is no such file" in capsys.readouterr().err
    assert not (texts / "work").exists()


@pytest.mark.slow
def test_other_numbers_of_subwords_than_the_text_has(texts: Path) -> None:
    """As a program of its own. A text has no fewer subwords than characters."""
    for size, status in (("4000", 0), ("5", 2)):
        command = [sys.executable, str(PROGRAM), *words(texts, size=size)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == status and "Traceback" not in done.stderr
        if size == "4000":
            model = texts / "work" / "bpe.model"
            count = sentencepiece.SentencePieceProcessor(model_file=str(model)).get_piece_size()
            assert f"has only {count} subwords, not 4,000" in done.stderr
    assert "cannot learn 5 subwords" in done.stderr
