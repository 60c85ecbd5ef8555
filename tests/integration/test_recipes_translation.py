"""The translation recipes on archives with the real names, layouts and formats, but few lines."""

import hashlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path
from typing import Callable, Dict, List, Sequence

import pytest

from recipes.clean import detokenise_chinese
from recipes.translation import alone, main
from tests.docs.commands import parse
from tests.translation_archives import ROOT, archives, chinese, german, wmt14, wmt17, write_sums

EXAMPLES = ROOT / "examples"
RECIPES = {"wmt14_en_de": wmt14, "wmt17_zh_en": wmt17}
SMALL = {"BPE_SIZE": "150", "BPE_THRESHOLD": "2", "WORKERS": "1"}
SEPARATE = {"BPE_SIZE": "60", "WORKERS": "1"}
TINY = (
    "--encoder-embed-dim 16 --encoder-ffn-embed-dim 24 --encoder-layers 1 --decoder-layers 1 "
    "--encoder-attention-heads 2 --decoder-attention-heads 2 --num-workers 0 --log-interval 2"
).split()
OURS = (
    "SOURCE TARGET TOKENIZER SEGMENTATION NORMALISE DASHES BPE BPE_SIZE BPE_THRESHOLD DICTIONARY "
    "MIN_LENGTH MAX_LENGTH RATIO WORKERS WORK WMT_MIRROR ARCH RUN SEED LR DROPOUT AVERAGE "
    "MAX_UPDATES SAVE_EVERY START_FROM BASELINE LAUNCHER BATCH_TOKENS MAX_TOKENS GPUS PROCESSES "
    "PRECISION PYTHON PRINT"
).split()
"""Variables of the recipes, which must not come into a test from outside."""

SECONDS: Dict[Path, float] = {}
"""What a preparation took."""


@pytest.fixture(scope="session")
def mirrors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mirror of each recipe's archives."""
    folder = tmp_path_factory.mktemp("mirrors")
    wmt14(folder / "wmt14_en_de", 150)
    wmt17(folder / "wmt17_zh_en", 20)
    return folder


def prepare(recipe: str, mirror: Path, work: Path, **variables: str) -> int:
    """Prepare in this process; the command's status."""
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
    folders: Dict[str, Path] = {}

    def make(recipe: str, **variables: str) -> Path:
        name = f"{recipe} {sorted(variables.items())}"
        if name not in folders:
            folders[name], begin = tmp_path_factory.mktemp(recipe), time.monotonic()
            assert prepare(recipe, mirrors / recipe, folders[name], **variables) == 0
            SECONDS[folders[name]] = time.monotonic() - begin
        return folders[name]

    return make


def tree(work: Path) -> Dict[str, str]:
    """Every file of a preparation, with a checksum."""
    return {
        str(file.relative_to(work)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(work.rglob("*"))
        if file.is_file()
    }


def lines(file: Path) -> List[str]:
    return file.read_text(encoding="utf-8").split("\n")[:-1]


def text_of(pieces: str) -> str:
    return pieces.replace("@@ ", "")


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
    assert len(lines(work / "pieces/test.en-de/test.en-de.en")) == 12
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
    recipe: str, variables: Dict[str, str], prepared: Callable[..., Path]
) -> None:
    target = {"wmt14_en_de": "de", "wmt17_zh_en": "zh"}[recipe]
    variables = {"BPE_SIZE": "120", "BPE_THRESHOLD": "0", **variables}
    if "SOURCE" in variables:
        variables["TARGET"] = target
    trees = [tree(prepared(recipe, **variables, WORKERS=workers)) for workers in ("1", "2")]
    assert trees[0] == trees[1]


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


@pytest.mark.parametrize("name", ["UNv1.0.en-zh.tar.gz", "datum2017.zip"])
@pytest.mark.parametrize("sums", ["old sums", "new sums"])
def test_a_truncated_archive_is_named(
    name: str, sums: str, mirrors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror = copy_mirror(mirrors, tmp_path / "mirror", True)
    content = (mirror / name).read_bytes()
    (mirror / name).write_bytes(content[: len(content) * 2 // 3])
    if sums == "new sums":
        write_sums(mirror)
    assert prepare("wmt17_zh_en", mirror, tmp_path / "work", **SEPARATE) == 1
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
    assert prepare("wmt17_zh_en", mirror, tmp_path / "work", **SEPARATE) == 1
    error = capsys.readouterr().err
    assert "neu2017.zip has no neu2017/NEU_cn.txt, neu2017/NEU_en.txt; it has: casia2015/" in error
    (mirror / "SHA256SUMS").unlink()
    assert prepare("wmt17_zh_en", mirror, tmp_path / "more", **SEPARATE) == 1
    assert "bytes, expected 1,386,685,703" in capsys.readouterr().err
    (mirror / "UNv1.0.en-zh.tar.gz").unlink()
    assert prepare("wmt17_zh_en", mirror, tmp_path / "more", **SEPARATE) == 1
    assert "has no UNv1.0.en-zh.tar.gz" in capsys.readouterr().err


def test_nothing_is_begun_where_options_or_the_disk_do_not_allow_it(
    mirrors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    mirror, work = mirrors / "wmt14_en_de", tmp_path / "work"
    assert prepare("wmt14_en_de", mirror, work, BPE="both", WORKERS="x") == 1
    error = capsys.readouterr().err
    assert "BPE=both" in error and "WORKERS=x" in error and not work.exists()
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(9, 9, 10_000))
    assert prepare("wmt14_en_de", mirror, work, **SMALL) == 1
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
        with alone(work):
            os.write(locked[1], b"x")
            os.read(end[0], 1)
        os._exit(0)
    os.read(locked[0], 1)
    assert prepare("wmt14_en_de", mirrors / "wmt14_en_de", work, **SMALL) == 1
    assert "another preparation works in" in capsys.readouterr().err
    os.write(end[1], b"x")
    assert os.waitpid(child, 0)[1] == 0
    with alone(work):
        pass


# --- killed -----------------------------------------------------------------------------------


def start(work: Path, mirror: Path, recipe: str, variables: Dict[str, str]) -> int:
    """Start a preparation in a process of its own, with a group for those that it starts."""
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        quiet = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(quiet, number)
        os._exit(prepare(recipe, mirror, work, **variables))
    finally:
        os._exit(70)


def kill_and_resume(
    work: Path, mirror: Path, recipe: str, variables: Dict[str, str], waits: Sequence[float]
) -> int:
    """Kill a preparation after each of these seconds, then let it end; how often it was killed."""
    killed = 0
    for number, wait in enumerate([*waits, 600.0]):
        child, end = start(work, mirror, recipe, variables), time.monotonic() + wait
        status = None
        while status is None and time.monotonic() < end:
            found, result = os.waitpid(child, os.WNOHANG)
            status = result if found else None
            time.sleep(0.01)
        if status is None:
            # Every second time the processes that it started are left to themselves.
            (os.killpg if number % 2 == 0 else os.kill)(child, signal.SIGKILL)
            os.waitpid(child, 0)
            killed += 1
        else:
            assert status == 0
    return killed


def check_killed(
    prepared: Callable[..., Path], mirrors: Path, work: Path, recipe: str, kills: int, seed: int,
    variables: Dict[str, str],
) -> None:  # fmt: skip
    whole = prepared(recipe, **variables)
    expected = tree(whole)
    # What was done is not done again, so that waits of this length reach every step.
    draw = random.Random(seed)
    waits = [draw.uniform(0, 2 * SECONDS[whole] / kills) for _ in range(kills)]
    killed = kill_and_resume(work / "killed", mirrors / recipe, recipe, variables, waits)
    assert killed >= kills // 2
    found = tree(work / "killed")
    left = [name for name in found if ".partial" in name]
    assert not left and found == expected


def test_killed_and_resumed(prepared: Callable[..., Path], mirrors: Path, tmp_path: Path) -> None:
    check_killed(prepared, mirrors, tmp_path, "wmt14_en_de", 8, 1, SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("seed", [1, 2])
def test_killed_and_resumed_often(
    recipe: str, seed: int, prepared: Callable[..., Path], mirrors: Path, tmp_path: Path
) -> None:
    small = {**(SMALL if recipe == "wmt14_en_de" else SEPARATE), "WORKERS": "2"}
    check_killed(prepared, mirrors, tmp_path, recipe, 12, seed, small)


# --- the scripts ------------------------------------------------------------------------------


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """The programs of a project with the recipes' scripts: this process's Python."""
    project = tmp_path / "project"
    for name in ("scripts", *(f"examples/{recipe}" for recipe in RECIPES)):
        ignored = shutil.ignore_patterns("work", "__pycache__")
        shutil.copytree(ROOT / name, project / name, ignore=ignored)
    folder = project / ".venv" / "bin"
    folder.mkdir(parents=True)
    write_program(folder / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    write_program(
        folder / "fairseq-recur", f'#!/bin/sh\nexec {sys.executable} -m fairseq_recur "$@"\n'
    )
    return folder


def write_program(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o755)


def run(
    programs: Path, recipe: str, script: str, *words: str, **variables: str
) -> subprocess.CompletedProcess:
    """Run a script of a recipe."""
    clean = {name: value for name, value in os.environ.items() if name not in OURS}
    environment = {
        **clean, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables,
    }  # fmt: skip
    project = programs.parents[1]
    return subprocess.run(
        ["bash", project / "examples" / recipe / f"{script}.sh", *words], env=environment,
        cwd=project, capture_output=True, text=True, timeout=600,
    )  # fmt: skip


STUB = """#!{python}
import json, sys
open({log!r}, "a").write(json.dumps(sys.argv[1:]) + chr(10))
if sys.argv[1] == "generate":
    for number in range({count}):
        print(f"H-{{number}}\\t-0.5\\ta\\nD-{{number}}\\t-0.5\\tein Satz")
"""


def test_calls_of_training_and_evaluation_parse(
    prepared: Callable[..., Path], programs: Path
) -> None:
    work, log = prepared("wmt14_en_de", **SMALL), programs / "calls"
    write_program(
        programs / "fairseq-recur", STUB.format(python=sys.executable, log=str(log), count=12)
    )
    given = {"WORK": str(work), "LAUNCHER": "fairseq-recur train --optimizer adam"}
    big = {**given, "ARCH": "srformer_wmt_en_de_big"}
    done = run(programs, "wmt14_en_de", "train", "--weight-decay", "0.1", **big)
    assert done.returncode == 0, done.stderr
    folder = work / "runs/en-de/transformer_wmt_en_de/seed1"
    done = run(programs, "wmt14_en_de", "train", **given, START_FROM="srformer_wmt_en_de_big")
    assert done.returncode == 1 and "START_FROM=srformer_wmt_en_de_big" in done.stderr
    best = work / "runs/en-de/srformer_wmt_en_de_big/seed1/checkpoint_best.pt"
    best.touch()
    done = run(programs, "wmt14_en_de", "train", **given, START_FROM="srformer_wmt_en_de_big")
    assert done.returncode == 0, done.stderr
    done = run(programs, "wmt14_en_de", "evaluate", **given, BASELINE="srformer_wmt_en_de_big")
    assert done.returncode == 1 and "is not evaluated" in done.stderr
    (best.parent / "test.txt").write_text("ein Satz\n" * 12)
    done = run(programs, "wmt14_en_de", "evaluate", **given, BASELINE="srformer_wmt_en_de_big")
    assert done.returncode == 0, done.stderr
    assert "(not comparable with the scores above) BLEU of Moses's tokens" in done.stdout
    assert lines(folder / "test.txt") == ["ein Satz"] * 12

    calls = [json.loads(line) for line in log.read_text().splitlines()]
    evaluation = ["average", "generate", "score", "compare"]
    assert [call[0] for call in calls] == ["train", "train", *evaluation]
    for call in calls:
        parse(["fairseq-recur", *call])
    settings = [dict(zip(call, call[1:])) for call in calls]
    assert [s.get("--lr") for s in settings[:2]] == ["0.0005", "0.0007"]
    assert [s.get("--dropout") for s in settings[:2]] == ["0.3", "0.1"]
    assert settings[0]["--weight-decay"] == "0.1" and "--finetune-from-model" not in calls[0]
    assert settings[1]["--finetune-from-model"] == str(best)
    assert settings[2]["--last"] == "5" and "--updates" in calls[2]
    assert (settings[3]["--beam"], settings[3]["--lenpen"]) == ("4", "0.6")
    assert settings[3]["--tokenizer"] == "moses" and settings[3]["--bpe"] == "subword_nmt"
    for call in settings[4:]:
        assert call["--reference"] == str(work / "text/test.en-de/text.de")
        assert call["--tokenize"] == "13a"


def test_the_launcher_takes_the_flags(prepared: Callable[..., Path], programs: Path) -> None:
    given = {"WORK": str(prepared("wmt14_en_de", **SMALL)), "PRINT": "1", "GPUS": "0"}
    for processes, frequency in (("1", "8"), ("2", "4"), ("8", "1")):
        done = run(programs, "wmt14_en_de", "train", **given, PROCESSES=processes)
        assert done.returncode == 0, done.stderr
        words = shlex.split(done.stdout.splitlines()[-1])
        assert words[0] == str(programs / "python")
        words = words[words.index("fairseq_recur") + 1 :]
        assert words[words.index("--update-freq") + 1] == frequency
        parse(["fairseq-recur", *words])


def test_scripts_say_what_is_missing(
    prepared: Callable[..., Path], programs: Path, tmp_path: Path
) -> None:
    nothing = {"WORK": str(tmp_path / "nothing")}
    done = run(programs, "wmt17_zh_en", "train", **nothing)
    assert done.returncode == 1 and "zh-en is not prepared" in done.stderr
    done = run(programs, "wmt17_zh_en", "prepare", "--workers", "2", **nothing)
    assert done.returncode == 1 and "takes no arguments" in done.stderr
    (programs / "fairseq-recur").rename(programs / "elsewhere")
    done = run(programs, "wmt17_zh_en", "prepare", **nothing, PATH="/usr/bin:/bin")
    assert done.returncode == 1 and "pip install '.[recipes]'" in done.stderr
    (programs / "elsewhere").rename(programs / "fairseq-recur")
    work = prepared("wmt14_en_de", **SMALL)
    done = run(programs, "wmt14_en_de", "evaluate", WORK=str(work), RUN="none")
    assert done.returncode == 1 and "RUN=none is not trained" in done.stderr
    done = run(programs, "wmt14_en_de", "train", WORK=str(work), MAX_UPDATES="many")
    assert done.returncode == 1 and "MAX_UPDATES=many" in done.stderr
    other = tmp_path / "other"
    shutil.copytree(work, other)
    (other / "pieces/model/.key").write_text("another")
    done = run(programs, "wmt14_en_de", "train", WORK=str(other))
    assert done.returncode == 1 and "prepared with other options" in done.stderr
    folder = work / "runs/en-de/mine/seed1"
    folder.mkdir(parents=True)
    (folder / "checkpoint_last.pt").touch()
    (folder / "settings").write_text("others")
    done = run(programs, "wmt14_en_de", "train", WORK=str(work), RUN="mine")
    assert done.returncode == 1 and "RUN=NAME" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("recipe, direction, preparation", [
    ("wmt14_en_de", "en-de", SMALL),
    ("wmt14_en_de", "de-en", {"BPE_SIZE": "200", "BPE_THRESHOLD": "0", "TOKENIZER": "sentencepiece",
                              "DICTIONARY": "joined"}),
    ("wmt17_zh_en", "zh-en", SEPARATE),
    ("wmt17_zh_en", "en-zh", {**SEPARATE, "SEGMENTATION": "characters"}),
])  # fmt: skip
def test_from_archives_to_scores(
    recipe: str, direction: str, preparation: Dict[str, str], mirrors: Path, programs: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    """prepare.sh, train.sh for a baseline and a preset on two processes, evaluate.sh for both."""
    source, target = direction.split("-")
    given = {
        "WORK": str(tmp_path / "work"), "WMT_MIRROR": str(mirrors / recipe), "SOURCE": source,
        "TARGET": target, "MAX_UPDATES": "6", "SAVE_EVERY": "2", "AVERAGE": "2", "GPUS": "0",
        "PROCESSES": "2", "MAX_TOKENS": "500", "BATCH_TOKENS": "1000", **preparation,
    }  # fmt: skip
    done = run(programs, recipe, "prepare", **given)
    assert done.returncode == 0, done.stderr
    runs = tmp_path / "work/runs" / direction
    for arch, more in (
        ("transformer_wmt_en_de", {}),
        ("transformer_biarn_wmt_en_de", {"START_FROM": "transformer_wmt_en_de"}),
    ):
        for updates in ("3", "6"):  # stopped, and gone on with
            done = run(programs, recipe, "train", *TINY, **{
                **given, **more, "ARCH": arch, "MAX_UPDATES": updates,
            })  # fmt: skip
            assert done.returncode == 0, done.stderr
        log = (runs / arch / "seed1/train.log").read_text()
        assert "num_updates 6" in log or '"num_updates": "6"' in log
        assert "'distributed_world_size': 2" in log
    for arch, more in (
        ("transformer_wmt_en_de", {}),
        ("transformer_biarn_wmt_en_de", {"BASELINE": "transformer_wmt_en_de"}),
    ):
        done = run(programs, recipe, "evaluate", **given, **more, ARCH=arch)
        assert done.returncode == 0, done.stderr
        folder = runs / arch / "seed1"
        scores = json.loads((folder / "scores.json").read_text())
        signature = "tok:zh" if target == "zh" else "tok:13a"
        assert signature in json.dumps(scores)
        assert len(lines(folder / "test.txt")) == (12 if recipe == "wmt14_en_de" else 10)
        text = (folder / "test.txt").read_text()
        assert "@@" not in text and "▁" not in text
    assert (folder / "against.transformer_wmt_en_de.json").is_file()
    assert "paired bootstrap" in done.stdout


def test_archives_of_the_mirrors_are_those_of_the_recipes(mirrors: Path) -> None:
    from recipes.recipe import read_recipe

    for name in RECIPES:
        recipe = read_recipe(EXAMPLES / name / "recipe.yaml")
        assert sorted(archive.name for archive in recipe.archives) == [
            file.name for file in archives(mirrors / name)
        ]
