"""The example of grapheme-to-phoneme conversion: data, runs, and the table over languages."""

import importlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from fairseq.data import Dictionary, data_utils

from fairseq_recur.cli import experiment_check
from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments import runner
from fairseq_recur.experiments.reading import read_about, stored_experiment
from fairseq_recur.scoring.resampling import sign_flip_p
from fairseq_recur.scoring.significance import compare_systems
from tests.forking import own_progress_lock
from tests.integration.test_experiments import forked, wait_for  # noqa: F401
from tests.running import USER_DIR

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "g2p"
MODULES = ("run", "data", "elsewhere", "report", "table")
Rows = list[tuple[str, str]]

TINY = {
    "train": {
        "encoder-layers": 1, "encoder-embed-dim": 8, "encoder-ffn-embed-dim": 8,
        "encoder-attention-heads": 2, "decoder-layers": 1, "decoder-embed-dim": 8,
        "decoder-ffn-embed-dim": 8, "decoder-attention-heads": 2, "dropout": 0.1,
        "optimizer": "adamw_fused", "lr": 0.01, "criterion": "label_smoothed_cross_entropy_fused",
        "label-smoothing": 0.1, "batch-size": 8, "max-update": 4, "save-interval-updates": 1,
        "no-epoch-checkpoints": True, "num-workers": 0, "cpu": True, "log-interval": 1,
    },
    "checkpoint": "last",
    "generate": {"beam": 2, "max-len-b": 6, "num-workers": 0, "cpu": True},
    "score": {"metrics": ["wer", "per"], "samples": 20},
    "seeds": [1],
}  # fmt: skip


def words(count: int, seed: int) -> Rows:
    """Words of the letters a to e, and as phones the capitals."""
    rng = random.Random(seed)
    found = {"".join(rng.choices("abcde", k=rng.randint(2, 6))) for _ in range(3 * count)}
    return [(word, " ".join(word.upper())) for word in sorted(found)[:count]]


def write_set(path: Path, rows: Rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{word}\t{phones}\n" for word, phones in rows), encoding="utf-8")


def write_folder(folder: Path, languages: str = "aa bb", below: bool = False) -> Path:
    """The files of some languages, in one folder or in one for each set."""
    for seed, name in enumerate(languages.split()):
        for part, count in (("train", 24), ("dev", 6), ("test", 10)):
            place = folder / part if below else folder
            write_set(place / f"{name}_{part}.tsv", words(count, 10 * seed + count))
    return folder


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example's modules; `run` imports the others."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("run")
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def tiny(tmp_path: Path) -> list[str]:
    """Arguments of a command over two languages, which are made up."""
    write_folder(tmp_path / "words")
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    return [
        str(tmp_path / "words"), "--settings", str(tmp_path / "tiny.yaml"),
        "--work-dir", str(tmp_path / "work"),
    ]  # fmt: skip


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


# The data ------------------------------------------------------------------------------


def test_both_layouts_are_the_same(example: Any, tmp_path: Path) -> None:
    flat = example.data.read(write_folder(tmp_path / "flat"))
    assert flat == example.data.read(write_folder(tmp_path / "below", below=True))
    assert [language.name for language in flat] == ["aa", "bb"]
    assert example.data.read(tmp_path / "flat", ["bb"]) == flat[1:]
    (tmp_path / "flat" / "aa_dev.tsv").rename(tmp_path / "flat" / "aa_valid.tsv")
    for file in (tmp_path / "below" / "dev").iterdir():
        file.rename(file.with_name(file.name.replace("dev", "val")))
    (tmp_path / "below" / "dev").rename(tmp_path / "below" / "val")
    for name in ("flat", "below"):
        file = next((tmp_path / name).rglob("bb_train.tsv"))
        windows = file.read_text(encoding="utf-8").replace("\n", "\r\n")
        file.write_bytes(windows.encode("utf-8-sig"))
        assert example.data.read(tmp_path / name) == flat


def test_characters_are_the_composed_ones_of_the_file(example: Any, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "aa")
    rows = [
        ("re\u0301sume\u0301", "ʁ e"),
        ("שָׁלוֹם", "ʃ a l"),  # right to left, with vowel points
        ("q\u0301a", "q\u0301  a "),  # no character is q with this accent
        ("ice\u00a0cream", "aɪ s"),
        ("\u200bझ\u200dह", "t̪ ʱ"),
    ]
    write_set(folder / "aa_train.tsv", rows)
    (folder / "aa_train.tsv").write_bytes(
        b"\xef\xbb\xbf" + (folder / "aa_train.tsv").read_bytes().replace(b"\n", b"\r\n")
    )
    (language,) = example.data.read(folder)
    found = language.entries["train"]
    assert found[0] == ("r é s u m é", "ʁ e")
    for (word, _), (characters, _) in zip(rows[1:3], found[1:3]):
        assert characters.split() == [*unicodedata.normalize("NFC", word)]
    assert found[1][0].startswith("ש") and found[2][1] == "q\u0301 a"
    assert found[3][0] == "i c e ▁ c r e a m"
    assert found[4][0] == "\u200b झ \u200d ह"
    example.data.prepare(language, tmp_path / "work")
    symbols = Dictionary.load(str(tmp_path / "work/data/dict.word.txt"))
    stored = data_utils.load_indexed_dataset(str(tmp_path / "work/data/train.word-phones.word"))
    assert [symbols.string(ids) for ids in stored] == [characters for characters, _ in found]
    assert len(symbols) % 8 == 0


def test_a_word_with_several_pronunciations_is_one_test_word(example: Any, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "aa")
    rows = [("ab", "A B"), *[("ba", "B A")] * 4, ("ab", "A P"), ("ab", "A")]
    write_set(folder / "aa_test.tsv", rows)
    write_set(folder / "aa_train.tsv", [*rows, ("e", "E")])
    (language,) = example.data.read(folder)
    said = example.data.prepare(language, tmp_path / "work")
    assert "8 words for training, 6 for development, 2 for the test; 3 characters, 4 phones" in said
    assert "5 training lines repeat a word, all are trained on" in said
    assert "5 test lines repeat a word, which counts once" in said
    assert "2 words of the test set are also in the training set" in said
    data = tmp_path / "work/data"
    assert len(data_utils.load_indexed_dataset(str(data / "test.word-phones.word"))) == 2
    references = [(data / f"test.{n}.phones").read_text().splitlines() for n in (1, 2, 3)]
    assert references == [["A B", "B A"], ["A P", "B A"], ["A", "B A"]]
    assert not (data / "test.4.phones").exists()


def test_symbols_that_training_lacks_are_counted(example: Any, tmp_path: Path) -> None:
    """Hangul syllables, one of them decomposed in the file; a word counts once."""
    folder = write_folder(tmp_path, "aa")
    write_set(folder / "aa_train.tsv", [("가나", "k a n a")])
    rows = [("나가", "n a k a"), ("나\u1103\u1161", "n a t a"), ("다가", "k i"), ("다가", "t i")]
    write_set(folder / "aa_test.tsv", [*rows, ("가", "k o")])
    (language,) = example.data.read(folder)
    counts = language.counts()
    assert (counts["test_new_characters"], counts["test_new_phones"]) == (2, 3)
    said = example.data.prepare(language, tmp_path / "work")
    assert "; 2 words of the test set have a character that the training set lacks; 3 " in said
    assert said.endswith("; 3 words of the test set have a phone that the training set lacks")
    write_set(folder / "aa_test.tsv", rows[:1])
    (language,) = example.data.read(folder)
    assert "lacks" not in example.data.prepare(language, tmp_path / "other")


def test_results_of_before_have_no_counts_of_new_symbols(
    example: Any, calls: Callable[[], list[str]], tiny: list[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """They can be added, and a folder of before is used, and gets the counts.

    Nor have they the form of the words, which was NFC.
    """
    write_set(Path(tiny[0]) / "aa_test.tsv", [("fa", "F A")])
    words, there = [*tiny, "--systems", "transformer"], tmp_path / "work/results.json"
    assert example.main(words) == 0
    now = {"test_new_characters": 1, "test_new_phones": 1}
    assert now.items() <= read_json(there)["languages"]["aa"].items()
    for file in (there, *(tmp_path / "work").glob("*/data/prepared.json")):
        before = re.sub(r',\s*"test_new_\w+": \d+', "", file.read_text())
        before = re.sub(r'"normalization": "NFC",\s*', "", before)
        file.write_text(before)
        assert "test_new" not in before and "NFC" not in before and json.loads(before)
    added = tmp_path / "added.json"
    added.write_text(there.read_text())
    before = len(calls())
    monkeypatch.setenv("NORMALIZATION", "NFD")
    assert example.main([*words, "--add", str(added)]) == 2 and "aa, bb" in capsys.readouterr().err
    monkeypatch.delenv("NORMALIZATION")
    assert example.main([*words, "--add", str(added)]) == 0 and len(calls()) == before
    assert now.items() <= read_json(there)["languages"]["aa"].items()


def test_the_form_of_the_words_is_chosen_and_recorded(
    example: Any, calls: Callable[[], list[str]], tiny: list[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Syllables are new in the development set, their parts are not; phones stay composed."""
    folder, words = Path(tiny[0]), [*tiny, "--systems", "transformer", "--languages", "aa"]
    write_set(folder / "aa_train.tsv", [("가나 각", "k a n a ã")])
    write_set(folder / "aa_dev.tsv", [("낙나", "n a k n a")])
    advice = "the training set lacks 50.0 % of the characters of the development words, and 0.0 %"
    (composed,) = example.data.read(folder, ["aa"])
    assert composed.entries["train"] == [("가 나 ▁ 각", "k a n a ã")]
    assert f"\nwarning: aa: {advice}" in example.data.prepare(composed, tmp_path / "composed")
    monkeypatch.setenv("NORMALIZATION", "NFD")
    assert example.main(words) == 0
    said = capsys.readouterr().out
    assert "warning" not in said and "5 characters, 4 phones; 0.62 phones per character" in said
    prepared = tmp_path / "work/aa/data"
    stored = data_utils.load_indexed_dataset(str(prepared / "train.word-phones.word"))
    symbols = Dictionary.load(str(prepared / "dict.word.txt"))
    divided = " ".join(unicodedata.normalize("NFD", "가나▁각"))
    assert symbols.string(stored[0]) == divided
    assert example.data.read(folder, ["aa"], "NFD")[0].entries["train"] == [(divided, "k a n a ã")]
    results = read_json(tmp_path / "work/results.json")
    assert results["languages"]["aa"]["normalization"] == "NFD"
    assert results["command"].startswith("NORMALIZATION=NFD bash examples/g2p/run.sh ")
    monkeypatch.delenv("NORMALIZATION")
    assert example.main(words) == 2
    assert "has trainings on other words for aa; choose another" in capsys.readouterr().err
    monkeypatch.setenv("NORMALIZATION", "nfd")
    assert example.main(words) == 2
    assert "error: NORMALIZATION=nfd: expected NFC or NFD" in capsys.readouterr().err


@pytest.mark.parametrize(
    "dev, recommended",
    [("각" * 3 + "가" * 97, True), ("각" * 2 + "가" * 98, False), ("漢" * 9 + "가" * 91, False)],
)
def test_the_other_form_is_recommended_where_it_helps(
    dev: str, recommended: bool, example: Any, tmp_path: Path
) -> None:
    """A character that has no parts is unknown in both."""
    folder = write_folder(tmp_path, "aa")
    write_set(folder / "aa_train.tsv", [("가악", "k a a k")])
    write_set(folder / "aa_dev.tsv", [(dev, "k a")])
    (language,) = example.data.read(folder)
    said = example.data.prepare(language, tmp_path / "work")
    assert ("set NORMALIZATION=NFD in front" in said) == recommended


def test_empty_lines_at_the_end_are_no_lines(example: Any, tmp_path: Path) -> None:
    """With the ends of lines of Windows, too; a file that has nothing else has no words."""
    folder = write_folder(tmp_path, "aa")
    expected = example.data.read(folder)
    for part, end in (("train", b"\n"), ("dev", b"\r\n\r\n"), ("test", b"\t\n \n")):
        with open(folder / f"aa_{part}.tsv", "ab") as file:
            file.write(end)
    assert example.data.read(folder) == expected
    (folder / "aa_dev.tsv").write_text("\n\n")
    with pytest.raises(ConfigError, match="aa_dev.tsv: found line 1 ''; expected a word"):
        example.data.read(folder)


def test_everything_wrong_is_reported_before_anything_is_written(
    example: Any, tiny: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(tiny[0])
    (folder / "aa_test.tsv").unlink()
    (folder / "bb_dev.tsv").write_text("ab\tA B\n\nba B A\nc\t\n\tC\na\tA\tB\n")
    (folder / "bb_test.tsv").write_text("")
    (folder / "dd_train.tsv").write_text("ab\t/ab/\nba\t/ba/\nabc\ta b c\na\ta\n")
    (folder / "cc_dev.tsv").write_bytes(b"\xff\xff\n")
    (folder / "cc_train.tsv").write_text("ab A\nba B\nac\tA\n")  # blanks in place of tabs
    for part in ("train", "dev", "test"):
        write_set(folder / f"a:b_{part}.tsv", words(3, 0))
    (folder / "train").mkdir()
    (folder / "train/bb_train.tsv").write_text("a\tA\n")
    assert example.main(tiny) == 2
    head, *lines = capsys.readouterr().err.splitlines()
    assert head == f"error: {folder} cannot be used; nothing was trained:"
    assert lines == [
        f"- found both {folder}/bb_train.tsv and {folder}/train/bb_train.tsv; remove one of them",
        f"- {folder}/a:b_dev.tsv: fairseq misreads ':' in a:b; rename the language's files",
        f"- {folder} has no aa_test.tsv; add it, or leave aa out",
        f"- {folder}/bb_dev.tsv: found line 2 '', line 3 'ba B A', line 4 'c' and 2 more; expected "
        "a word, one tab, and phones separated by blanks in every line",
        f"- {folder}/bb_test.tsv is empty; expected text, one sentence per line",
        f"- {folder}/cc_train.tsv: found line 1 'ab A', line 2 'ba B'; expected a word, one tab, "
        "and phones separated by blanks in every line",
        lines[6],
        f"- {folder} has no cc_test.tsv; add it, or leave cc out",
        f"- {folder}/dd_train.tsv: 2 of 3 words of several characters have a single phone; "
        "separate the phones by blanks",
        f"- {folder} has no dd_dev.tsv; add it, or leave dd out",
        f"- {folder} has no dd_test.tsv; add it, or leave dd out",
    ]
    assert lines[6].startswith(f"- {folder}/cc_dev.tsv is not UTF-8 text")
    assert not Path(tiny[-1]).exists()


@pytest.mark.parametrize(
    "words, message",
    [
        (
            ["--languages", "aa", "xx"],
            "--languages xx: FOLDER has no such language; expected some of: aa",
        ),
        (
            ["--settings", "none"],
            "none: expected sigmorphon2020, sigmorphon2020_large, small, or an existing",
        ),
        (["--settings", "none.yaml"], "--settings none.yaml: expected sigmorphon2020, sigm"),
        (["--systems", "none"], "no system none in the table; choose from transformer, birnn"),
        (["--set", "train.lr"], "--set 'train.lr': expected KEY=VALUE"),
        (
            ["--set", "train.no-such-flag=3"],
            "- transformer: train: unknown argument '--no-such-flag'",
        ),
        (["--jobs", "0"], "--jobs 0: expected at least 1"),
    ],
)
def test_wrong_arguments_are_refused(
    words: list[str], message: str, example: Any, tiny: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    systems = [] if "--systems" in words else ["--systems", "transformer"]
    assert example.main([*tiny, *systems, *words]) == 2
    assert message.replace("FOLDER", tiny[0]) in capsys.readouterr().err
    assert not {"--languages", "--settings"}.intersection(words) or not Path(tiny[-1]).exists()


def test_folders_without_words_are_refused(
    example: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/._aa_train.tsv").write_text("x")
    assert example.main([str(tmp_path / "empty")]) == 2
    assert "empty has no LANG_train.tsv, LANG_dev.tsv" in capsys.readouterr().err
    assert example.main([str(tmp_path / "none")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made(
    example: Any, tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert example.main([tiny[0], "--work-dir", str(tmp_path / "file/work")]) == 2
    assert capsys.readouterr().err.startswith("error: ")


# The runs, with a program in place of fairseq-recur ----------------------------------------

PROGRAM = """#!{python}
import json, os, pathlib, sys, time
step, data = sys.argv[1:3]
words = dict(zip(sys.argv, sys.argv[1:]))
folder = pathlib.Path(words.get("--save-dir") or words.get("--path") or words["--output"])
folder = folder if step == "train" else folder.parent
name = " ".join([*folder.parts[-3:-1], folder.name[4:]])
with open(os.environ["CALLS"], "a") as calls:
    print(step, name, file=calls)
if step == "train":
    if name == os.environ.get("WAITS") and not (folder / "waited").exists():
        (folder / "waited").write_text("")
        time.sleep(60)
    print("| num. shared model params: 1,%03d (num. trained: 1)" % len(name))
    line = {{"epoch": 1, "update": 1.0, "loss": "2.5", "num_updates": "4"}}
    (folder / "train.log").write_text(json.dumps(line))
    for file in ("checkpoint_1_3.pt", "checkpoint_1_4.pt", "checkpoint_last.pt"):
        (folder / file).write_text(file)
elif step == "average":
    (folder / "average.pt").write_text("average")
else:
    wrong = json.loads(os.environ["WRONG"]).get(name, 0)
    for i, line in enumerate(open(data + "/test.1.phones", encoding="utf-8")):
        print("D-%d\\t-0.5\\t%s" % (i, "X " + line.strip() if i < wrong else line.strip()))
"""
SYSTEMS = ["--systems", "transformer", "birnn", "rsa"]


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Replace fairseq-recur; returns the calls so far."""
    (tmp_path / "program").write_text(PROGRAM.format(python=sys.executable))
    (tmp_path / "program").chmod(0o755)
    monkeypatch.setattr(runner, "PROGRAM", [str(tmp_path / "program")])
    monkeypatch.setattr(runner, "POLL", 0.02)
    monkeypatch.setattr(experiment_check, "check", lambda runs: {})
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("WRONG", "{}")
    return lambda: (tmp_path / "calls").read_text().splitlines()


WRONG = {
    "aa transformer 1": 4, "aa transformer 2": 6, "bb transformer 1": 2, "bb transformer 2": 2,
    "aa birnn 1": 1, "aa birnn 2": 3, "bb birnn 1": 3, "bb birnn 2": 1,
    "aa rsa 1": 9, "aa rsa 2": 9, "bb rsa 1": 10, "bb rsa 2": 8,
}  # fmt: skip


def test_equal_rates_with_other_last_bits_are_equal(example: Any) -> None:
    systems = {
        name: {"seeds": ["1"], "scores": {"PER": {"aa": {"1": per}}}, "compared": {}}
        for name, per in (("transformer", 7.38), ("birnn", 7.38 - 4.5e-15))
    }
    example.report.compare(systems, "transformer", "PER")
    compared = systems["birnn"]["compared"]["PER"]
    assert not compared["lower"] and not compared["higher"] and compared["difference"] == 0


def test_the_numbers_over_languages(
    example: Any, calls: Callable[[], list[str]], tiny: list[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("WRONG", json.dumps(WRONG))
    assert example.main([*tiny, *SYSTEMS, "--seeds", "1", "2"]) == 0
    first = [name for call in calls() for step, name in [call.split(" ", 1)] if step == "train"]
    assert {name[-1] for name in first[:6]} == {"1"} and len(first) == 12
    results = read_json(tmp_path / "work/results.json")
    systems = results["systems"]
    assert systems["birnn"]["scores"]["WER"] == {"aa": {"1": 10, "2": 30}, "bb": {"1": 30, "2": 10}}
    macro = systems["transformer"]["macro"]["WER"]
    assert macro["seeds"] == {"1": 30, "2": 40} and macro["mean"] == 35
    assert macro["sd"] == pytest.approx(50**0.5)
    assert systems["birnn"]["lowest"]["WER"] == ["aa", "bb"]  # on bb as low as the baseline
    assert systems["transformer"]["lowest"]["WER"] == ["bb"] and not systems["rsa"]["lowest"]["WER"]
    birnn, rsa = (systems[name]["compared"]["WER"] for name in ("birnn", "rsa"))
    assert birnn["languages"] == {"aa": -30, "bb": 0} and birnn["difference"] == -15
    assert birnn["relative"] == pytest.approx(-100 * 15 / 35)
    assert (birnn["lower"], birnn["higher"]) == (["aa"], [])
    assert (birnn["p"], rsa["p"]) == (1.0, 0.5)  # -30 and 0, +40 and +70: of four signs
    assert (birnn["corrected"], rsa["corrected"]) == (1.0, 1.0)
    assert birnn["pooled"]["1"]["difference"] == pytest.approx(-10)  # 4 of 20 words, not 6
    assert rsa["pooled"]["1"]["p"] < 0.05 < birnn["pooled"]["2"]["p"] * 20
    lengths = [len(p.split()) for _, p in words(10, 10)]
    per = systems["transformer"]["scores"]["PER"]["aa"]["1"]
    assert per == pytest.approx(100 * 4 / sum(lengths))
    assert results["languages"]["aa"]["test"] == 10
    assert systems["rsa"]["parameters"] == {"aa": 1008, "bb": 1008}
    assert results["command"].startswith("bash examples/g2p/run.sh ")
    text = (tmp_path / "work/table.md").read_text()
    assert text.splitlines()[2] == (
        "birnn has the lowest WER, 20.00 in the average of 2 languages: -15.00 (-42.9 %) from "
        "transformer. It is lower on 1 of 2 languages. Over the languages p = 1.000, corrected "
        "1.000."
    )
    assert re.search(
        r"^\| transformer \| 1, 2 \| 35.00 ± 7.07 \| [^|]+ \| 1 \| [\d,]+ \|$", text, re.M
    )
    assert "## WER against transformer" in text
    assert "| birnn | -15.00 | -42.9 % | 1 of 2 | 1.000 | 1.000 | " in text
    assert "| aa | 50.00 ± 14.14 | 20.00 ± 14.14 | 90.00 ± 0.00 |" in text
    assert "at least 0.5 for 2" in text and text in capsys.readouterr().out
    assert (tmp_path / "work/figure.png").read_bytes().startswith(b"\x89PNG")
    assert "lower is better" in (tmp_path / "work/aa/table.md").read_text()
    left = {path.name for path in (tmp_path / "work/aa/rsa/seed1").glob("*.pt")}
    assert left == {"checkpoint_last.pt"}


def without_seed(results: Any, seed: str) -> Any:
    """Results as a machine has them that did not train a seed."""
    for system in results["systems"].values():
        for languages in system["scores"].values():
            for scores in languages.values():
                scores.pop(seed, None)
    return results


@pytest.mark.slow
def test_results_of_two_machines_are_those_of_one(
    example: Any, calls: Callable[[], list[str]], tiny: list[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Averages and tests over languages are equal; the words of added seeds are not here.

    Results that are added twice are named once.
    """
    monkeypatch.setenv("WRONG", json.dumps(WRONG))
    both = ["--seeds", "1", "2"]
    assert example.main([*tiny, *SYSTEMS, *both]) == 0
    together = read_json(tmp_path / "work/results.json")
    assert together["added"] == []
    there, here = tmp_path / "there.json", str(tmp_path / "here")
    there.write_text(json.dumps(without_seed(together, "2")))
    together = read_json(tmp_path / "work/results.json")
    before = len(calls())
    assert example.main([*tiny[:-1], here, *SYSTEMS, *both, "--add", str(there), str(there)]) == 0
    trained = [call.split()[-1] for call in calls()[before:] if call.startswith("train")]
    assert trained == ["2"] * 6
    apart = read_json(tmp_path / "here/results.json")
    for name, system in together["systems"].items():
        other = apart["systems"][name]
        for metric in ("WER", "PER"):
            for found in (system, other):
                pooled = found["compared"].get(metric, {}).pop("pooled", {})
                assert found is system or "1" not in pooled
        system.pop("seconds"), other.pop("seconds")
        assert other == system
    assert apart["added"] == [
        {key: together[key] for key in ("command", "commits", "machine", "versions")}
    ]
    text = (tmp_path / "here/table.md").read_text()
    assert f"joined by the results of `{together['command']}`" in text
    assert "| birnn | 1, 2 | 20.00 ± 0.00 |" in text and "| birnn | -15.00 |" in text


def test_the_verdict_is_over_the_seeds_that_all_have(example: Any) -> None:
    """Of the own means, 20 and 15, the lower one is that of the worse system."""
    table = importlib.import_module("table")

    def system(**wer: float) -> dict[str, Any]:
        seeds = {name.removeprefix("s"): value for name, value in wer.items()}
        return {"seeds": list(seeds), "macro": {"WER": {"seeds": seeds}}, "compared": {}}

    systems = {"transformer": system(s1=10, s2=30), "birnn": system(s1=15)}
    results = {"baseline": "transformer", "languages": {"aa": {}}, "systems": systems}
    assert table.verdict(results) == (
        "transformer has the lowest WER, 10.00 in the average of 1 language with seed 1, which all "
        "have."
    )
    systems["birnn"] = system(s1=10 + 1e-14)
    assert table.verdict(results).startswith(
        "transformer and birnn have the same lowest WER, 10.00 in the average of 1 language with "
    )
    systems["rsa"], systems["biarn"] = system(s1=10), system(s1=11)
    assert table.verdict(results).startswith("transformer, birnn and rsa have the same lowest WER")
    del systems["rsa"], systems["biarn"]
    systems["birnn"] = system(s3=15)
    assert "transformer, birnn have no seed in common" in table.verdict(results)
    del systems["birnn"]
    assert table.verdict(results) == (
        "Nothing to compare: only transformer is finished on all languages."
    )
    systems.clear()
    assert "no average yet: no system is finished on all 1 language." in table.verdict(results)
    systems["birnn"], systems["rsa"] = system(s1=10), system(s1=11)
    assert table.verdict(results) == (
        "Nothing to compare: transformer, the baseline, is not finished on all 1 language."
    )


def test_the_verdict_compares_over_the_same_seeds(example: Any) -> None:
    """With the seed that all have birnn is better, with both of its own it is worse."""
    table = importlib.import_module("table")

    def system(*wer: float) -> dict[str, Any]:
        seeds = {str(n): value for n, value in enumerate(wer, 1)}
        scores = {metric: {"aa": seeds, "bb": seeds} for metric in ("WER", "PER")}
        macro = {"WER": {"seeds": seeds}}
        return {"seeds": list(seeds), "macro": macro, "scores": scores, "compared": {}}

    systems = {"transformer": system(20, 10), "birnn": system(18, 20), "rsa": system(19)}
    results = {"baseline": "transformer", "languages": {"aa": {}, "bb": {}}, "systems": systems}
    example.report.compare(systems, "transformer", "WER")
    assert systems["birnn"]["compared"]["WER"]["difference"] == 4
    assert table.verdict(results) == (
        "birnn has the lowest WER, 18.00 in the average of 2 languages with seed 1, which all "
        "have: -2.00 (-10.0 %) from transformer. It is lower on 2 of 2 languages. Over the "
        "languages p = 0.500."
    )
    del systems["rsa"]
    assert table.verdict(results).startswith("transformer has the lowest WER, 15.00")


def test_the_table_has_only_what_was_asked_for(
    example: Any, calls: Callable[[], list[str]], tiny: list[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A language with another learning rate is in the folder; its table may also be an old one."""
    monkeypatch.setenv("WRONG", json.dumps({"aa transformer 1": 4, "bb transformer 1": 2}))
    words = [*tiny, "--systems", "transformer"]
    assert example.main([*words, "--languages", "aa", "--set", "train.lr=0.5"]) == 0
    assert example.main([*words, "--languages", "bb"]) == 0
    results = read_json(tmp_path / "work/results.json")
    system = results["systems"]["transformer"]
    assert [*results["languages"]] == ["bb"] and system["macro"]["WER"]["mean"] == 20
    assert results["settings"]["train"]["lr"] == 0.01
    args = example.parser().parse_args(words)
    settings = example.settings_file(args.settings)
    experiments = example.prepare(example.data.read(args.folder), settings, args, args.work_dir)
    capsys.readouterr()
    finished = example.report.finished(args.work_dir, experiments)
    found = example.report.collect(args.work_dir, experiments, finished, "command")
    assert not found["systems"]["transformer"]["scores"]["WER"]["aa"]
    assert "aa is left out of the table: it was trained with another setting `train`" in (
        capsys.readouterr().out
    )


def test_two_folders_of_one_name_have_two_work_folders(
    example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example, "HERE", tmp_path)
    one, other = tmp_path / "one/data", tmp_path / "other/data"
    for folder in (one, other):
        folder.mkdir(parents=True)
    work, settings = tmp_path / "work/data_small", Path("small.yaml")
    assert example.default_work(one, settings) == example.default_work(other, settings) == work
    work.mkdir(parents=True)
    (work / "source.json").write_text(json.dumps({"folder": str(one)}))
    assert example.default_work(one, settings) == work
    second = example.default_work(other, settings)
    assert re.fullmatch(r"data_small_[0-9a-f]{8}", second.name) and second.parent == work.parent
    one.rename(tmp_path / "moved")
    assert example.default_work(tmp_path / "moved", settings).name == "moved_small"
    assert example.default_work(other, settings) == work


def test_another_baseline_needs_no_training(
    example: Any, calls: Callable[[], list[str]], tiny: list[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("WRONG", json.dumps(WRONG))
    assert example.main([*tiny, *SYSTEMS]) == 0
    before = len(calls())
    assert example.main([*tiny, *SYSTEMS, "--set", "baseline=birnn"]) == 0
    assert len(calls()) == before
    results = read_json(tmp_path / "work/results.json")
    assert results["baseline"] == "birnn" and not results["systems"]["birnn"]["compared"]
    assert results["systems"]["transformer"]["compared"]["WER"]["difference"] == 10
    assert read_json(tmp_path / "work/aa/results.json")["experiment"]["baseline"] == "birnn"


def test_a_seed_of_the_folder_counts_and_not_the_added_one(
    example: Any, calls: Callable[[], list[str]], tiny: list[str], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    words = [*tiny, "--systems", "transformer"]
    assert example.main(words) == 0
    results = read_json(tmp_path / "work/results.json")
    results["systems"]["transformer"]["scores"]["WER"]["aa"]["1"] = 99.0
    there = tmp_path / "there.json"
    there.write_text(json.dumps(results))
    assert example.main([*words, "--add", str(there)]) == 0
    found = read_json(tmp_path / "work/results.json")
    assert found["systems"]["transformer"]["scores"]["WER"]["aa"] == {"1": 0.0}
    none = ["--work-dir", str(tmp_path / "none")]
    assert example.main([*words, *none, "--add", str(there)]) == 2
    assert "these results have all of the runs" in capsys.readouterr().err


def test_all_signatures_are_named(
    example: Any, calls: Callable[[], list[str]], tiny: list[str], tmp_path: Path
) -> None:
    """Of all runs here, and of the results that are added."""
    words, work = [*tiny, "--systems", "transformer"], tmp_path / "work"
    assert example.main(words) == 0
    results = read_json(work / "results.json")
    (tmp_path / "there.json").write_text(json.dumps({**results, "signatures": {"PER": "p9, p8"}}))
    before = results["signatures"]
    of_bb = read_json(work / "bb/results.json")
    of_bb["runs"][0]["signatures"]["PER"] = "p8"
    (work / "bb/results.json").write_text(json.dumps(of_bb))
    assert example.main([*words, "--add", str(tmp_path / "there.json")]) == 0
    after = read_json(work / "results.json")["signatures"]
    assert after == {"WER": before["WER"], "PER": f"{before['PER']}, p8, p9"}
    assert f"PER `{after['PER']}`" in (work / "table.md").read_text()


@pytest.mark.parametrize(
    "total, said",
    [
        (20, "p: exact sign-flip test, two-sided, over the differences of the languages, at least "
             "1.91e-06 for 20;"),
        (21, "p: sign-flip test with 100,000 random choices of signs, two-sided, over the "
             "differences of the languages, at least 1e-05;"),
    ],
)  # fmt: skip
def test_the_note_says_which_test_it_is(total: int, said: str, example: Any) -> None:
    empty = dict.fromkeys(("signatures", "versions"), {})
    lines = example.report.table.notes({
        "baseline": "transformer", "languages": {str(n): {"test": 1} for n in range(total)},
        "command": "", "machine": "", "commits": [], **empty,
    })  # fmt: skip
    assert any(said in line for line in lines)
    least = float(re.search(r"at least (\S+?)[; ]", said)[1])
    assert sign_flip_p([1.0] * (total)) == pytest.approx(least, rel=0.01)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda r: r["settings"]["train"].update(lr=7), "with another setting `train`"),
        (lambda r: r["languages"]["bb"].update(test=11), "has other words, or another NORM"),
        (
            lambda r: r["languages"]["aa"].update(normalization="NFD"),
            "has other words, or another NORMALIZATION, for aa",
        ),
        (
            lambda r: r["systems"]["transformer"]["flags"].update(dropout=0.5),
            "has other flags for transformer",
        ),
        (lambda r: r.pop("systems"), "is not one"),
        (lambda r: r.pop("commits"), "is not one"),
        (
            lambda r: r["systems"]["transformer"]["scores"]["PER"]["aa"].clear(),
            "is not one",
        ),
    ],
)
def test_results_that_do_not_fit_are_refused(
    change: Callable[[Any], Any], message: str, example: Any, calls: Callable[[], list[str]],
    tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    words = [*tiny, "--systems", "transformer"]
    assert example.main(words) == 0
    results = read_json(tmp_path / "work/results.json")
    change(results)
    there = tmp_path / "there.json"
    there.write_text(json.dumps(results))
    before = len(calls())
    none = str(tmp_path / "none.json")
    assert example.main([*words, "--seeds", "2", "--add", str(there), none]) == 2
    said = capsys.readouterr().err
    assert f"error: --add: expected results.json files of this example; {there} " in said
    assert message in said
    assert f"cannot read {none}: No such file" in said
    assert len(calls()) == before


def test_the_pooled_bootstrap_is_that_of_all_words(
    example: Any, calls: Callable[[], list[str]], tiny: list[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Also where one of the languages has words with two pronunciations."""
    rows = words(10, 10)
    write_set(Path(tiny[0]) / "aa_test.tsv", [*rows, (rows[0][0], "X " + rows[0][1])])
    monkeypatch.setenv("WRONG", json.dumps({"aa transformer 1": 4, "bb birnn 1": 2}))
    assert example.main([*tiny, "--systems", "transformer", "birnn"]) == 0
    systems = read_json(tmp_path / "work/results.json")["systems"]
    assert systems["transformer"]["scores"]["WER"]["aa"]["1"] == 30  # the first is right after all
    true = [phones for seed in (10, 20) for _, phones in words(10, seed)]
    base = ["X " + p if i < 4 else p for i, p in enumerate(true)]
    birnn = ["X " + p if 10 <= i < 12 else p for i, p in enumerate(true)]
    second = ["X " + true[0], *true[1:]]
    found = compare_systems({"a": base, "b": birnn}, [true, second], ["wer", "per"], "a")
    for metric in ("WER", "PER"):
        pooled = systems["birnn"]["compared"][metric]["pooled"]["1"]
        expected = found.of(metric, "b")
        assert pooled["difference"] == pytest.approx(expected.difference)
        assert pooled["p"] == expected.corrected["bootstrap"]


def test_outputs_of_other_settings_are_not_pooled(
    example: Any, calls: Callable[[], list[str]], tiny: list[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Seed 1 was trained here with another rate; of the added seed there are only the scores."""
    monkeypatch.setenv("WRONG", json.dumps({"aa transformer 1": 4, "bb transformer 2": 2}))
    systems = ["--systems", "transformer", "birnn"]
    words = [*tiny, *systems]
    assert example.main([*tiny[:-1], str(tmp_path / "there"), *systems, "--seeds", "1"]) == 0
    there = tmp_path / "there/results.json"
    assert example.main([*words, "--seeds", "1", "--set", "train.lr=0.5"]) == 0
    assert (tmp_path / "work/aa/birnn/seed1/test.txt").exists()
    assert example.main([*words, "--seeds", "1", "2", "--add", str(there)]) == 0
    birnn = read_json(tmp_path / "work/results.json")["systems"]["birnn"]
    assert birnn["seeds"] == ["1", "2"] and list(birnn["compared"]["WER"]["pooled"]) == ["2"]
    text = (tmp_path / "work/table.md").read_text()
    assert re.search(r"^\| birnn \| .* \| 2: [\d.]+ \|$", text, re.M)


def test_a_language_is_an_experiment_that_may_be_moved(
    example: Any, calls: Callable[[], list[str]], tiny: list[str], tmp_path: Path
) -> None:
    assert example.main([*tiny, "--systems", "transformer"]) == 0
    moved = tmp_path / "moved"
    (tmp_path / "work").rename(moved)
    experiment = stored_experiment(read_about(moved / "aa"), moved / "aa")
    assert experiment.baseline == "transformer"


@pytest.mark.slow
def test_killed_and_continued(
    example: Any, calls: Callable[[], list[str]], tiny: list[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Nothing is done twice, a killed run is done again, and other runs join the table."""
    monkeypatch.setenv("WAITS", "bb birnn 1")
    arguments = [*tiny, "--systems", "transformer", "birnn", "--jobs", "1"]
    child = os.fork()
    if child == 0:
        own_progress_lock()
        os._exit(example.main(arguments))
    wait_for((tmp_path / "work/bb/birnn/seed1/waited").exists)
    assert example.main(arguments) == 2 and "is in use by another run" in capfd.readouterr().err
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    results = read_json(tmp_path / "work/results.json")
    assert results["systems"]["transformer"]["seeds"] == ["1"]
    assert results["systems"]["birnn"]["seeds"] == [] and not results["systems"]["birnn"]["macro"]
    assert "Nothing to compare: only transformer" in (tmp_path / "work/table.md").read_text()
    before = calls()
    # As if the kill had come before the language's table was written.
    (tmp_path / "work/aa/results.json").unlink()
    assert example.main(arguments) == 0
    printed = capfd.readouterr().out
    assert "4 runs, 3 of them already done; 1 at a time" in printed
    assert "birnn have the same lowest WER, 0.00 in the average of 2 languages" in printed
    assert calls()[len(before) :] == ["train bb birnn 1", "generate bb birnn 1"]
    compared = read_json(tmp_path / "work/results.json")["systems"]["birnn"]["compared"]["WER"]
    assert compared["difference"] == 0 and compared["pooled"]["1"]["p"] == 1 == compared["p"]
    assert example.main([*arguments, "--languages", "bb"]) == 0 and len(calls()) == len(before) + 2
    assert [*read_json(tmp_path / "work/results.json")["languages"]] == ["bb"]


@pytest.mark.slow
def test_a_longer_training_replaces_the_score(
    example: Any, calls: Callable[[], list[str]], tiny: list[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    one = [*tiny, "--systems", "transformer", "--languages", "aa"]
    written, tables = tmp_path / "work/aa/results.json", []
    longer = ["--set", "train.max-update=9"]
    for wrong, more in ((5, []), (2, longer), (2, longer)):
        monkeypatch.setenv("WRONG", json.dumps({"aa transformer 1": wrong}))
        assert example.main([*one, *more]) == 0
        system = read_json(tmp_path / "work/results.json")["systems"]["transformer"]
        assert system["scores"]["WER"] == {"aa": {"1": 10 * wrong}}
        tables.append(written.read_text())
        written.write_text(tables[0])  # as if a kill had come before the table was written
    assert len(calls()) == 4


def test_other_words_need_another_folder(
    example: Any, calls: Callable[[], list[str]], tiny: list[str], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    one = [*tiny, "--systems", "transformer", "--languages", "aa"]
    assert example.main(one) == 0 and "Nothing to compare: only tr" in capsys.readouterr().out
    write_set(Path(tiny[0]) / "aa_dev.tsv", words(3, 99))
    assert example.main(one) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path / 'work'} has trainings on other words for aa; choose" in said


def test_words_are_corrected_before_a_training_begins(
    example: Any, calls: Callable[[], list[str]], tiny: list[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Nothing of the first words is left: another pronunciation of theirs would count as right."""
    one = [*tiny, "--systems", "transformer", "--languages", "aa"]
    file, rows = Path(tiny[0]) / "aa_test.tsv", words(10, 10)
    write_set(file, [*rows, (rows[0][0], "X " + rows[0][1])])
    with monkeypatch.context() as here:
        here.setattr(experiment_check, "check", refused)
        assert example.main(one) == 2 and "error: refused" in capsys.readouterr().err
    data = tmp_path / "work/aa/data"
    assert (data / "test.2.phones").is_file()
    write_set(file, rows[:4])
    assert example.main(one) == 0, capsys.readouterr().err
    assert [file.name for file in data.glob("test.*.phones")] == ["test.1.phones"]
    assert (data / "test.1.phones").read_text().splitlines() == [phones for _, phones in rows[:4]]
    assert calls() == ["train aa transformer 1", "generate aa transformer 1"]


def refused(runs: object) -> None:
    """In place of the check of the flags."""
    raise ConfigError("refused; correct the flags")


@pytest.mark.slow
def test_a_failure_is_reported_and_the_rest_is_done(
    example: Any, calls: Callable[[], list[str]], tiny: list[str], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    text = (tmp_path / "program").read_text()
    failing = 'if "rsa" in name:\n    sys.exit("fairseq stumbled")\n'
    (tmp_path / "program").write_text(
        text.replace('if step == "train":', failing + 'if step == "train":')
    )
    assert example.main([*tiny, "--systems", "birnn", "rsa", "--languages", "bb"]) == 1
    said = capsys.readouterr()
    assert "fairseq stumbled" in said.out and "bb rsa seed 1 failed; see its folder" in said.err
    assert "| birnn | 1 | 0.00 |" in said.out and "| rsa |" not in said.out


# The runs themselves -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "systems", ["birnn", pytest.param("transformer rsa srformer", marks=pytest.mark.slow)]
)
def test_the_whole_command(
    systems: str, example: Any, tiny: list[str], tmp_path: Path, forked: None,  # noqa: F811
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Two languages, from the files to the table."""
    for name in ("torch._dynamo", "fairseq_cli.generate", "fairseq_cli.train"):
        importlib.import_module(name)  # once, not in every fork
    several = " " in systems
    command = [*tiny, "--systems", *systems.split()] + ["--set", "checkpoint=2"] * several
    assert example.main(command) == 0
    results = read_json(tmp_path / "work/results.json")
    for name in systems.split():
        system = results["systems"][name]
        assert system["seeds"] == ["1"] and len(system["scores"]["PER"]) == 2
        for language, size in system["parameters"].items():
            folder = tmp_path / "work" / language / name / "seed1"
            (path,) = folder.glob("*.pt")
            assert path.name == ("average.pt" if several else "checkpoint_last.pt")
            weights = torch.load(path, weights_only=False)["model"]
            buffers = ("version", "_float_tensor")
            tied = weights["decoder.embed_tokens.weight"].numel()
            counted = sum(w.numel() for k, w in weights.items() if not k.endswith(buffers))
            assert size in (counted, counted - tied)
    assert ("WER" in results["systems"]["rsa"]["compared"]) == several
    assert f"| {systems.split()[-1]} | 1 | " in capfd.readouterr().out
    assert example.main(command) == 0
    runs = 2 * len(systems.split())
    assert f"{runs} runs, {runs} of them already done" in capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sigmorphon2020", "sigmorphon2020_large", "small"])
def test_the_settings_fit_all_systems(name: str, example: Any, tiny: list[str]) -> None:
    """Every flag of every system acts, and each model can be built."""
    args = example.parser().parse_args([*tiny[:1], "--settings", name, *tiny[3:]])
    work = args.work_dir
    languages = example.data.read(args.folder, ["aa"])
    prepared = example.prepare(languages, example.settings_file(name), args, work)
    runs = example.runs_from(prepared, work, args)
    assert len(runs) == 9 * len(prepared["aa"].seeds)
    sizes = experiment_check.check(runs)
    assert len({run.train_flags()["max-update"] for run in runs}) == 1
    assert all(1 <= size / sizes["transformer"] < 1.8 for size in sizes.values()), sizes
    assert sizes["transformer_large"] == pytest.approx(sizes["birnn"], rel=1e-3), (
        "a control of size"
    )


def test_the_expected_results_are_of_all_systems() -> None:
    """On every language, with all seeds of the settings."""
    names: list[str] = []
    for file in ("systems.yaml", "settings/small.yaml"):
        content = yaml.safe_load((EXAMPLE / file).read_text(encoding="utf-8"))
        names += content["systems"]
    record = read_json(EXAMPLE / "expected.json")
    assert sorted(record["systems"]) == sorted(names) and len(record["languages"]) == 10
    for name, system in record["systems"].items():
        for scores in system["scores"].values():
            assert scores.keys() == record["languages"].keys(), name
            assert {tuple(of) for of in scores.values()} == {("1", "2", "3")}, name


@pytest.mark.slow
def test_killed_and_resumed_is_as_never_stopped(tiny: list[str], tmp_path: Path) -> None:
    """The script's program is killed with its training, and started again."""
    command = [sys.executable, str(EXAMPLE / "run.py"), *tiny, "--systems", "biarn", "--jobs", "1"]
    command += ["--languages", "aa", "--set", "train.max-update=40", "--set", "checkpoint=last"]
    settings: dict[str, Any] = {
        "cwd": Path(USER_DIR).parent, "stdin": subprocess.DEVNULL, "text": True,
        "env": {**os.environ, "PYTHONPATH": str(Path(USER_DIR).parent), "OMP_NUM_THREADS": "1"},
    }  # fmt: skip
    once = [tmp_path / "once" if word == tiny[-1] else word for word in command]
    done = subprocess.run(once, capture_output=True, **settings)
    assert done.returncode == 0, done.stderr
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, start_new_session=True, **settings
    )
    log = tmp_path / "work/aa/biarn/seed1/train.log"
    wait_for(lambda: log.is_file() and "num_updates=5," in log.read_text())
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(0.5)
    assert not log.with_name("test.txt").exists()
    again = subprocess.run(command, capture_output=True, **settings)
    assert again.returncode == 0, again.stderr
    folders = [tmp_path / name / "aa/biarn/seed1" for name in ("once", "work")]
    # Lines of the log, which have the time and the folder, begin with the year.
    texts = [re.sub("^20.*$", "", (f / "test.txt").read_text(), flags=re.M) for f in folders]
    assert texts[0] == texts[1]
    models = [torch.load(f / "checkpoint_last.pt", weights_only=False)["model"] for f in folders]
    assert all(torch.equal(models[0][key], models[1][key]) for key in models[0])
