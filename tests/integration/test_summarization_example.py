"""The summarization example: its scripts on a small sample of the data, and the data."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.docs.commands import parse

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "summarization"
DATA = EXAMPLE / "data"
LINES = {"train": 60, "valid": 6, "test": 6}
ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")

# Appended to the settings of the copy: a model of width 16 and a small number of pieces.
TINY = """
BPE_SIZE=300
TRAINING+=(
    --encoder-embed-dim 16 --encoder-ffn-embed-dim 16 --encoder-layers 1
    --decoder-layers 1 --encoder-attention-heads 2 --decoder-attention-heads 2
    --eval-rouge-args '{"beam": 1, "max_len_b": 4}'
)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Copy the examples, with a sample of the data and the Python of this process."""
    root = tmp_path / "project"
    ignored = shutil.ignore_patterns("work", "results")
    shutil.copytree(ROOT / "examples", root / "examples", ignore=ignored)
    folder = root / "examples" / "summarization"
    for name, count in LINES.items():
        for side in ("source", "target"):
            file = folder / "data" / f"{name}.{side}"
            lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
            file.write_text("".join(lines[:count]), encoding="utf-8")
    with open(folder / "settings.sh", "a") as settings:
        settings.write(TINY)
    (root / "scripts").mkdir()
    (root / "scripts" / "setup.sh").write_text("exit 0\n")
    write_program(root, "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    write_program(
        root, "fairseq-recur", f'#!/bin/sh\nexec {sys.executable} -m fairseq_recur "$@"\n'
    )
    return root


def write_program(root: Path, name: str, text: str) -> None:
    """Install a program in the environment of the project."""
    file = root / ".venv" / "bin" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)


def run(root: Path, script: str, *words: str, **variables: str) -> subprocess.CompletedProcess:
    """Run a script of the example."""
    ours = ("SYSTEMS", "SEEDS", "EPOCHS", "REPEATS", "WORK", "NAME", "SIZES")
    clean = {name: value for name, value in os.environ.items() if name not in ours}
    environment = {**clean, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(
        ["bash", root / "examples" / "summarization" / script, *words], cwd=root,
        env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip


def check_scores(cells: dict[str, str], row: dict[str, Any]) -> None:
    """Assert that the table contains the scores."""
    assert [float(cells[name]) for name in ("R-1", "R-2", "R-L", "R-Lsum")] == [
        pytest.approx(row[metric][0], abs=0.006) for metric in ROUGE
    ]


def check_measured(cells: dict[str, str], row: dict[str, Any]) -> None:
    """Assert that the table contains the measurements."""
    for column, key in (("step (ms)", "step_ms"), ("texts/s", "texts_per_second")):
        (value,) = row[key]
        assert cells[column] == f"{value:.1f} ({value:.1f}–{value:.1f})"
    assert row["peak_mb"] > row["before_mb"] > 50
    assert cells["memory (MB)"] == f"{row['peak_mb']:.0f}"
    assert cells["parameters"] == f"{row['parameters']:,}"


@pytest.mark.slow
def test_the_example_fills_its_table_and_repeats_nothing(project: Path) -> None:
    settings = {"SYSTEMS": "srformer_8", "EPOCHS": "1", "REPEATS": "1"}
    done = run(project, "run.sh", **settings)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    work = project / "examples" / "summarization" / "work"
    report = json.loads((work / "results.json").read_text())
    assert list(report["systems"]) == ["first 7 words", "srformer_8"]
    assert report["texts"] == LINES["test"] and report["settings"]["EPOCHS"] == "1"
    page = (work / "results.md").read_text()
    rows = [[cell.strip() for cell in x.strip("|").split("|")] for x in page.splitlines()]
    header, _, first, last = rows
    lead, system = (dict(zip(header, row, strict=True)) for row in (first, last))
    check_scores(lead, report["systems"]["first 7 words"])
    check_scores(system, report["systems"]["srformer_8"])
    check_measured(system, report["systems"]["srformer_8"])
    assert (system["system"], system["segment size"]) == ("srformer", "8")
    assert lead["system"] == "first 7 words" and first[6:] == [""] * 4
    # The scores of a barely trained model may all be 0; those of the first words are not.
    assert float(lead["R-1"]) > float(lead["R-2"]) > 0

    again = run(project, "run.sh", **settings)
    assert again.returncode == 0, (again.stdout + again.stderr)[-4000:]
    for words in ("already prepared", "already trained", "already measured", page):
        assert words in again.stdout
    assert "summaries of" in done.stdout and "summaries of" not in again.stdout


def test_an_unknown_system_is_refused_at_once(project: Path) -> None:
    for name in ("srformer", "segmented_0", "dot", "segmented_8_1"):
        for script in ("run.sh", "train.sh"):
            work = project / "refused"
            refused = run(project, script, name, SYSTEMS=f"full {name}", WORK=str(work))
            assert refused.returncode == 2 and not work.exists()
            expected = "expected full, segmented_SIZE, srformer_SIZE or srformer_SIZE_THRESHOLD"
            assert f"system {name}: {expected}" in refused.stderr


def test_systems_differ_only_in_the_cross_attention(project: Path) -> None:
    """And fairseq accepts every command line of the sweep."""
    log = project / "calls"
    write_program(project, "python", "#!/bin/sh\n")
    write_program(
        project, "fairseq-recur",
        f"#!{sys.executable}\nimport json, sys\n"
        f"open({str(log)!r}, 'a').write(json.dumps(sys.argv[1:]) + chr(10))\n",
    )  # fmt: skip
    done = run(project, "segments.sh", SIZES="8")
    assert done.returncode == 0, done.stderr
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    assert Counter(call[0] for call in calls) == {
        "preprocess": 1, "train": 3, "generate": 3, "score": 1,
    }  # fmt: skip
    parts, others = set(), set()
    for call in calls:
        parse(["fairseq-recur", *call])
        if call[0] == "train":
            words = " ".join(call)
            part = re.search(r" --cross-attention (.*?) --task ", words)[1]
            others.add(re.sub(r"/\S+/seed\S+", "", words.replace(part, "")))
            parts.add(part)
    size = "--segment-size 8 --target-length 16"
    srformer = f"srformer {size} --srformer-threshold-init 10"
    assert parts == {"dot", f"segmented {size}", srformer} and len(others) == 1


def test_the_figure_has_one_point_per_size() -> None:
    figure = runpy.run_path(str(EXAMPLE / "figure.py"))
    systems = {
        "full": {"rougeL": [20.0, 22.0]},
        "srformer_16": {"rougeL": [18.0, 19.0]},
        "segmented_8": {"rougeL": [15.0, 14.0]},
        "srformer_8": {"rougeL": [17.0, 17.5]},
        "first 7 words": {"rougeL": [30.0, 30.0]},
    }
    assert figure["curves"](systems, "rougeL") == {
        "srformer": {8: [17.0, 17.5], 16: [18.0, 19.0]},
        "segmented": {8: [15.0, 14.0]},
    }


@pytest.mark.parametrize("name", LINES)
def test_the_sample_follows_its_rules(name: str) -> None:
    rules = runpy.run_path(str(DATA / "build_corpus.py"))
    columns = [(DATA / f"{name}.{e}").read_text("utf-8").splitlines() for e in rules["ENDINGS"]]
    rows = list(zip(*columns, strict=True))
    assert len(rows) > 100
    assert [row for row in rows if not rules["wanted"](*row)] == []
    # Independent of the pattern in the rules.
    address = re.compile(r"@|://|\bwww\b|\b\w+\.(com|org|net|io|de|edu|gov|info)\b", re.IGNORECASE)
    assert [row for row in rows if address.search(" ".join(row[1:]))] == []


def test_the_sets_share_no_source_package() -> None:
    packages = [
        {line.split("\t")[1] for line in (DATA / f"{name}.origin.tsv").read_text().splitlines()}
        for name in LINES
    ]
    assert len(set.union(*packages)) == sum(map(len, packages))
