"""The translation recipes on archives with the real names, layouts and formats, but few lines."""

import json
import os
import random
import re
import shutil
import signal
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest
from recipes import multi30k
from recipes.steps import exclusive
from recipes.translation_options import read_recipe
from recipes.translation_text import detokenise_chinese, tokeniser

from tests.forking import own_progress_lock
from tests.running import tree
from tests.translation_archives import archives, chinese, german, iwslt14, wmt14, write_sums
from tests.translation_preparing import (  # noqa: F401  (fixtures)
    EXAMPLES,
    RECIPES,
    SECONDS,
    SEPARATE,
    SMALL,
    lines,
    mirrors,
    prepare,
    prepared,
    text_of,
)  # fmt: skip

# --- what is prepared -------------------------------------------------------------------------


def test_english_german(prepared: Callable[..., Path]) -> None:
    work = prepared("wmt14_en_de", **SMALL)
    reports = {p.parent.name: json.loads(p.read_text()) for p in work.glob("tokens/*/pairs.json")}
    assert reports["commoncrawl"] == {"empty": 1, "identical": 1, "long": 1, "ratio": 1, "kept": 52}
    kept = sum(report["kept"] for report in reports.values())
    sides = [lines(work / f"pieces/train/train.{language}") for language in ("en", "de")]
    assert len(sides[0]) == len(sides[1]) == kept == 152
    assert "A line with separators and controls ." in map(text_of, sides[0])
    assert "Eine Zeile mit Trennern ." in map(text_of, sides[1])
    assert "Hyphen and zero width ." in map(text_of, sides[0])
    # The reference is the raw text; the source is cut as the training data is.
    assert lines(work / "text/test.en-de/text.de") == [other for _, other in german("test", 12)]
    tokenise = tokeniser("en", normalise=True, dashes=True, chinese="")
    cut = lines(work / "pieces/test.en-de/test.en-de.en")
    assert [text_of(line) for line in cut] == [tokenise(one) for one, _ in german("test", 12)]
    data = work / "data-bin.en-de"
    names = {f"{part}.en-de.{end}" for part in ("train", "valid", "test")
             for end in ("en.bin", "en.idx", "de.bin", "de.idx")}  # fmt: skip
    assert names | {"dict.en.txt", "dict.de.txt", ".key"} == {p.name for p in data.iterdir()}
    for language, side in zip(("en", "de"), sides):
        known = {line.split(" ")[0] for line in lines(data / f"dict.{language}.txt")}
        assert {piece for line in side for piece in line.split()} == {
            word for word in known if not word.startswith("madeupword")
        }
    assert lines(data / "dict.en.txt") != lines(data / "dict.de.txt")


def test_iwslt14(tmp_path: Path) -> None:
    """fairseq's preparation: tags removed, lower case, every 23rd pair held out."""
    work = tmp_path / "work"
    mirror = iwslt14(tmp_path / "mirror", 190)
    assert prepare("iwslt14_de_en", mirror, work, BPE_SIZE="150", WORKERS="1") == 0
    train = lines(work / "text/ted/text.en")
    valid = lines(work / "text/valid.de-en/text.en")
    assert (len(train), len(valid)) == (184, 8)  # with a title and a description
    whole = ["Der Titel en", *(one for one, _ in german("train", 190)), "Über alles en"]
    assert valid == whole[22::23] and sorted(train + valid) == sorted(whole)
    assert lines(work / "text/test.de-en/text.de") == [de for _, de in german("test", 10)]
    for name in ("train/train", "test.de-en/test.de-en"):
        text = (work / f"pieces/{name}.de").read_text()
        assert text == text.lower() and "<" not in text
    assert "LOWERCASE=1" in (work / "prepared.de-en.sh").read_text()


def test_a_rehearsal_on_a_part_of_the_data(
    mirrors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, mirror, work = mirrors / "wmt14_en_de", tmp_path / "mirror", tmp_path / "work"
    shutil.copytree(whole, mirror)
    (mirror / "training-parallel-commoncrawl.tgz").unlink()  # cannot be had
    part = {**SMALL, "CORPORA": "europarl-v7 news-commentary-v9", "SAMPLE": "20"}
    assert prepare("wmt14_en_de", mirror, work, **part, DOWNLOAD_ONLY="1") == 0
    assert not (work / "text").exists()
    assert prepare("wmt14_en_de", mirror, work, **part) == 0
    assert len(lines(work / "pieces/train/train.en")) == 40
    assert sorted(p.name for p in (work / "tokens").iterdir()) == part["CORPORA"].split()
    assert prepare("wmt14_en_de", mirror, work, CORPORA="europarl") == 2
    assert "expected some of europarl-v7, commoncrawl" in capsys.readouterr().err


def test_multi30k(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror, folder = tmp_path / "mirror", tmp_path / "text"
    mirror.mkdir()
    for there in multi30k.SETS:
        for language in ("en", "de"):
            (mirror / f"{there}.lc.norm.tok.{language}").write_text(f"{there} {language}\n")
    monkeypatch.setenv("MULTI30K_MIRROR", str(mirror))
    folder.mkdir()
    assert multi30k.main([str(folder)]) == 2  # other files than the published ones
    write_sums(mirror)
    assert multi30k.main([str(folder)]) == 0
    assert (folder / "valid.de").read_text() == "val de\n"
    assert {path.name for path in folder.iterdir()} == set(multi30k.FILES)
    assert multi30k.main([str(folder / "valid.de")]) == 2  # a file
    assert "valid.de" in capsys.readouterr().err


def test_other_direction_reuses_what_is_trained_on(prepared: Callable[..., Path]) -> None:
    made = prepared("wmt14_en_de", **SMALL)
    work = made.parent / f"{made.name}-both"
    shutil.copytree(made, work)
    before = tree(work)
    mirror = Path(str(work) + "-mirror")
    wmt14(mirror, 150)
    assert prepare("wmt14_en_de", mirror, work, **SMALL, SOURCE="de", TARGET="en") == 0
    after = tree(work)
    assert {name: after[name] for name in before} == before
    new = {name.split("/")[0] + "/" + name.split("/")[1] for name in set(after) - set(before)
           if "/" in name and not name.startswith("data-bin")}  # fmt: skip
    parts = ("valid.de-en", "test.de-en")
    assert new == {f"{kind}/{part}" for kind in ("text", "pieces") for part in parts}
    assert lines(work / "text/test.de-en/text.en") == [one for one, _ in german("test", 12)]
    assert (work / "data-bin.de-en/train.de-en.de.bin").is_file()


def test_chinese_english(prepared: Callable[..., Path]) -> None:
    work = prepared("wmt17_zh_en", **SEPARATE)
    words = lines(work / "tokens/datum2017/tokens.zh")
    # Datum 2017 has blanks between all characters; they are no words.
    assert len(words) == 40 and any("审议" in line.split() for line in words)
    assert all("  " not in line and "\r" not in line for line in words)
    assert len(lines(work / "pieces/train/train.zh")) == len(lines(work / "pieces/train/train.en"))
    test = [one for one, _ in chinese(5, 10)]
    cut = lines(work / "pieces/test.zh-en/test.zh-en.zh")
    assert [detokenise_chinese(text_of(line)) for line in cut] == list(
        map(detokenise_chinese, test)
    )
    assert lines(work / "text/test.zh-en/text.en") == [other for _, other in chinese(5, 10)]
    codes = [(work / f"pieces/model/codes.{language}").read_text() for language in ("zh", "en")]
    assert codes[0] != codes[1]


def test_characters(prepared: Callable[..., Path]) -> None:
    work = prepared("wmt17_zh_en", **SEPARATE, SEGMENTATION="characters", SOURCE="en", TARGET="zh")
    for line in lines(work / "tokens/un-v1.0/tokens.zh"):
        assert all(len(word) == 1 or word.isascii() for word in line.split())
    assert "--target-lang zh" in (work / "prepared.en-zh.sh").read_text()


def test_sentencepiece_and_a_joined_dictionary(prepared: Callable[..., Path]) -> None:
    work = prepared(
        "wmt14_en_de", BPE_SIZE="200", BPE_THRESHOLD="0", WORKERS="1", TOKENIZER="sentencepiece",
        DICTIONARY="joined",
    )  # fmt: skip
    test = lines(work / "pieces/test.en-de/test.en-de.en")
    assert [line.replace(" ", "").replace("▁", " ").strip() for line in test] == [
        one for one, _ in german("test", 12)
    ]
    data = work / "data-bin.en-de"
    assert lines(data / "dict.en.txt") == lines(data / "dict.de.txt")
    assert "--bpe sentencepiece" in (work / "prepared.en-de.sh").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    "variables",
    [{"TOKENIZER": "sentencepiece", "BPE": "separate", "SOURCE": "en"}, {"BPE": "separate"},
     {"BPE": "joint", "DICTIONARY": "joined", "SEGMENTATION": "characters", "NORMALISE": "0",
      "DASHES": "0"}],
    ids=lambda variables: "-".join(variables.values()),
)  # fmt: skip
def test_one_and_two_processes_make_the_same(
    recipe: str, variables: dict[str, str], prepared: Callable[..., Path]
) -> None:
    target = {"wmt14_en_de": "de", "wmt17_zh_en": "zh"}[recipe]
    variables = {"BPE_SIZE": "120", "BPE_THRESHOLD": "0", **variables}
    if "SOURCE" in variables:
        variables["TARGET"] = target
    trees = [tree(prepared(recipe, **variables, WORKERS=workers)) for workers in ("1", "2")]
    assert trees[0] == trees[1]


@pytest.mark.slow
def test_two_processes_make_the_same(prepared: Callable[..., Path]) -> None:
    one = prepared("wmt14_en_de", **SMALL)
    two = prepared("wmt14_en_de", **{**SMALL, "WORKERS": "2"})
    assert tree(one) == tree(two)


# --- what goes wrong --------------------------------------------------------------------------


def copy_mirror(mirrors: Path, folder: Path, sums: bool) -> Path:
    shutil.copytree(mirrors / "wmt17_zh_en", folder)
    if not sums:
        # Without it the published sizes and checksums hold, which a small mirror cannot have.
        (folder / "SHA256SUMS").unlink()
    return folder


@pytest.mark.parametrize("name, sums", [
    ("UNv1.0.en-zh.tar.gz", "old sums"),
    ("datum2017.zip", "new sums"),
    pytest.param("UNv1.0.en-zh.tar.gz", "new sums", marks=pytest.mark.slow),
    pytest.param("datum2017.zip", "old sums", marks=pytest.mark.slow),
])  # fmt: skip
def test_a_truncated_archive_is_named(
    name: str, sums: str, mirrors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror = copy_mirror(mirrors, tmp_path / "mirror", True)
    content = (mirror / name).read_bytes()
    (mirror / name).write_bytes(content[: len(content) * 2 // 3])
    if sums == "new sums":
        write_sums(mirror)
    assert prepare("wmt17_zh_en", mirror, tmp_path / "work", **SEPARATE) == 2
    error = capsys.readouterr().err
    assert re.search(rf"error: \S*{re.escape(name)} is truncated", error)
    assert not list((tmp_path / "work").glob("tokens/*"))
    # With the right file it goes on.
    (mirror / name).write_bytes(content)
    write_sums(mirror)
    assert prepare("wmt17_zh_en", mirror, tmp_path / "work", **SEPARATE) == 0


def test_another_archive_is_named(
    mirrors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror = copy_mirror(mirrors, tmp_path / "mirror", True)
    shutil.copy(mirror / "casia2015.zip", mirror / "neu2017.zip")
    write_sums(mirror)
    assert prepare("wmt17_zh_en", mirror, tmp_path / "work", **SEPARATE) == 2
    error = capsys.readouterr().err
    assert "neu2017.zip has no neu2017/NEU_cn.txt, neu2017/NEU_en.txt; it has: casia2015/" in error
    (mirror / "SHA256SUMS").unlink()
    assert prepare("wmt17_zh_en", mirror, tmp_path / "more", **SEPARATE) == 2
    assert "bytes, expected 1,386,685,703" in capsys.readouterr().err
    (mirror / "UNv1.0.en-zh.tar.gz").unlink()
    assert prepare("wmt17_zh_en", mirror, tmp_path / "more", **SEPARATE) == 2
    assert "has no UNv1.0.en-zh.tar.gz" in capsys.readouterr().err


def test_nothing_is_begun_where_options_or_the_disk_do_not_allow_it(
    mirrors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    mirror, work = mirrors / "wmt14_en_de", tmp_path / "work"
    assert prepare("wmt14_en_de", mirror, work, BPE="both", WORKERS="x") == 2
    error = capsys.readouterr().err
    assert "BPE=both" in error and "WORKERS=x" in error and not work.exists()
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(9, 9, 10_000))
    assert prepare("wmt14_en_de", mirror, work, **SMALL) == 2
    assert re.search(r"preparing en-de needs \S+ GB and the disk", capsys.readouterr().err)
    assert [p.name for p in work.iterdir()] == [".lock"]


def test_two_preparations_do_not_share_a_folder(
    mirrors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "work"
    # A lock is a process's, so the other preparation is another process.
    locked, end = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        with exclusive(work):
            os.write(locked[1], b"x")
            os.read(end[0], 1)
        os._exit(0)
    os.read(locked[0], 1)
    status = prepare("wmt14_en_de", mirrors / "wmt14_en_de", work, **SMALL)
    os.write(end[1], b"x")
    assert os.waitpid(child, 0)[1] == 0
    assert status == 2 and "another preparation works in" in capsys.readouterr().err
    with exclusive(work):
        pass


# --- killed -----------------------------------------------------------------------------------


def start(work: Path, mirror: Path, recipe: str, variables: dict[str, str]) -> int:
    """Start a preparation in a separate process, with a group for its children."""
    child = os.fork()
    if child:
        return child
    try:
        own_progress_lock()
        os.setsid()
        quiet = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(quiet, number)
        os._exit(prepare(recipe, mirror, work, **variables))
    finally:
        os._exit(70)


def ended(child: int, seconds: float) -> bool:
    """Whether a process ends successfully within this many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            assert status == 0
            return True
        time.sleep(0.01)
    return False


def check_killed(
    prepared: Callable[..., Path], mirrors: Path, work: Path, recipe: str, kills: int, seed: int,
    variables: dict[str, str],
) -> None:  # fmt: skip
    """Kill and resume this many times; a preparation that ends earlier is compared and repeated."""
    whole = prepared(recipe, **variables)
    expected, draw, killed = tree(whole), random.Random(seed), 0
    while killed < kills:
        child = start(work, mirrors / recipe, recipe, variables)
        if ended(child, draw.uniform(0, SECONDS[whole])):
            assert tree(work) == expected
            shutil.rmtree(work)
            continue
        # Every second time the processes that it started are left to themselves.
        (os.killpg if killed % 2 == 0 else os.kill)(child, signal.SIGKILL)
        os.waitpid(child, 0)
        killed += 1
    assert ended(start(work, mirrors / recipe, recipe, variables), 600)
    assert tree(work) == expected


def test_killed_and_resumed(prepared: Callable[..., Path], mirrors: Path, tmp_path: Path) -> None:
    check_killed(prepared, mirrors, tmp_path / "work", "wmt14_en_de", 4, 1, SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("seed", [1, 2])
def test_killed_and_resumed_often(
    recipe: str, seed: int, prepared: Callable[..., Path], mirrors: Path, tmp_path: Path
) -> None:
    small = {**(SMALL if recipe == "wmt14_en_de" else SEPARATE), "WORKERS": "2"}
    check_killed(prepared, mirrors, tmp_path / "work", recipe, 12, seed, small)


def test_archives_of_the_mirrors_are_those_of_the_recipes(mirrors: Path) -> None:
    for name in RECIPES:
        recipe = read_recipe(EXAMPLES / name / "recipe.yaml")
        assert sorted(archive.name for archive in recipe.archives) == [
            file.name for file in archives(mirrors / name)
        ]
