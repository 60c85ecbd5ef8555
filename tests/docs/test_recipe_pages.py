"""The commands of a recipe's page, run in one shell with PRINT=1, do what the page says."""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.docs.commands import ROOT, parse
from tests.running import programs_in

# The sizes of the baseline and of the preset, and the updates.
RECIPES = {
    "wmt14_en_de": ("wmt_en_de", "wmt_en_de", "100000"),
    "wmt17_zh_en": ("wmt_en_de", "wmt_zh_en", "100000"),
    "iwslt14_de_en": ("iwslt_de_en", "iwslt_de_en", "50000"),
}


def blocks(page: Path) -> str:
    """The bash blocks of a page that run its scripts."""
    found = re.findall(r"^```bash\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    return "\n".join(block for block in found if "bash examples/" in block)


def dry_run(script: str, folder: Path, **variables: str) -> list[list[str]]:
    """Run a script in one shell with PRINT=1; return the words of each printed command."""
    path = os.pathsep.join([str(programs_in(folder / "programs")), "/usr/bin", "/bin"])
    environment = {"PATH": path, "HOME": str(folder), "PYTHONPATH": str(ROOT), "PRINT": "1",
                   "GPUS": "1", "OMP_NUM_THREADS": "1", **variables}  # fmt: skip
    done = subprocess.run(["bash", "-euo", "pipefail"], input=script, env=environment, cwd=ROOT,
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [
        shlex.split(line)
        for line in done.stdout.splitlines()
        if re.search("fairseq_recur train|recipes", line)
    ]


def after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def told(commands: list[list[str]]) -> list[tuple[str, ...]]:
    """What each training starts from, and what each comparison compares."""
    found: list[tuple[str, ...]] = []
    for words in commands:
        if "train" in words:
            start = words[words.index("--finetune-from-model") + 1].split("/")[-3] \
                if "--finetune-from-model" in words else ""  # fmt: skip
            folder = Path(after(words, "--save-dir"))
            found.append(("train", after(words, "--arch"), folder.parts[-2], start))
        elif "evaluate" in words:
            name = Path(after(words, "evaluate")).parts[-2]
            found.append(("score", name))
            if "--baseline" in words:
                found.append(("compare", Path(after(words, "--baseline")).parts[-2], name))
    return found


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_translation_recipe(recipe: str, tmp_path: Path) -> None:
    """The control has as many updates as the preset, and comes before it."""
    script = blocks(ROOT / "examples" / recipe / "README.md")
    size, preset, updates = RECIPES[recipe]
    base, biarn = f"transformer_{size}", f"transformer_biarn_{preset}"
    control = f"{base}-control"
    assert "export" not in script
    work = tmp_path / "work"
    commands = dry_run(script, tmp_path, WORK=str(work))
    assert told(commands) == [
        ("train", base, base, ""), ("score", base),
        ("train", base, control, base), ("score", control),
        ("train", biarn, biarn, base), ("score", biarn), ("compare", control, biarn),
    ]  # fmt: skip
    assert not work.exists()
    (first, *_) = [words for words in commands if "train" in words]
    parse(["fairseq-recur", *first[first.index("train") :]])
    for words in commands:
        if "train" in words:
            assert "--bf16" in words and after(words, "--max-update") == updates


@pytest.mark.parametrize("settings, reason", [
    ("ARCH=transformer_biarn_wmt_en_de RUN=transformer_wmt_en_de-control", "does not begin with"),
    ("ARCH=rsa_transformer_wmt_en_de RUN=mine", "expected RUN=rsa_transformer_wmt_en_de-NAME"),
    ("RUN=transformer_wmt_en_de-lr=0.001", "RUN=transformer_wmt_en_de-lr=0.001 has '='"),
    ("RUN=transformer_wmt_en_de-a:b", "expected a name without them"),
    ("START_FROM=transformer_wmt_en_de", "resumes without START_FROM"),
    ("ARCH=rsa_transformer_wmt_en_de START_FROM=transformer_biarn_wmt_en_de", "other parts"),
    ("ARCH=srformer_wmt_en_de_big START_FROM=transformer_wmt_en_de", "another size"),
])  # fmt: skip
def test_settings_that_contradict_each_other(settings: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=reason):
        dry_run(f"{settings} bash examples/wmt14_en_de/train.sh", tmp_path)


@pytest.mark.parametrize("flag, variable", [
    ("--arch=rsa_transformer_wmt_en_de", "ARCH"), ("--save-dir there", "RUN"), ("--seed 2", "SEED"),
    ("--finetune-from-model a.pt", "START"),
])  # fmt: skip
@pytest.mark.parametrize("recipe", ["wmt14_en_de", "summarization/cnn_dm"])
def test_flags_that_contradict_the_name(
    recipe: str, flag: str, variable: str, tmp_path: Path
) -> None:
    """Such a run would have the name, or the folder, of another one."""
    with pytest.raises(AssertionError, match=f"{flag.split('=')[0].split()[0]}: set {variable}"):
        dry_run(f"bash examples/{recipe}/train.sh {flag}", tmp_path)


@pytest.mark.slow
def test_summarization_is_printed_before_it_is_prepared(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (words,) = dry_run(
        "SETTINGS=paper bash examples/summarization/cnn_dm/train.sh", tmp_path, WORK=str(work)
    )
    assert after(words, "--max-update") == "897600"  # 25 epochs of 287,227 documents, 8 each
    assert after(words, "--source-prefix") == "summarize: "
    assert not work.exists()


SUMMARIZATION = {
    "cnn_dm": [
        ("train", "srformer_bart_base", "srformer_bart_base-fairseq-seed1"),
        ("train", "bart_base", "bart_base-paper-seed1"),
        ("train", "srformer_bart_base", "srformer_bart_base-paper-seed1"),
    ],
    **dict.fromkeys(
        ("xsum", "arxiv", "mediasum", "samsum"),
        [("train", "srformer_bart_base", "srformer_bart_base-fairseq-seed1")],
    ),
    **dict.fromkeys(
        ("ectsum", "qmsum"),
        [
            ("train", "srformer_bart_base", "srformer_bart_base-fairseq-seed1"),
            ("train", "srformer_t5_small", "srformer_t5_small-paper-seed1"),
        ],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", SUMMARIZATION)
def test_a_summarization_recipe(recipe: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    for name in (
        "gpt2-1024-128/data-bin/.key", "t5-6144-128/data-bin/.key", "t5-16384-128/data-bin/.key",
        "bart.base/model.pt", "t5-small/model.pt", "text/counts.json",
    ):  # fmt: skip
        (work / name).parent.mkdir(parents=True)
        (work / name).write_text(json.dumps({"train": {"lines": 287113}}))
    before = sorted(work.rglob("*"))
    page = ROOT / "examples" / "summarization" / recipe / "README.md"
    commands = dry_run(blocks(page), tmp_path, WORK=str(work), PREFIX="")
    trained = [words for words in commands if "train" in words]
    found = [(after(w, "--arch"), Path(after(w, "--save-dir")).name) for w in trained]
    assert [("train", *pair) for pair in found] == SUMMARIZATION[recipe]
    for words in trained:
        start = "t5-small" if "t5" in after(words, "--arch") else "bart.base"
        assert after(words, "--finetune-from-model") == str(work / start / "model.pt")
        parse(["fairseq-recur", *words[words.index("train") :]])
    assert sum("evaluate" in words for words in commands) == len(found)
    assert sorted(work.rglob("*")) == before
