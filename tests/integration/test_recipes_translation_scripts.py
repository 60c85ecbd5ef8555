"""train.sh and evaluate.sh of the translation recipes, and everything from archives to scores."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from recipes.translation_options import Options

from tests.docs.commands import parse
from tests.running import programs_in
from tests.translation_archives import ROOT
from tests.translation_preparing import (  # noqa: F401  (fixtures)
    OURS,
    RECIPES,
    SEPARATE,
    SMALL,
    lines,
    mirrors,
    prepared,
)  # fmt: skip

TINY = (
    "--encoder-embed-dim 16 --encoder-ffn-embed-dim 24 --encoder-layers 1 --decoder-layers 1 "
    "--encoder-attention-heads 2 --decoder-attention-heads 2 --num-workers 0 --log-interval 2"
).split()


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """The programs of a project with the recipes' scripts: this process's Python."""
    project = tmp_path / "project"
    for name in ("scripts", *(f"examples/{recipe}" for recipe in RECIPES)):
        ignored = shutil.ignore_patterns("work", "__pycache__")
        shutil.copytree(ROOT / name, project / name, ignore=ignored)
    return programs_in(project / ".venv" / "bin")


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
"""


def test_calls_of_training_parse(prepared: Callable[..., Path], programs: Path) -> None:
    work, log = prepared("wmt14_en_de", **SMALL), programs / "calls"
    (programs / "fairseq-recur").write_text(STUB.format(python=sys.executable, log=str(log)))
    given = {"WORK": str(work), "LAUNCHER": "fairseq-recur train --optimizer adam"}
    big = {**given, "ARCH": "srformer_wmt_en_de_big"}
    done = run(programs, "wmt14_en_de", "train", "--weight-decay", "0.1", **big)
    assert done.returncode == 0, done.stderr
    done = run(programs, "wmt14_en_de", "train", **given, START_FROM="srformer_wmt_en_de_big")
    assert done.returncode == 2 and "cannot start from srformer_wmt_en_de_big" in done.stderr
    best = work / "runs/en-de/srformer_wmt_en_de_big/seed1/checkpoint_best.pt"
    best.touch()
    done = run(programs, "wmt14_en_de", "train", **given, START_FROM=str(best))
    assert done.returncode == 0, done.stderr
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    assert [call[0] for call in calls] == ["train", "train"]
    for call in calls:
        parse(["fairseq-recur", *call])
    settings = [dict(zip(call, call[1:])) for call in calls]
    assert [s.get("--lr") for s in settings[:2]] == ["0.0005", "0.0007"]
    assert [s.get("--dropout") for s in settings[:2]] == ["0.3", "0.1"]
    assert settings[0]["--weight-decay"] == "0.1" and "--finetune-from-model" not in calls[0]
    assert settings[1]["--finetune-from-model"] == str(best)


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


@pytest.mark.slow
def test_the_hours_are_reported_before_a_training_starts(
    prepared: Callable[..., Path], programs: Path
) -> None:
    """For the GPUs of the training, if it knows what nvidia-smi calls them."""
    given = {"WORK": str(prepared("wmt14_en_de", **SMALL)), "LAUNCHER": "echo started"}
    given["MAX_UPDATES"] = "1000"
    sizes = [
        sum(1 for _ in (Path(given["WORK"]) / f"data-bin.en-de/dict.{side}.txt").open("rb")) + 4
        for side in ("en", "de")
    ]
    own = programs / "fairseq-recur"
    calls = programs / "calls"
    kept = own.rename(programs / "kept")
    own.write_text(f'#!/bin/sh\necho "$*" >> {calls}\nexec {kept} "$@"\n')
    own.chmod(0o755)
    smi = programs / "nvidia-smi"
    hours = ".*, bf16\n1,000 updates +[0-9.]+ hours\n"
    for name, visible, told in (
        ("NVIDIA A100-SXM4-80GB", {}, f"device +2 x A100 {hours}"),
        ("NVIDIA A100-SXM4-80GB", {"CUDA_VISIBLE_DEVICES": "1"}, f"device +1 x A100 {hours}"),
        ("NVIDIA Nonsense", {}, "The hours were not predicted; see fairseq-recur plan --help\n"),
    ):
        smi.write_text(
            '#!/bin/sh\ncase "$*" in --list-gpus) echo GPU 0: A; echo GPU 1: B ;;\n'
            f"*'-i 1') echo '{name}' ;; *' -i '*) exit 6 ;;\n"
            f"*) echo '{name if not visible else 'another card'}'; echo '{name}' ;; esac\n"
        )
        smi.chmod(0o755)
        done = run(programs, "wmt14_en_de", "train", **given, **visible)
        assert done.returncode == 0, done.stderr
        assert re.search(f"{told}started ", done.stdout), done.stdout
        assert f"--vocabulary {sizes[0]} {sizes[1]} " in calls.read_text(), "the prepared ones"


def test_print_shows_the_variables(programs: Path, tmp_path: Path) -> None:
    """What is printed does the same: the variables are in front of it."""
    given = {"WORK": str(tmp_path / "none"), "PRINT": "1"}
    done = run(programs, "wmt14_en_de", "prepare", **given, MAX_LENGTH="80", CORPORA="a b")
    words = shlex.split(done.stdout)
    assert {"MAX_LENGTH=80", "CORPORA=a b", f"WORK={tmp_path / 'none'}"} < set(words)
    launched = {**given, "LAUNCHER": "sbatch some.sbatch"}
    words = shlex.split(run(programs, "wmt14_en_de", "train", **launched).stdout.splitlines()[-1])
    assert words[:4] == ["env", "BATCH_TOKENS=25000", "MAX_TOKENS=3125", "sbatch"]
    done = run(programs, "wmt14_en_de", "evaluate", **given)
    assert done.returncode == 0 and "run prepare.sh first, which chooses the flags" in done.stderr


def test_prepare_passes_on_every_variable() -> None:
    text = (ROOT / "scripts/recipes/translation.sh").read_text()
    (names,) = re.findall(r"^OPTIONS=\(([^)]*)\)", text, re.M)
    assert {*names.split(), "WORK"} == {field.name.upper() for field in fields(Options)}


def test_the_baseline_of_iwslt_shares_its_output_matrix(programs: Path, tmp_path: Path) -> None:
    """As in fairseq's README; a joint dictionary has one matrix for all embeddings."""
    name = "examples/iwslt14_de_en"
    shutil.copytree(ROOT / name, programs.parents[1] / name, ignore=shutil.ignore_patterns("work"))
    given = {"WORK": str(tmp_path / "none"), "PRINT": "1"}
    for gpus, most in (("1", "4096"), ("4", "1024")):
        done = run(programs, "iwslt14_de_en", "train", **given, GPUS=gpus)
        words = shlex.split(done.stdout.splitlines()[-1])
        assert "--share-decoder-input-output-embed" in words and "--share-all" not in done.stdout
        assert words[words.index("--max-tokens") + 1] == most


def test_scripts_say_what_is_missing(
    prepared: Callable[..., Path], programs: Path, tmp_path: Path
) -> None:
    nothing = {"WORK": str(tmp_path / "nothing")}
    done = run(programs, "wmt17_zh_en", "train", **nothing)
    assert done.returncode == 2 and "zh-en is not prepared" in done.stderr
    done = run(programs, "wmt17_zh_en", "prepare", "--workers", "2", **nothing)
    assert done.returncode == 2 and "takes variables, not arguments" in done.stderr
    (programs / "fairseq-recur").rename(programs / "elsewhere")
    done = run(programs, "wmt17_zh_en", "prepare", **nothing, PATH="/usr/bin:/bin")
    assert done.returncode == 2 and "pip install '.[recipes]'" in done.stderr
    (programs / "elsewhere").rename(programs / "fairseq-recur")
    work = prepared("wmt14_en_de", **SMALL)
    name = "transformer_wmt_en_de-none"
    done = run(programs, "wmt14_en_de", "evaluate", WORK=str(work), RUN=name)
    assert done.returncode == 2 and "seed1 does not exist: the model is not trained" in done.stderr
    done = run(programs, "wmt14_en_de", "train", WORK=str(work), MAX_UPDATES="many")
    assert done.returncode == 2 and "MAX_UPDATES=many" in done.stderr
    other = tmp_path / "other"
    shutil.copytree(work, other)
    (other / "pieces/model/.key").write_text("another")
    done = run(programs, "wmt14_en_de", "train", WORK=str(other))
    assert done.returncode == 2 and "prepared with options that differ" in done.stderr
    folder = work / "runs/en-de/transformer_wmt_en_de-mine/seed1"
    folder.mkdir(parents=True)
    (folder / "checkpoint_last.pt").touch()
    (folder / "settings").write_text("others")
    done = run(programs, "wmt14_en_de", "train", WORK=str(work), RUN="transformer_wmt_en_de-mine")
    assert done.returncode == 2 and "RUN=NAME" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("recipe, direction, preparation", [
    ("wmt14_en_de", "en-de", SMALL),
    ("wmt14_en_de", "de-en", {"BPE_SIZE": "200", "BPE_THRESHOLD": "0", "TOKENIZER": "sentencepiece",
                              "DICTIONARY": "joined"}),
    ("wmt17_zh_en", "zh-en", SEPARATE),
    ("wmt17_zh_en", "en-zh", {**SEPARATE, "SEGMENTATION": "characters"}),
])  # fmt: skip
def test_from_archives_to_scores(
    recipe: str, direction: str, preparation: dict[str, str], mirrors: Path, programs: Path,
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
    assert (folder / "compared.json").is_file()
    assert "p (bootstrap)" in done.stdout
