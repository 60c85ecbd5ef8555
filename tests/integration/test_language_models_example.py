"""The example of language models: small ones on any text, and the recipes of the full size."""

import hashlib
import importlib
import math
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.data.data_utils import load_indexed_dataset
from recipes.fetch import SUMS

from fairseq_recur.cli import main
from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.steps import LOCK
from fairseq_recur.files import read_json
from fairseq_recur.locks import hold
from tests.docs.commands import parse
from tests.integration.test_experiments import forked, wait_for  # noqa: F401
from tests.running import USER_DIR, programs_in, saved_weights

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "language_models"
MODULES = ("run", "settings", "text", "report", "elsewhere", "figure", "prepare")
FULL = ["enwik8", "text8", "wikitext103"]
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in FULL[:2]]

MINIATURE: dict[str, Any] = {
    "UPDATES": 4, "TOKENS": 8, "MEMORY": 8, "BATCH": 4, "EVAL_MEMORY": 16, "EVAL_CLAMP": 12,
    "SEEDS": 1, "SHARES": "50", "SHARE_SYSTEMS": "rsa_xl_lm",
    "OPTIONS": "--decoder-embed-dim 16 --decoder-input-dim 16 --decoder-output-dim 16 "
    "--decoder-layers 3 --decoder-ffn-embed-dim 24 --decoder-attention-heads 2",
}  # fmt: skip


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """Import a module of the example, with the miniature settings and WORK in the environment."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    for name in MODULES:
        sys.modules.pop(name, None)
    for name, value in {**MINIATURE, "WORK": tmp_path / "work"}.items():
        monkeypatch.setenv(name, str(value))
    yield importlib.import_module
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A text of eight words; the test set has one that the others lack."""
    found, rng = tmp_path / "some text", random.Random(1)
    found.mkdir()
    for part, lines in (("train", 40), ("valid", 4), ("test", 6)):
        texts = [" ".join(f"w{rng.randrange(8)}" for _ in range(9)) for _ in range(lines)]
        (found / f"{part}.txt").write_text(" " + " \n".join([*texts, "", ""]))
    with (found / "test.txt").open("a") as file:
        file.write("w0 new <unk>\n")
    return found


def test_everything_in_miniature(
    modules: Callable[[str], Any], folder: Path, tmp_path: Path, forked: None,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A training and its evaluation by the real commands; then nothing is done again."""
    run, work = modules("run"), tmp_path / "work"
    assert run.main([str(folder)]) == 0, capsys.readouterr().out
    printed = capsys.readouterr().out
    assert "1 of 1 runs done, 100% of the training" in printed
    results = read_json(work / "results.json")
    digest = results["text"].pop("digest")
    assert re.fullmatch(r"[0-9a-f]{64}", digest) and results["text"] == {
        "train": 40 * 10 + 1, "valid": 4 * 10 + 1, "test": 6 * 10 + 1 + 4, "different": 8,
        "unknown_in_test": 2,
    }  # fmt: skip
    (cell,) = results["runs"]["50"]["rsa_xl_lm"].values()
    assert cell["tokens"] == 65 and 4 < cell["perplexity"] < 20
    assert cell["perplexity"] == pytest.approx(2 ** cell["bpc"], rel=0.001)
    # They start at sigmoid(-1), the paper's for words, and four updates of Adam move them a little.
    assert [*cell["gates"]] == ["1", "2", "3"]
    start = 1 / (1 + math.exp(1))
    assert all(1e-5 < abs(gate - start) < 0.002 for gate in cell["gates"].values())
    table = (work / "results.md").read_text()
    perplexity, gate = f"{cell['perplexity']:.2f}", f"{mean(cell['gates'].values()):.3f}"
    shown = f"{cell['parameters']:,} | {perplexity} | {perplexity} |  | {gate} |"
    assert f"| 50 % | rsa_xl_lm | 1 | {shown}" in table
    assert table.partition("\n\n")[2].strip() in printed
    assert (work / "figure.png").stat().st_size > 1000
    assert {file.name for file in work.rglob("*.pt")} == {"checkpoint_best.pt"}

    before = (work / "share50/rsa_xl_lm/seed1/train.log").read_text()
    assert run.main([str(folder)]) == 0
    assert "1 runs, 1 of them already done" in capsys.readouterr().out
    assert (work / "share50/rsa_xl_lm/seed1/train.log").read_text() == before
    assert run.main([str(folder), "table"]) == 0 and "| 50 % |" in capsys.readouterr().out
    add_to_another_folder(run, folder, results, tmp_path, monkeypatch, capsys)
    (folder / "test.txt").write_text("w1\n")
    assert run.main([str(folder)]) == 2
    assert "has trainings on another text" in capsys.readouterr().err


def add_to_another_folder(
    run: Any, folder: Path, results: dict[str, Any], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Results of another machine join a table; nothing of theirs is trained again."""
    first, work, here = tmp_path / "work/results.json", tmp_path / "work", tmp_path / "here"
    monkeypatch.setenv("WORK", str(here))
    monkeypatch.setenv("ADD", str(first))
    assert run.main([str(folder)]) == 0
    assert "0 runs, 0 of them already done" in capsys.readouterr().out
    joined = read_json(here / "results.json")
    assert joined["runs"] == results["runs"] and joined["machine"] == results["machine"]
    assert joined["versions"] == results["versions"], "of both, once"
    assert joined["command"] == f"ADD={first} {results['command']}"
    assert [one["command"] for one in joined["added"]] == [results["command"]]
    (tmp_path / "foreign.json").write_text("{}")
    monkeypatch.setenv("ADD", f"{first} {tmp_path}/foreign.json {tmp_path}/none.json")
    monkeypatch.setenv("LR", "0.01")
    assert run.main([str(folder)]) == 2
    said = capsys.readouterr().err
    for wrong in (f"{first} was trained with another LR", "foreign.json is not one",
                  "cannot read", "none.json: No such file"):  # fmt: skip
        assert wrong in said
    monkeypatch.delenv("LR")
    monkeypatch.setenv("ADD", str(first))
    monkeypatch.setenv("SEEDS", "7")
    lines = (folder / "train.txt").read_text()
    (folder / "train.txt").write_text("\n".join(sorted(lines.splitlines())) + "\n")
    monkeypatch.setenv("WORK", str(tmp_path / "sorted"))
    assert run.main([str(folder)]) == 2, "of the same size"
    said = capsys.readouterr().err
    assert f"{first} is of another text" in said and f"{first} has no run of the chosen" in said
    (folder / "train.txt").write_text(lines)
    monkeypatch.setenv("SEEDS", "1")
    monkeypatch.setenv("ADD", " ")
    monkeypatch.setenv("WORK", str(work))
    assert run.main([str(folder), "table"]) == 0, "none are added"
    capsys.readouterr()
    monkeypatch.delenv("ADD")


def test_results_of_another_rate_do_not_join(
    modules: Callable[[str], Any], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was trained on another device does."""
    for name, value in {"SHARES": "100", "SYSTEMS": "xl_lm"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SHARE_SYSTEMS")
    settings, elsewhere = modules("settings"), modules("elsewhere")
    made = modules("report").about(
        settings.read_settings(), modules("text").read(folder, "words"), str(folder)
    )
    results = {**made, "runs": {"100": {"xl_lm": {"1": dict.fromkeys(elsewhere.RESULT, 1)}}}}
    for name, value, expected in (
        ("DEVICE", "cuda", []), ("LR", "0.1", ["was trained with another LR"]),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
        now = settings.read_settings()
        here, runs = {**made, "settings": now.as_dict()}, list(settings.text_runs(now, tmp_path))
        assert [run.system for run in runs] == ["xl_lm"], "nothing besides"
        assert list(elsewhere.differences(results, here, runs)) == expected


WRONG: dict[str, tuple[dict[str, str], str]] = {
    "UNITS": ({"UNITS": "bytes"}, "expected one of words, characters"),
    "SYSTEMS": ({"SYSTEMS": "lstm"}, "expected some of: xl_lm rsa_xl_lm"),
    "no use": ({"SYSTEMS": "xl_lm"}, "SYSTEMS=xl_lm: has no effect without the whole text"),
    "no parts": ({"SHARES": "100"}, "SHARE_SYSTEMS=rsa_xl_lm: has no effect without a part of"),
    "SHARES": ({"SHARES": "0 100"}, "SHARES=.*: expected whole numbers from 1 to 100"),
    "LR": ({"LR": "0"}, "expected a number above 0"),
    "WARMUP": ({"WARMUP": "1"}, "WARMUP=1.0: expected a number below 1, the part of UPDATES"),
    "TOKENS": ({"TOKENS": "1"}, "expected a whole number, at least 2"),
    "OPTIONS": ({"OPTIONS": "'a"}, "No closing quotation; expected flags"),
    "a length": ({"OPTIONS": "--tokens-per-sample 4"}, "--tokens-per-sample: choose it with TOK"),
    "no result": ({"OPTIONS": "--no-save"}, "OPTIONS has --no-save: the table is read from what"),
    "both": ({"DEVICE": "gpu", "JOBS": "0"}, "(?s)DEVICE=gpu.*JOBS=0"),
    "BATCH": ({"BATCH": "100"}, "50 % .* are 200 tokens; expected at least 800, BATCH times"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_settings_are_refused_before_any_work(
    name: str, modules: Callable[[str], Any], folder: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    variables, said = WRONG[name]
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert modules("run").main([str(folder)]) == 2
    assert re.search(said, capsys.readouterr().err)
    assert not (tmp_path / "work").exists()


def test_the_rate_rises(
    modules: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a part of the updates, for all systems alike."""
    given = {"SHARES": "100", "LR": "0.3", "UPDATES": "50", "WARMUP": "0.3"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SHARE_SYSTEMS")
    settings = modules("settings")
    runs = list(settings.text_runs(settings.read_settings(), tmp_path))
    assert {run.system for run in runs} == set(settings.SYSTEMS)
    for run in runs:
        found = [run.flags[run.flags.index(f) + 1] for f in ("--lr", "--warmup-updates")]
        assert found == ["0.3", "15"]


@pytest.mark.parametrize("updates, warmup", [(4, 3), (1, 0)])
def test_the_rate_falls_in_the_last_update(
    updates: int, warmup: int, modules: Callable[[str], Any]
) -> None:
    """The cosine divides by the number of updates after the warm-up."""
    settings = modules("settings")
    flags = settings.train_flags("xl_lm", 1, settings.Settings(updates=updates, warmup=0.99))
    assert flags[flags.index("--warmup-updates") + 1] == str(warmup)


@pytest.mark.parametrize(
    "units, started",
    [
        ("characters", {"xl_lm": (None, None), "rsa_xl_lm": ("1", "6,12"), "tl_xl_lm": ("1", None),
                        "fl_xl_lm": ("1", None), "brt_lm": (None, None),
                        "rsa_brt_lm": ("-1", "5,10")}),
        ("words", {"xl_lm": (None, None), "rsa_xl_lm": ("-1", "12,24"), "tl_xl_lm": ("-1", None),
                   "fl_xl_lm": ("-1", None), "brt_lm": (None, None),
                   "rsa_brt_lm": ("-2", "12,24")}),
    ],
)  # fmt: skip
def test_gates_and_dilations_belong_to_the_units(
    modules: Callable[[str], Any], units: str, started: dict[str, tuple[str | None, str | None]]
) -> None:
    """Table 7 of the paper: those for Text8, and for WikiText-103."""
    settings = modules("settings")
    for system, expected in started.items():
        flags = settings.train_flags(system, 1, settings.Settings(units=units))
        found = " ".join(flags) + " "
        gate = re.search(r"--rsa-gate-init=(\S+)", found)
        dilations = re.search(r"--rsa-dilations (\S+)", found)
        assert (gate and gate[1], dilations and dilations[1]) == expected


def test_a_wrong_text_is_refused_before_any_work(
    modules: Callable[[str], Any], folder: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    run = modules("run")
    for words in ([], [str(folder), "tables"], [str(folder), "table", "x"]):
        assert run.main(words) == 2 and "bash run.sh FOLDER [table]" in capsys.readouterr().err
    assert (
        run.main([str(tmp_path / "none")]) == 2 and "there is no folder" in capsys.readouterr().err
    )
    (folder / "train.txt").write_bytes(b"caf\xe9\n")
    (folder / "valid.txt").unlink()
    (folder / "test.txt").write_text("a <pad> b </s>\n")
    assert run.main([str(folder)]) == 2
    said = capsys.readouterr().err
    for wrong in ("nothing was trained", "is not UTF-8", "no file for valid; expected valid.txt",
                  "test.txt has the words </s>, <pad>"):  # fmt: skip
        assert wrong in said
    for part in ("train", "valid", "test"):
        (folder / f"{part}.txt").write_text("\n \n")
    assert run.main([str(folder)]) == 2
    assert capsys.readouterr().err.count("only blank lines") == 3
    assert not (tmp_path / "work").exists()


def test_the_table_before_the_first_training(
    modules: Callable[[str], Any], folder: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert modules("run").main([str(folder), "table"]) == 0
    printed = capsys.readouterr()
    said = "\nNothing is finished with these settings; give the variables of the training\n"
    assert printed.out == said and printed.err == ""
    assert not (tmp_path / "work").exists(), "no files without a result"
    (folder / "train.txt").write_text("w1 w2\n")
    assert modules("run").main([str(folder)]) == 2
    assert "of the training text are 1 tokens" in capsys.readouterr().err
    assert modules("run").main([str(folder), "table"]) == 0


def test_files_have_other_names_and_line_ends(
    modules: Callable[[str], Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of WikiText and of others; a byte order mark and carriage returns are no tokens."""
    text, run = modules("text"), modules("run")
    before = text.read(folder, "words").lines
    names = {"train": "wiki.train.tokens", "valid": "dev", "test": "ptb_test-1.txt"}
    for part, name in names.items():
        content = (folder / f"{part}.txt").read_text().replace("\n", "\r\n").encode("utf-8-sig")
        (folder / f"{part}.txt").unlink()
        (folder / name).write_bytes(content)
    (folder / "latest.txt").write_text("not the test set\n")
    assert text.read(folder, "words").lines == before
    (folder / "wiki.val.tokens").write_text("w1\n")
    assert run.main([str(folder)]) == 2
    assert "has dev, wiki.val.tokens for valid; expected valid.txt" in capsys.readouterr().err


def test_two_do_not_work_in_one_folder(
    modules: Callable[[str], Any], folder: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """But what one has finished can be printed by the other."""
    run = modules("run")
    with hold(tmp_path / "work" / LOCK) or pytest.fail("the lock is free"):
        assert run.main([str(folder)]) == 2
        assert [path.name for path in (tmp_path / "work").iterdir()] == [LOCK]
        assert "is in use by another run" in capsys.readouterr().err
        assert run.main([str(folder), "table"]) == 0
        assert "Nothing is finished with these settings" in capsys.readouterr().out


def tokens_of(lines: list[str]) -> list[str]:
    """With their ends, as the models read them."""
    return [token for line in lines for token in (*line.split(), "end")]


def test_a_share_is_the_beginning_of_the_text(modules: Callable[[str], Any]) -> None:
    """To the token, for every share, in texts with blank lines and with one line alone."""
    text = modules("text")
    for lines in (["a b c", "", "d", "e f g h", ""], ["a b c d e f g"]):
        whole = tokens_of(lines)
        for share in range(1, 101):
            cut = tokens_of(text.beginning(lines, share))
            assert len(cut) == len(whole) * share // 100
            assert cut[:-1] == whole[: max(0, len(cut) - 1)]  # a line that is cut ends there
        assert text.beginning(lines, 100) == lines


def decoded(folder: Path, part: str) -> list[str]:
    """A set of binary data, one symbol for each token."""
    words = Dictionary.load(str(folder / "dict.txt"))
    return [words[i] for line in load_indexed_dataset(str(folder / part), words) for i in line]


def test_binary_data(modules: Callable[[str], Any], tmp_path: Path) -> None:
    """Characters, blanks and line ends; every share has the dictionary of the whole text."""
    text, folder = modules("text"), tmp_path / "letters"
    folder.mkdir()
    for part, content in (("train", " ab a \n\nbé\n"), ("valid", "a\n"), ("test", "ax b\n")):
        (folder / f"{part}.txt").write_text(content)
    found = text.read(folder, "characters")
    text.prepare(found, [50, 100], tmp_path / "work")
    half, whole = (tmp_path / f"work/data/share{share}" for share in (50, 100))
    assert decoded(whole, "train") == ["a", "b", "▁", "a", "</s>", "</s>", "b", "é", "</s>"]
    assert decoded(half, "train") == ["a", "b", "▁", "</s>"]
    assert decoded(whole, "test") == decoded(half, "test") == ["a", "<unk>", "▁", "b", "</s>"]
    dictionary = (whole / "dict.txt").read_text()
    assert (half / "dict.txt").read_text() == dictionary
    assert sorted(dictionary.split("\n")) == ["", "a 2", "b 2", "é 1", "▁ 1"]
    assert text.read(folder, "words").digest != found.digest
    (folder / "train.txt").write_text(" ab a \n\n")  # the same text, divided in another way
    (folder / "valid.txt").write_text("bé\na\n")
    other = text.read(folder, "characters")
    text.check_prepared(other, tmp_path / "work")  # nothing was trained on the first text
    text.prepare(other, [100], tmp_path / "work")
    assert decoded(whole, "valid") == ["b", "<unk>", "</s>", "a", "</s>"]
    assert not (half / "prepared.json").exists()
    state = tmp_path / "work/share100/xl_lm/seed1/state.json"
    state.parent.mkdir(parents=True)
    state.write_text("{}")
    text.check_prepared(other, tmp_path / "work")
    with pytest.raises(ConfigError, match="trainings on another text"):
        text.check_prepared(found, tmp_path / "work")


def test_a_text_is_corrected_before_a_training_begins(
    modules: Callable[[str], Any], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    run = modules("run")
    with monkeypatch.context() as wrong:
        wrong.setenv("OPTIONS", "--no-such-flag")
        assert run.main([str(folder)]) == 2 and "--no-such-flag" in capsys.readouterr().err
    data = tmp_path / "work/data/share50"
    assert len(decoded(data, "test")) == 65
    (folder / "test.txt").write_text("w1\n")
    monkeypatch.setattr(run, "work_on", lambda runs, jobs, *others: others[-1](runs))
    run.main([str(folder)])
    assert "error:" not in capsys.readouterr().err and decoded(data, "test") == ["w1", "</s>"]


def test_every_command_parses(modules: Callable[[str], Any], tmp_path: Path) -> None:
    settings = modules("settings")
    chosen = settings.Settings(memory=96, tokens=32)
    runs = list(settings.text_runs(chosen, tmp_path))
    assert len({run.name for run in runs}) == len(runs) == 3 * (6 + 4 * 2)
    assert [run.system for run in runs[:6]] == [*settings.SYSTEMS]
    for run in runs[:6]:
        words = run.argv("train")
        parse(["fairseq-recur", *words])
        assert after(words, "--optimizer") == "adamw_fused"
        assert after(words, "--lr-scheduler") == "cosine" and after(words, "--clip-norm") == "0.25"
        assert ("--learned-matrix-length" in words) == (run.system in ("tl_xl_lm", "fl_xl_lm"))
        if "--learned-matrix-length" in words:
            assert words[words.index("--learned-matrix-length") + 1] == "128"
        # Positions beyond the learned ones would have no matrix.
        assert ("--model-overrides" in run.argv("evaluate")) == (run.system != "fl_xl_lm")
    parse(["fairseq-recur", *runs[0].argv("evaluate")])
    on_gpu = next(settings.text_runs(settings.Settings(device="cuda"), tmp_path))
    assert "--cpu" in runs[0].argv("train") and "--cpu" in runs[0].argv("evaluate")
    assert "--cpu" not in [*on_gpu.argv("train"), *on_gpu.argv("evaluate")]


def test_differences_are_over_common_seeds(
    modules: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the table; the figure leaves out panels without data."""
    report = modules("report")

    def seeds(gates: bool, **values: float) -> dict[str, dict[str, Any]]:
        return {
            seed[1:]: {"bpc": value, "parameters": 1000, "commit": "c",
                       "gates": {"1": value / 4, "2": value / 2} if gates else {}}
            for seed, value in values.items()
        }  # fmt: skip

    runs = {
        "100": {"xl_lm": seeds(False, s1=1.0, s2=2.0), "rsa_xl_lm": seeds(True, s2=1.5, s3=9.0)},
        "20": {"xl_lm": seeds(False, s1=2.0), "rsa_xl_lm": seeds(True, s2=2.5)},
    }
    counts = dict.fromkeys(("train", "valid", "test", "different", "unknown_in_test"), 7)
    results = {"runs": runs, "settings": {"UNITS": "characters"}, "versions": {}, "machine": "m",
               "command": "c", "text": counts}  # fmt: skip
    several = "| 5.2500 ± 5.3033 | 1.5000, 9.0000 | -0.5000"
    assert report.table(results).splitlines()[2:6] == [
        "| 100 % | xl_lm | 1, 2 | 1,000 | 1.5000 ± 0.7071 | 1.0000, 2.0000 |  |  |  |  |",
        f"| 100 % | rsa_xl_lm | 2, 3 | 1,000 {several} | 1.969 | 1.312 | 2.625 |",
        "| 20 % | xl_lm | 1 | 1,000 | 2.0000 | 2.0000 |  |  |  |  |",
        "| 20 % | rsa_xl_lm | 2 | 1,000 | 2.5000 | 2.5000 |  | 0.938 | 0.625 | 1.250 |",
    ]
    figure, drawn = modules("figure"), []
    monkeypatch.setattr(
        figure, "save", lambda page, _: drawn.append([axis.get_title() for axis in page.axes])
    )
    plain = {"100": {"xl_lm": runs["100"]["xl_lm"]}}
    common = {**runs, "20": {**runs["20"], "xl_lm": seeds(False, s1=2.0, s2=2.0)}}
    for found in (common, runs, {"100": runs["100"]}, plain):
        figure.draw({**results, "runs": found}, Path("unused.png"))
    whole, shares, gates = "the whole training text", "less training text, seed 2", "gates"
    assert drawn == [[whole, shares, gates], [whole, gates], [whole, gates], [whole]]


# The full size ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shares, shown, title",
    [
        ("20 50", 50, "50 % of the training text"),
        ("20", 20, "20 % of the training text"),
        ("50 100", 100, "the whole training text"),
    ],
)
def test_the_figure_has_the_largest_share(
    shares: str, shown: int, title: str, modules: Callable[[str], Any], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The whole text may be none of them; its values are twice the share here."""
    figure, saved = modules("figure"), []
    monkeypatch.setattr(figure, "save", lambda drawn, file: saved.append(drawn))
    runs = {n: {"xl_lm": {"1": {"perplexity": 2 * int(n), "gates": {}}}} for n in shares.split()}
    figure.draw({"settings": {"UNITS": "words"}, "runs": runs}, tmp_path / "figure.png")
    first = saved[0].axes[0]
    assert first.get_title() == title
    assert {float(y) for line in first.lines for y in line.get_ydata()} == {2 * shown}


def test_the_figure_compares_shares_over_the_seeds_of_all(
    modules: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And their gates; with one share a system has all seeds. Without common ones: no panel."""
    figure, saved = modules("figure"), []
    monkeypatch.setattr(figure, "save", lambda drawn, file: saved.append(drawn))

    def seeds(*values: int) -> dict[str, Any]:
        return {str(n): {"perplexity": n, "gates": {"1": n / 10, "2": n / 10}} for n in values}

    whole = {"xl_lm": seeds(3, 4, 9), "rsa_xl_lm": seeds(3, 4, 8), "tl_xl_lm": seeds(2, 4)}
    runs = {"100": whole, "50": {"xl_lm": seeds(4), "rsa_xl_lm": seeds(4, 8)}}
    results = {"settings": {"UNITS": "words"}, "runs": runs}
    figure.draw(results, tmp_path / "figure.png")
    _, shares, gates = saved[0].axes
    assert shares.get_title() == "less training text, seed 4"
    drawn = [[*map(float, line.get_ydata())] for line in shares.lines if line.get_marker() == "o"]
    assert drawn == [[4, 4], [4, 4]]
    levels = {line.get_label(): float(line.get_ydata()[0]) for line in gates.lines}
    of_shares = {f"{name}{end}": 0.4 for name in ("xl_lm", "rsa_xl_lm") for end in ("", ", 50 %")}
    assert levels == pytest.approx({**of_shares, "tl_xl_lm": 0.3})
    runs["50"] = {"xl_lm": seeds(4, 9), "rsa_xl_lm": seeds(8)}
    figure.draw(results, tmp_path / "figure.png")
    assert [axis.get_title() for axis in saved[1].axes] == ["the whole training text", "gates"]


def mirror(folder: Path, name: str, members: dict[str, bytes]) -> Path:
    """A folder with an archive and its checksum."""
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    checksum = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / SUMS).write_text(f"{checksum}  {name}\n")
    return folder


@pytest.mark.parametrize("keep", [False, True])
def test_bytes_of_an_archive(
    modules: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    """One token for each byte, over the borders of chunks; the last ones are held out."""
    prepare = modules("prepare")
    monkeypatch.setattr(prepare, "CHUNK", 7)
    content = "ab\ncé ".encode() * 5 + b"\nab c" + b"a\xffb\n"
    place = mirror(tmp_path / "mirror", "enwik8.zip", {"enwik8": content})
    prepare.prepare("enwik8", tmp_path / "work", str(place), held_out=4, keep_line_ends=keep)
    folder = tmp_path / "work" / ("data-bin-lines" if keep else "data-bin")
    sets = {part: decoded(folder, part) for part in ("train", "valid", "test")}
    ends = ["</s>"] if keep else []  # else as in the code of Dai et al.

    def named(part: bytes) -> list[str]:
        return [name for byte in part for name in (ends if byte == 10 else [str(byte)])]

    assert sets["train"] == named(content[:-8]) and sets["valid"] == named(content[-8:-4])
    assert sets["test"] == ["97", "<unk>", "98", *ends]  # training lacks the byte 255
    counts = [line.split() for line in (folder / "dict.txt").read_text().splitlines()]
    assert sum(int(n) for _, n in counts) == sum(byte != 10 for byte in content[:-8])
    with pytest.raises(ConfigError, match="has 44 bytes; expected more than 44"):
        prepare.prepare("enwik8", tmp_path / "other", str(place), held_out=22)


@pytest.mark.parametrize("share", [3, 40, 99])
def test_a_share_of_an_archive_is_its_beginning(
    modules: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: int
) -> None:
    """To the token, in chunks; dictionary and other sets are those of the whole."""
    prepare = modules("prepare")
    monkeypatch.setattr(prepare, "CHUNK", 7)
    content = bytes(range(97, 123)) * 3 + b"abcdefgh"
    place = mirror(tmp_path / "mirror", "text8.zip", {"text8": content})
    prepare.prepare("text8", tmp_path / "work", str(place), held_out=4, share=share)
    whole, part = (tmp_path / "work" / name for name in ("data-bin", f"data-bin-{share}"))
    assert decoded(part, "train") == decoded(whole, "train")[: 78 * share // 100]
    others = ["dict.txt", *(f"{s}.{kind}" for s in ("valid", "test") for kind in ("bin", "idx"))]
    assert all((part / name).read_bytes() == (whole / name).read_bytes() for name in others)
    assert (part / ".key").read_text() != (whole / ".key").read_text()


@pytest.mark.parametrize(
    "flags, message",
    [
        # The other sets have no line ends, or have them as words.
        (["--keep-line-ends"], "--keep-line-ends has no effect on text8, only on enwik8"),
        (["--share", "0"], "--share 0: expected 1 to 100"),
        (["--share", "101"], "--share 101: expected 1 to 100"),
    ],
)
def test_wrong_flags_of_the_preparation(
    flags: list[str], message: str, modules: Callable[[str], Any], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with pytest.raises(SystemExit) as left:
        modules("prepare").main(["text8", "--work-dir", str(tmp_path), *flags])
    assert left.value.code == 2 and message in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_words_of_an_archive(
    modules: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {"train": " = A = \n \n b <unk> b \n", "valid": " b c \n", "test": " A \n"}
    members = {f"wikitext-103/wiki.{s}.tokens": text.encode() for s, text in texts.items()}
    place = mirror(tmp_path / "mirror", "wikitext-103-v1.zip", members)
    words = ["wikitext103", "--work-dir", str(tmp_path / "work"), "--mirror", str(place)]
    program = modules("prepare")
    assert program.main([*words, "--workers", "1"]) == 0
    folder = tmp_path / "work" / "data-bin"
    end = "</s>"
    assert decoded(folder, "train") == ["=", "A", "=", end, end, "b", "<unk>", "b", end]
    assert decoded(folder, "valid") == ["b", "<unk>", end]
    assert len(Dictionary.load(str(folder / "dict.txt"))) == 4 + 3  # no entries for padding
    capsys.readouterr()
    assert program.main([*words, "--workers", "1"]) == 0
    assert "data-bin: already done" in capsys.readouterr().out
    (place / "wikitext-103-v1.zip").write_bytes(b"another file")
    assert program.main(words) == 2
    assert "truncated or a different file" in capsys.readouterr().err


def full(folder: Path, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run full.sh; it only prints, unless PRINT says otherwise."""
    programs = folder / "programs"
    path = os.pathsep.join([str(programs if programs.is_dir() else programs_in(programs)),
                            "/usr/bin", "/bin"])  # fmt: skip
    environment = {"PATH": path, "HOME": str(folder), "PYTHONPATH": str(ROOT), "PRINT": "1",
                   "GPUS": "1", "WORK": str(folder / "work"), **variables}  # fmt: skip
    return subprocess.run(
        ["bash", str(EXAMPLE / "full.sh"), *words], env=environment, capture_output=True, text=True
    )


def after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


@pytest.mark.parametrize("name", [*SLOW, *FULL[2:]])
def test_the_full_size_prints_the_settings_of_the_paper(name: str, tmp_path: Path) -> None:
    arch = f"rsa_xl_lm_{name}"
    done = full(tmp_path, "train", name, "--fp16-init-scale", "4", ARCH=arch, SEED="3", GPUS="2")
    assert done.returncode == 0, done.stderr
    words = shlex.split(done.stdout)
    words = words[words.index("train") :]
    parse(["fairseq-recur", *words])
    big = name == "wikitext103"
    assert after(words, "--arch") == arch and after(words, "--fp16-init-scale") == "4"
    assert after(words, "--max-update") == ("200000" if big else "400000")
    assert after(words, "--update-freq") == "1"
    assert after(words, "--lr-scheduler") == "cosine" and after(words, "--lr") == "0.00025"
    assert after(words, "--clip-norm") == "0.25"
    rows = int(after(words, "--max-tokens")) / int(after(words, "--tokens-per-sample"))
    assert rows == (30 if big else 11)  # of a process
    assert after(words, "--ddp-backend") == ("legacy_ddp" if big else "pytorch_ddp")
    assert after(words, "--save-dir") == str(tmp_path / f"work/{name}/runs/{arch}/seed3")
    words = shlex.split(full(tmp_path, "evaluate", name).stdout)
    parse(words)
    longer = "'memory_length': 640," if big else "'memory_length': 2100,"
    assert longer in after(words, "--model-overrides")
    assert after(words, "--tokens-per-sample") == ("64" if big else "80")
    words = shlex.split(full(tmp_path, "evaluate", name, ARCH=f"rsa_brt_lm_{name}").stdout)
    assert after(words, "--tokens-per-sample") == ("150" if big else "512")
    words = shlex.split(full(tmp_path, "plan", name).stdout)
    parse(words)
    # The symbols of the paper and fairseq's four; of words, the first band and those of the bands.
    symbols = {"enwik8": 204 + 4, "text8": 27 + 4, "wikitext103": 20_000 + 3}
    assert after(words, "--vocabulary") == str(symbols[name])
    printed = full(tmp_path, "prepare", name, LM_MIRROR="some where").stdout
    assert shlex.split(printed)[-5:] == [name, "--work-dir", str(tmp_path / "work" / name),
                                         "--mirror", "some where"]  # fmt: skip
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("words, variables, said", [
    (["train"], {}, "found 1 words; give both"),
    (["train", "ptb"], {}, "expected enwik8, text8 or wikitext103"),
    (["tune", "text8"], {}, "expected prepare, plan, train or evaluate"),
    (["train", "text8"], {"ARCH": "xl_lm_enwik8"}, "expected a name such as rsa_xl_lm_text8"),
    (["train", "text8"], {"RUN": "mine"}, "does not begin with ARCH=xl_lm_text8"),
    (["train", "text8", "--seed", "2"], {}, "--seed: set SEED=N in front of the command"),
    (["train", "text8", "--arch=brt_lm_text8"], {}, "--arch: set ARCH=NAME"),
    (["train", "text8"], {"GPUS": "4"}, "22 streams cannot be divided among 4 processes"),
    (["train", "text8"], {"MAX_TOKENS": "1024"}, "MAX_TOKENS=1024: an update of text8 has 22 str"),
    (["train", "text8"], {"BATCH_TOKENS": "9"}, "BATCH_TOKENS=9: an update of text8 has 22 stre"),
    *((["plan", "text8"], {"SHARE": share}, f"SHARE={share}: expected ")
      for share in ("0", "101", "040", "4.5", "all", "18446744073709551617")),
    (["plan", "enwik8"], {"LINE_ENDS": "no"}, "LINE_ENDS=no: expected drop or keep"),
    (["plan", "text8"], {"LINE_ENDS": "keep"}, "LINE_ENDS=keep has no effect on text8"),
    (["train", "text8"], {"PRINT": "0"}, "full.sh prepare text8 first"),
    (["train", "text8"], {"PRINT": "0", "SHARE": "40"}, "there is no {}/text8/data-bin-40;"),
    (["evaluate", "text8"], {"PRINT": "0"}, "full.sh train text8 first"),
])  # fmt: skip
def test_the_full_size_refuses(
    words: list[str], variables: dict[str, str], said: str, tmp_path: Path
) -> None:
    done = full(tmp_path, *words, **variables)
    assert done.returncode == 2 and said.format(tmp_path / "work") in done.stderr
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("variables, flags, suffix", [
    ({}, [], ""),
    ({"SHARE": "100", "LINE_ENDS": "drop"}, [], ""),
    ({"SHARE": "40"}, ["--share", "40"], "-40"),
    ({"LINE_ENDS": "keep"}, ["--keep-line-ends"], "-lines"),
    ({"SHARE": "5", "LINE_ENDS": "keep"}, ["--share", "5", "--keep-line-ends"], "-lines-5"),
])  # fmt: skip
def test_the_full_size_has_a_folder_for_each_text(
    variables: dict[str, str], flags: list[str], suffix: str, modules: Callable[[str], Any],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """All commands agree on it, and a run on another text has another name."""

    def words(task: str) -> list[str]:
        return shlex.split(full(tmp_path, task, "enwik8", **variables).stdout)

    work = tmp_path / "work/enwik8"
    run = work / f"runs/xl_lm_enwik8{suffix}/seed1"
    assert str(work / f"data-bin{suffix}") in words("train")
    assert after(words("train"), "--save-dir") == str(run)
    assert str(work / f"data-bin{suffix}") in words("evaluate")
    assert after(words("evaluate"), "--path") == str(run / "checkpoint_best.pt")
    assert after(words("plan"), "--vocabulary") == str(204 + 4)  # the paper's and fairseq's
    asked = ["enwik8", "--work-dir", str(work), *flags]
    assert words("prepare")[-len(asked) :] == asked
    program = modules("prepare")
    place = mirror(tmp_path / "mirror", "enwik8.zip", {"enwik8": b"ab\nc" * 100})
    monkeypatch.setattr(program, "prepare", partial(program.prepare, held_out=4))
    assert program.main([*asked, "--mirror", str(place)]) == 0
    assert (work / f"data-bin{suffix}/train.bin").is_file()


def test_the_full_size_takes_a_launcher_and_keeps_its_settings(tmp_path: Path) -> None:
    """A run with a checkpoint is not resumed with other flags; without one, nothing is lost."""
    words = shlex.split(full(tmp_path, "train", "text8", LAUNCHER="sbatch job").stdout)
    assert words[:3] == ["env", "BATCH_TOKENS=11264", "MAX_TOKENS=11264"]
    assert words[3:6] == ["sbatch", "job", str(tmp_path / "work/text8/data-bin")]
    folder = tmp_path / "work/text8/runs/xl_lm_text8/seed1"
    folder.mkdir(parents=True)
    (folder / "settings").write_text("others")
    assert full(tmp_path, "train", "text8").returncode == 0
    (folder / "checkpoint_last.pt").touch()
    done = full(tmp_path, "train", "text8")
    assert done.returncode == 2 and "trained with other data or settings" in done.stderr


def test_the_full_size_is_not_resumed_with_other_data(tmp_path: Path) -> None:
    data = tmp_path / "work/text8/data-bin"
    data.mkdir(parents=True)
    start = partial(full, tmp_path, "train", "text8", PRINT="0", LAUNCHER="true")
    for key, status in (("a", 0), ("a", 0), ("b", 2)):
        (data / ".key").write_text(key)
        done = start()
        assert done.returncode == status, done.stderr
        (tmp_path / "work/text8/runs/xl_lm_text8/seed1/checkpoint_last.pt").touch()
    assert "trained with other data or settings" in done.stderr
    settings = tmp_path / "work/text8/runs/xl_lm_text8/seed1/settings"
    settings.write_text(settings.read_text().removeprefix("a "))  # of an earlier version
    assert start().returncode == 0 and settings.read_text().startswith("b --task ")


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["xl_lm", "rsa_xl_lm", "brt_lm", "rsa_brt_lm"])
@pytest.mark.parametrize("name", FULL)
def test_the_full_size_can_be_planned(
    name: str, arch: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(full(tmp_path, "plan", name, ARCH=f"{arch}_{name}").stdout)
    assert main(words[1:]) == 0
    assert "updates" in capsys.readouterr().out


@pytest.mark.slow
def test_killed_and_resumed_is_as_never_stopped(folder: Path, tmp_path: Path) -> None:
    """The script's program is killed with its trainings, and started again."""
    command = [sys.executable, str(EXAMPLE / "run.py"), str(folder)]
    systems = ("rsa_xl_lm", "fl_xl_lm", "rsa_brt_lm")
    variables = {**MINIATURE, "UPDATES": 60, "SYSTEMS": " ".join(systems), "SHARES": 100}
    del variables["SHARE_SYSTEMS"]

    def settings(work: str) -> dict[str, Any]:
        given = {name: str(value) for name, value in variables.items()}
        return {
            "cwd": ROOT, "stdin": subprocess.DEVNULL, "text": True,
            "env": {**os.environ, **given, "WORK": str(tmp_path / work), "OMP_NUM_THREADS": "1",
                    "PYTHONPATH": str(Path(USER_DIR).parent)},
        }  # fmt: skip

    done = subprocess.run(command, capture_output=True, **settings("once"))
    assert done.returncode == 0, done.stderr
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, start_new_session=True, **settings("killed")
    )
    folders = [tmp_path / f"killed/share100/{name}/seed1" for name in systems]
    saved = [folder / "checkpoint_last.pt" for folder in folders]
    wait_for(lambda: any(file.is_file() for file in saved))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(0.5)
    assert not all((folder / "result.json").exists() for folder in folders)
    again = subprocess.run(command, capture_output=True, **settings("killed"))
    assert again.returncode == 0, again.stderr
    sizes = [read_json(folder / "result.json")["parameters"] for folder in folders]
    # The matrices of FL-XL: 8 x 16 for two heads in three layers, in place of what RSA has.
    assert sizes[1] - sizes[0] == 3 * (2 * 8 * 16 - 2)
    for here in folders:
        there = tmp_path / "once" / here.relative_to(tmp_path / "killed")
        results = [read_json(place / "result.json") for place in (there, here)]
        assert results[0] == results[1]
        weights = [saved_weights(place / "checkpoint_best.pt") for place in (there, here)]
        assert weights[0].keys() == weights[1].keys()
        assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
