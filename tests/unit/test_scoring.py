"""Reading hypotheses, and scores that agree with sacrebleu's own command."""

import json
import os
import re
import sys
from pathlib import Path
from threading import Thread
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fairseq_recur import cli
from fairseq_recur.cli.scoring_options import split_names
from fairseq_recur.compat.interactive import sentence
from fairseq_recur.errors import ConfigError, Problems
from fairseq_recur.scoring.generation import read_hypotheses, read_lines
from fairseq_recur.scoring.metrics import Score, build_metric, score_corpus, score_table
from fairseq_recur.scoring.resampling import bootstrap_p, randomization_p
from fairseq_recur.scoring.significance import compare_systems
from fairseq_recur.scoring.tables import p_value
from tests.docs.commands import commands
from tests.sacrebleu_command import run_sacrebleu

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
SOURCE = [
    "Die Katze sa\u00df auf der Matte.",
    "Es war nicht da, oder?",
    "Ein bekanntes Verfahren \u2013 20 % besser!",
    "Streets and houses remain standing.",
]
SYSTEM = [
    "the cat sat on a mat.",
    "It wasn't here, was it?",
    "A well known state of the art method - 20% better!",
    "Stra\u00dfen und h\u00e4user bleiben\u2028stehen .",
]


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_only_a_newline_ends_a_line(tmp_path: Path, end: str) -> None:
    file = tmp_path / "text"
    file.write_bytes(end.join(["a\u2028b\x0bc \t", "", "d\re"]).encode())
    assert read_lines(file) == ["a\u2028b\x0bc", "", "d\re"]


def test_a_byte_order_mark_is_not_a_part_of_the_text(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_text("a b\n\ufeffc\n", encoding="utf-8-sig")
    assert read_lines(file) == ["a b", "\ufeffc"]
    assert sentence(file.read_bytes().split(b"\n")[0]) == "a b"


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
    with pytest.raises(ConfigError, match="it is a directory; expected text"):
        read_lines(tmp_path)
    with pytest.raises(ConfigError, match="cannot read .*Not a directory; expected text"):
        (tmp_path / "file").touch()
        read_lines(tmp_path / "file" / "text")


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    """As of <(zcat ref.gz): not a file, and empty the second time."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_text, args=["D-0\t-0.5\ta\nD-1\t-0.5\tb\n"], daemon=True)
    writer.start()
    assert read_hypotheses(pipe, 2) == ["a", "b"]
    writer.join()


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
        (["H-300000000\t-1\ta"], None, r"without ids 0, .*, 9 and 299999990 more"),
        (["H-0\t-1\ta"], 10**9, r"without ids 1, .*, 10 and 999999989 more"),
        ([f"H-{'9' * 19}\t-1\ta"], None, r"an id of 19 digits, expected at most 18"),
        (["H-20\t-1\ta"], None, r"without ids 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 10 more"),
        (["H-0\t-1\ta", "H-1\t-1\tb"], 1, r"with 2 sentences \(ids 0 to 1\), expected 1"),
        (["H-0\t-1\ta", "H-1\t-1\tb", "H-0\t-1\ta"], None, r"id 0 occurs twice \(H-0\)"),
        (["S-0\tx", "H-0\t-1\ta", "S-0\tx", "H-0\t-1\ta"], None, r"id 0 occurs twice"),
        (["H-0\t-1\ta", "D-0\t-1\ta", "H-1\t-1\tb"], None, r"without id 1 "),
        (["a", "b"], 3, r"has 2 lines, expected 3"),
    ],
)
def test_incomplete_output_is_refused(
    tmp_path: Path, lines: list[str], count: int, message: str
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
    tmp_path: Path, references: int, name: str, options: dict, command: list[str]
) -> None:
    files = [write(tmp_path / "one", REFERENCE), write(tmp_path / "two", SECOND)][:references]
    system = write(tmp_path / "system", SYSTEM)
    expected = run_sacrebleu([*files, "-i", system, "-w", "10", *command])
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


class StandInModel:
    """Has the interface of a COMET model, and records its inputs."""

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint
        self.asked: list[dict[str, Any]] = []

    def predict(self, samples: list[dict], batch_size: int, gpus: int) -> SimpleNamespace:
        self.asked.append({"samples": samples, "batch_size": batch_size, "gpus": gpus})
        scores = [
            len(set(s["mt"].split()) & set(s["ref"].split())) / (1 + len(s["src"].split()))
            for s in samples
        ]
        return SimpleNamespace(scores=scores, system_score=sum(scores) / len(scores))


@pytest.fixture
def comet(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A stand-in for unbabel-comet, in place of whatever is installed."""
    package = ModuleType("comet")
    package.models = []

    def download_model(model: str) -> str:
        if model != "Unbabel/wmt22-comet-da":
            raise KeyError(f"Model '{model}' not supported by COMET.")
        return "cache/model.ckpt"

    def load_from_checkpoint(checkpoint_path: str) -> StandInModel:
        package.models.append(StandInModel(checkpoint_path))
        return package.models[-1]

    package.download_model, package.load_from_checkpoint = download_model, load_from_checkpoint
    monkeypatch.setitem(sys.modules, "comet", package)
    return package


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, str]:
    lines = {"one": REFERENCE, "two": SECOND, "system": SYSTEM, "copy": SECOND, "source": SOURCE}
    return {name: str(write(tmp_path / name, of_one)) for name, of_one in lines.items()}


def options(texts: dict[str, str], **more: str) -> list[str]:
    """Options of `score` with COMET; `more` replaces some, and None leaves one out."""
    given = {"reference": texts["one"], "source": texts["source"], "metrics": "comet", **more}
    return [w for name, value in given.items() if value for w in (f"--{name}", value)]


def test_comet_is_the_models_score(
    comet: ModuleType, texts: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    report = tmp_path / "scores.json"
    systems = ["--system", f"a={texts['system']}", "--system", f"b={texts['copy']}"]
    assert cli.main(["score", *options(texts), *systems, "--json", str(report)]) == 0
    (model,) = comet.models
    assert model.checkpoint == "cache/model.ckpt"
    assert model.asked[0]["samples"] == [
        {"src": s, "mt": h, "ref": r} for s, h, r in zip(SOURCE, SYSTEM, REFERENCE)
    ]
    expected = {
        name: StandInModel("").predict(asked["samples"], 1, 0).system_score
        for name, asked in zip("ab", model.asked)
    }
    found = json.loads(report.read_text())["systems"]
    table = capsys.readouterr().out
    for name, value in expected.items():
        (score,) = found[name]["scores"]
        assert score["metric"] == "COMET" and score["score"] == pytest.approx(value)
        assert score["signature"].startswith("nrefs:1|model:Unbabel/wmt22-comet-da|unbabel-comet:")
        assert f"{name}       {value:.4f}" in table


def test_comet_takes_a_checkpoint_file(comet: ModuleType, texts: dict[str, str]) -> None:
    (metric,) = [build_metric("comet", source=SYSTEM, comet_model=texts["copy"], gpus=1)]
    score_corpus(SYSTEM, [REFERENCE], [metric])
    assert comet.models[0].checkpoint == texts["copy"] and comet.models[0].asked[0]["gpus"] == 1


def test_comet_is_compared_on_the_texts_scores(comet: ModuleType, texts: dict[str, str]) -> None:
    metric = build_metric("comet", source=SYSTEM)
    systems = {"a": SYSTEM, "b": SECOND}
    found = compare_systems(systems, [REFERENCE], [metric], "a", "both", samples=30, seed=3)
    asked = comet.models[0].asked
    assert len(asked) == 2  # each system once for both tests
    scores = [np.array(StandInModel("").predict(a["samples"], 1, 0).scores) for a in asked]
    result = found.of("COMET", "b")
    assert result.p == {
        "bootstrap": bootstrap_p(*scores, 30, 3), "randomization": randomization_p(*scores, 30, 3)
    }  # fmt: skip
    assert found.metrics[0].decimals == 4
    assert found.metrics[0].signatures["bootstrap"].startswith("nrefs:1|bs:30|seed:3|model:")


def test_comet_that_is_not_installed_is_reported_before_scoring(
    texts: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("fairseq_recur.cli.score.score_corpus", None)  # nothing is scored
    arguments = ["score", "--system", texts["system"]]
    for module in (None, ModuleType("comet")):  # absent, and the other program of that name
        monkeypatch.setitem(sys.modules, "comet", module)
        assert cli.main([*arguments, *options(texts)]) == 2
        assert "COMET is not installed" in (told := capsys.readouterr().err)
        assert "pip install unbabel-comet" in told and len(told.splitlines()) == 1
    wrong = [*arguments, *options(texts, source=None), "--system", "gone", "--reference"]
    assert cli.main([*wrong, texts["two"], "--json", "no/x"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("fairseq-recur: error: the systems cannot be scored:\n- ")
    for part in ("COMET is not", "cannot read gone", "--source", "one reference, found 2", "no/x"):
        assert told.count(part) == 1, part


def test_what_comet_cannot_work_with_is_reported_before_a_model_is_loaded(
    comet: ModuleType, texts: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    short = str(write(tmp_path / "short", ["a"]))
    arguments = ["score", "--system", texts["system"]]
    for changed, message in (
        ({"source": short}, "the source has 1 lines, expected 4"),
        ({"source": "gone"}, "cannot read gone"),
        ({"source": None}, "COMET needs the source texts; give them with --source"),
    ):
        assert cli.main([*arguments, *options(texts, **changed)]) == 2
        assert message in (told := capsys.readouterr().err) and len(told.splitlines()) == 1
    assert comet.models == []
    metric = build_metric("comet", source=SYSTEM[:2])
    for call in (
        lambda: score_corpus(SYSTEM, [REFERENCE, SECOND], [metric]),
        lambda: compare_systems({"a": SYSTEM, "b": SECOND}, [REFERENCE, SECOND], [metric], "a"),
    ):
        with pytest.raises(ConfigError, match="source has 2 lines.*\n.*one reference, found 2"):
            call()
    assert comet.models[0].asked == []


def test_a_comet_model_that_is_unavailable_is_named(
    comet: ModuleType, texts: dict[str, str], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr("fairseq_recur.cli.score.score_corpus", None)
    arguments = ["score", "--system", texts["system"], *options(texts)]
    assert cli.main([*arguments, "--comet-model", "Nobody/none"]) == 2
    told = capsys.readouterr().err
    assert "COMET's model 'Nobody/none' cannot be loaded (KeyError" in told
    assert "a name on the Hugging Face hub and a connection" in told


PAGE = Path(cli.__file__).parents[2] / "docs" / "scoring.md"


def test_the_pages_commands_run(
    comet: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    files = {"test.en": REFERENCE, "test.de": SOURCE, "baseline.out": SECOND, "biarn.out": SYSTEM}
    for name, lines in files.items():
        write(tmp_path / name, lines)
    printed = {}
    for words in commands(PAGE.read_text(encoding="utf-8")):
        assert cli.main(words[1:]) == 0, words
        printed[" ".join(words)] = capsys.readouterr().out
    scored, with_comet, compared, markdown = printed.values()
    assert "COMET" in with_comet and "biarn  " in scored and "TER: nrefs:1|" in scored
    assert "nrefs:1|bs:1000|seed:12345|" in compared and "|ar:10000|seed:12345|" in compared
    assert set(json.loads((tmp_path / "compare.json").read_text())) > {"metrics", "baseline"}
    assert markdown.startswith("| metric | system | score | difference | p (randomization) |")


def test_the_pages_program_runs(capsys: pytest.CaptureFixture) -> None:
    (program,) = re.findall("```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(program, str(PAGE), "exec"), {})
    score, difference, p, corrected, significant = capsys.readouterr().out.split()
    assert float(score) > float(difference) > 0 and significant == "False"
    assert 0 < float(p) <= float(corrected) <= 1


@pytest.mark.parametrize("command", ["score", "compare"])
def test_options_without_effect_are_refused_together(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("x\n")
    argv = [command, "--reference", str(tmp_path / "a"), "--system", str(tmp_path / "b")]
    argv += ["--baseline", str(tmp_path / "a")] if command == "compare" else []
    given = ["--lowercase", "--separator", "##", "--source", "s", "--comet-model", "m"]
    assert cli.main([*argv, "--metrics", "ter", "--tokenize", "zh", *given]) == 2
    said = capsys.readouterr().err
    for option in ("tokenize", "lowercase", "separator", "source", "comet-model"):
        assert re.search(f"\n- --{option} acts on .* has no effect with --metrics ter; ", said)
    assert cli.main([*argv, "--metrics", "ter", "--tokenize", "13a"]) == 0  # the default


def test_a_path_with_an_equals_sign_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=0.1").mkdir()
    (tmp_path / "lr=0.1/out").touch()
    problems = Problems("wrong")
    found = split_names(["lr=0.1/out", "a=lr=0.1/out", "b=none"], problems)
    assert found == {"lr=0.1/out": "lr=0.1/out", "a": "lr=0.1/out", "b": "none"}
    assert not problems.found


@pytest.mark.parametrize("p, text", [
    (1.0, "1.000"), (0.0429, "0.043"), (0.001, "0.001"), (0.0001, "0.0001"), (2**-14, "0.00006"),
])  # fmt: skip
def test_a_small_p_value_shows_a_digit(p: float, text: str) -> None:
    assert p_value(p) == text
