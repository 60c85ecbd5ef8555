"""Any text passes through preprocess, generate and interactive; no line is lost or moved."""

import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fairseq.dataclass.configs import GenerationConfig

from fairseq_recur.cli import main
from fairseq_recur.compat.interactive import make_batches
from fairseq_recur.errors import ConfigError
from tests.conftest import SMALL, TRAIN
from tests.running import SHORT, USER_DIR, hypotheses

Cli = Callable[..., str]

PIECES = [
    *(f"w{n}" for n in range(1, 6)), "", " ", "\t", "\x00", "\x01", "\x0b", "\x0c",
    "\x1b[31m", "\x1c", "\x1d", "\x1e", "\x7f", "\x85", "\xa0", "\u2028", "\u2029",
    "\u200b", "\u202e", "\ufeff", "\ufffd", "مرحبا بالعالم", "שלום", "😀", "👩‍👩‍👧",
    "e\u0301", "<unk>", "<s>", "</s>", "<pad>", "@@", "S-0\t", "|||",
]  # fmt: skip
BYTES = [b"\r", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"w1 \xff w2"]
LONG = ["w1" * 50_000, "w1 " * 33_333 + "w", "\u202e" * 100_000]


def lines(seed: int, count: int) -> list[str]:
    """Lines of such pieces, including empty and very long ones."""
    chance = random.Random(seed)
    made = [
        chance.choice([" ", ""]).join(chance.choices(PIECES, k=chance.randrange(9)))
        for _ in range(count)
    ]
    for line in ["", *LONG]:
        made.insert(chance.randrange(len(made)), line)
    return made


def write(path: Path, content: list[str]) -> None:
    path.write_bytes("".join(line + "\n" for line in content).encode())


@pytest.fixture(scope="module")
def model(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[str]]:
    """Binary data of such text, made by preprocess; a model trained on it; the test's sources."""
    folder = tmp_path_factory.mktemp("fuzz")
    for number, name in enumerate(("train", "valid", "test")):
        content = lines(number, 40)
        if name == "train":
            content = [line for line in content if line not in LONG]
        write(folder / f"{name}.src", content)
        # Targets that any length limit lets through.
        write(folder / f"{name}.tgt", [f"w{len(line) % 5}" for line in content])
    assert main([
        "preprocess", "-s", "src", "-t", "tgt", "--joined-dictionary", "--workers", "2",
        *(f"--{name}pref={folder / name}" for name in ("train", "valid", "test")),
        "--destdir", str(folder / "bin"),
    ]) == 0  # fmt: skip
    cli(
        "train", folder / "bin", "--user-dir", USER_DIR, "--arch", "transformer_biarn_tiny",
        *SMALL, *TRAIN, "--max-update", 2, "--truncate-source", "--max-source-positions", 50,
        "--save-dir", folder,
    )  # fmt: skip
    return folder / "bin", folder / "checkpoint_last.pt", lines(2, 40)


def words(line: str) -> int:
    """How many words of a line fairseq shows; a model that reads 50 keeps 49 and the end."""
    tokens = re.sub(r"\s+", " ", line).strip().split()
    # These are symbols of the dictionary, whoever writes them, and not shown.
    return min(sum(token not in ("<s>", "</s>", "<pad>") for token in tokens), 49)


def sources(output: str) -> dict[int, int]:
    """The S- lines: how many words each has."""
    found = re.findall(r"^S-(\d+)(?:\t([^\n]*))?$", output, re.M)
    return {int(number): len(text.split(" ")) if text else 0 for number, text in found}


def test_preprocess_and_generate(model: tuple[Path, Path, list[str]], cli: Cli) -> None:
    data, checkpoint, texts = model
    output = cli(
        "generate", data, "--user-dir", USER_DIR, "--path", checkpoint, "--cpu", "--num-workers", 0,
        "--truncate-source", "--max-source-positions", 50, "--max-tokens", 300, *SHORT,
    )  # fmt: skip
    assert sources(output) == {n: words(text) for n, text in enumerate(texts)}
    assert {*hypotheses(output)} == {*range(len(texts))}


@pytest.mark.slow
@pytest.mark.parametrize("by", ["typed", "file"])
def test_interactive(
    by: str, model: tuple[Path, Path, list[str]], cli: Cli, tmp_path: Path
) -> None:
    data, checkpoint, _ = model
    chance = random.Random(by)
    texts = [line.encode() for line in lines(5, 30)]
    texts += [chance.choice(texts[:9]) + part + chance.choice(texts[:9]) for part in BYTES * 2]
    chance.shuffle(texts)
    content = b"".join(text + b"\n" for text in texts)
    (tmp_path / "lines").write_bytes(content)
    flags = [
        data, "--user-dir", USER_DIR, "--path", checkpoint, "--cpu", "--truncate-source",
        "--max-source-positions", 50, *SHORT,
    ]  # fmt: skip
    given = {"stdin": content} if by == "typed" else {}
    if by == "file":
        flags += ["--input", tmp_path / "lines"]
    several = cli("interactive", *flags, "--buffer-size", 7, "--batch-size", 7, **given)
    expected = [words(text.decode(errors="replace").replace("\r", " ")) for text in texts]
    assert sources(several) == dict(enumerate(expected))
    order = [int(n) for n in re.findall(r"^S-(\d+)", several, re.M)]
    assert order == sorted(order) == [*range(len(texts))]
    alone = cli("interactive", *flags, **given)
    found = hypotheses(several)
    assert {n: h[0].words for n, h in found.items()} == {
        n: h[0].words for n, h in hypotheses(alone).items()
    }


@pytest.mark.parametrize(
    "side, content, message",
    [
        ("src", b"a b\nc\rd\ne\n", "train.src, line 2: found a carriage return within the line"),
        ("tgt", b"a\nb\r\r\nc\n", "train.tgt, line 2: found a carriage return within the line"),
        ("src", b"\xef\xbb\xbfa b\nc\nd\n", "train.src begins with a byte order mark"),
        ("tgt", b"a\nb\n\xffc\n", r"train.tgt, line 3: byte 0xff at 1 is not UTF-8"),
        ("tgt", b"a\nb\n", "train.src has 3 and .*train.tgt has 2 lines"),
    ],
)
def test_text_that_would_shift_lines_is_refused(
    side: str, content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("src", "tgt"):
        (tmp_path / f"train.{name}").write_bytes(b"a b\r\nc\nd\n")
    argv = ["preprocess", "-s", "src", "-t", "tgt", "--trainpref", str(tmp_path / "train")]
    argv += ["--destdir", str(tmp_path / "bin")]
    (tmp_path / f"train.{side}").write_bytes(content)
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert re.search(message, said) and not (tmp_path / "bin").exists()


def test_lines_with_windows_ends_are_lines(tmp_path: Path) -> None:
    for name in ("src", "tgt"):
        (tmp_path / f"train.{name}").write_bytes(b"a b\r\nc\nd\r\n")
    argv = ["preprocess", "-s", "src", "-t", "tgt", "--trainpref", str(tmp_path / "train")]
    assert main([*argv, "--destdir", str(tmp_path / "bin")]) == 0
    assert (tmp_path / "bin/dict.src.txt").read_text().startswith("a 1\nb 1\nc 1\nd 1\n")


def test_a_line_that_is_too_long_does_not_lose_the_lines_before_it(tmp_path: Path) -> None:
    """Their translations are printed before the error ends the program."""
    from fairseq_cli import interactive

    def make(lines: list[str], *_: Any) -> Iterator[list[str]]:
        if max(map(len, lines)) > 5:  # the longest comes first in fairseq's message
            raise Exception("Size of sample #3 is invalid")
        yield lines

    task = SimpleNamespace(get_interactive_tokens_and_lengths=lambda x, _: (x, map(len, x)))
    text = tmp_path / "text"
    text.write_text("a\nb\ncc\nmuch too long\nd\nmuch, much too long\n")
    wrapped, cfg = partial(make_batches, make), SimpleNamespace(generation=GenerationConfig())
    reader, found = interactive.buffered_read(str(text), 2), []
    with pytest.raises(ConfigError, match="line 4 of the input has 13 tokens, expected at most 5"):
        for lines in reader:
            found += wrapped(lines, cfg, task, (5, 9), None)
    assert found == [["a", "b"], ["cc"]]
    with pytest.raises(Exception, match="Size of sample"):  # of another caller
        list(wrapped(["much too long"], cfg, task, 5, None))
