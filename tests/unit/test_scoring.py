"""Reading hypotheses, and scores that agree with sacrebleu's own command."""

import json
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

from fairseq_recur.errors import ConfigError
from fairseq_recur.scoring.generation import read_hypotheses, read_lines
from fairseq_recur.scoring.metrics import Score, build_metric, score_corpus, score_table

REFERENCE = [
    "The cat sat on the mat.",
    "It wasn't there, was it?",
    "A well-known state-of-the-art method \u2013 20% better!",
    "Stra\u00dfen und H\u00e4user\u2028bleiben stehen.",
]
SECOND = [
    "A cat was sitting on the mat.",
    "It was not there, was it?",
    "A famous, modern method: 20 % better.",
    "Die Stra\u00dfen und die H\u00e4user bleiben.",
]
SYSTEM = [
    "the cat sat on a mat.",
    "It wasn't here, was it?",
    "A well known state of the art method - 20% better!",
    "Stra\u00dfen und h\u00e4user bleiben\u2028stehen .",
]


def write(path: Path, lines: List[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_only_a_newline_ends_a_line(tmp_path: Path, end: str) -> None:
    file = tmp_path / "text"
    file.write_bytes(end.join(["a\u2028b\x0bc \t", "", "d\re"]).encode())
    assert read_lines(file) == ["a\u2028b\x0bc", "", "d\re"]


@pytest.mark.parametrize(
    "content, message",
    [(None, "there is no such file"), (b"", "is empty"), (b"\xff\xfe\n", "is not UTF-8")],
)
def test_unreadable_text_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "text"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as raised:
        read_lines(file)
    assert str(file) in str(raised.value)
    with pytest.raises(ConfigError, match="directory"):
        read_lines(tmp_path)


GENERATED = [
    "2026-01-31 12:00:00 | INFO | fairseq_cli.generate | H-9\t is in this line of the log",
    "S-1\tzwei",
    "T-1\ttwo",
    "H-1\t-0.5\tt@@ wo",
    "D-1\t-0.5\ttwo",
    "P-1\t-0.5 -0.5",
    "H-1\t-1.5e-05\tt@@ oo",
    "D-1\t-1.5e-05\ttoo",
    "S-0\teins",
    "H-0\t-inf\to@@ ne\tand\ttabs",
    "D-0\t-inf\tone\tand\ttabs",
    "S-2\t",
    "H-2\t0\t",
    "D-2\t0\t",
    "Generate test with beam=5: BLEU4 = 1.0",
]


def test_generation_output_in_the_order_of_the_ids(tmp_path: Path) -> None:
    file = write(tmp_path / "out", GENERATED)
    assert read_hypotheses(file, 3) == read_hypotheses(file) == ["one\tand\ttabs", "two", ""]
    tokens = write(tmp_path / "tokens", [line for line in GENERATED if line[:2] != "D-"])
    assert read_hypotheses(tokens) == ["o@@ ne\tand\ttabs", "t@@ wo", ""]
    detokenized = write(tmp_path / "grep", [line for line in GENERATED if line[:2] == "D-"])
    assert read_hypotheses(detokenized) == ["one\tand\ttabs", "two", ""]


def test_plain_text_stays_as_it_is(tmp_path: Path) -> None:
    lines = ["H-1 is a title", "D-2\tnot a score\tx", "", "last"]
    assert read_hypotheses(write(tmp_path / "text", lines), 4) == lines


@pytest.mark.parametrize(
    "lines, count, message",
    [
        (["H-0\t-1\ta", "H-2\t-1\tc"], None, r"without id 1 \(ids 0 to 2 expected, 2 found\)"),
        (["H-0\t-1\ta", "H-1\t-1\tb"], 4, r"without ids 2, 3 "),
        (["H-20\t-1\ta"], None, r"without ids 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 10 more"),
        (["H-0\t-1\ta", "H-1\t-1\tb"], 1, r"with 2 sentences \(ids 0 to 1\), expected 1"),
        (["H-0\t-1\ta", "H-1\t-1\tb", "H-0\t-1\ta"], None, r"id 0 is there twice \(H-0\)"),
        (["S-0\tx", "H-0\t-1\ta", "S-0\tx", "H-0\t-1\ta"], None, r"id 0 is there twice"),
        (["H-0\t-1\ta", "D-0\t-1\ta", "H-1\t-1\tb"], None, r"without id 1 "),
        (["a", "b"], 3, r"has 2 lines, expected 3"),
    ],
)
def test_incomplete_output_is_refused(
    tmp_path: Path, lines: List[str], count: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_hypotheses(write(tmp_path / "out", lines), count)


# Our option, and the same for sacrebleu's command.
SETTINGS = [
    ("bleu", {}, ["-m", "bleu"]),
    ("bleu", {"lowercase": True}, ["-m", "bleu", "-lc"]),
    ("bleu", {"tokenize": "intl"}, ["-m", "bleu", "--tokenize", "intl"]),
    ("bleu", {"tokenize": "char"}, ["-m", "bleu", "--tokenize", "char"]),
    ("bleu", {"tokenize": "none"}, ["-m", "bleu", "--tokenize", "none"]),
    ("bleu", {"tokenize": "zh"}, ["-m", "bleu", "--tokenize", "zh"]),
    ("chrf", {}, ["-m", "chrf"]),
    ("chrf", {"lowercase": True}, ["-m", "chrf", "--chrf-lowercase"]),
    ("chrf++", {}, ["-m", "chrf", "--chrf-word-order", "2"]),
    ("ter", {}, ["-m", "ter"]),
]


@pytest.mark.parametrize("references", [1, 2])
@pytest.mark.parametrize("name, options, command", SETTINGS)
def test_scores_are_those_of_sacrebleus_command(
    tmp_path: Path, references: int, name: str, options: dict, command: List[str]
) -> None:
    files = [write(tmp_path / "one", REFERENCE), write(tmp_path / "two", SECOND)][:references]
    system = write(tmp_path / "system", SYSTEM)
    printed = subprocess.run(
        [sys.executable, "-m", "sacrebleu", *map(str, files), "-i", str(system), "-w", "10"]
        + command,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    expected = json.loads(printed)
    texts = [read_lines(file) for file in files]
    (score,) = score_corpus(read_hypotheses(system, 4), texts, [build_metric(name, **options)])
    assert f"{score.value:.10f}" == f"{expected['score']:.10f}"
    assert (score.name, score.signature) == (expected["name"], expected["signature"])
    assert 0 < score.value < 100


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown metric 'rouge'; expected one of bleu, chrf"):
        build_metric("rouge")
    with pytest.raises(ConfigError, match="unknown tokenizer '13b'; expected .*13a"):
        build_metric("bleu", tokenize="13b")


def test_a_tokenizer_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from sacrebleu.tokenizers import tokenizer_ja_mecab

    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    with pytest.raises(ConfigError, match="'ja-mecab' is not available.*extra dependencies"):
        build_metric("bleu", tokenize="ja-mecab")


def test_references_must_be_as_long_as_the_system() -> None:
    with pytest.raises(ConfigError, match="4 hypotheses, but reference 2 has 3 lines"):
        score_corpus(SYSTEM, [REFERENCE, SECOND[:3]], [build_metric("bleu")])


def test_table_is_aligned_and_has_the_signatures() -> None:
    scores = {
        "a": [Score("BLEU", 1.004, "tok:13a"), Score("chrF2", 100.0, "nc:6")],
        "longer": [Score("BLEU", 33.3333, "tok:13a"), Score("chrF2", 5.0, "nc:6")],
    }
    assert score_table(scores).splitlines() == [
        "system   BLEU   chrF2",
        "---------------------",
        "a        1.00  100.00",
        "longer  33.33    5.00",
        "",
        "BLEU: tok:13a",
        "chrF2: nc:6",
    ]


def test_scoring_needs_neither_torch_nor_fairseq() -> None:
    folder = Path(read_lines.__code__.co_filename).parent
    for file in folder.glob("*.py"):
        imports = [line for line in file.read_text().splitlines() if "import " in line]
        assert not [line for line in imports if "torch" in line or "fairseq " in line], file
