"""The examples' scripts that take files: wrong calls are one message, not a traceback."""

import fcntl
import importlib
import itertools
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from fairseq_recur.experiments.reading import read_experiment
from fairseq_recur.files import write_json

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DATA = EXAMPLES / "quickstart" / "data"
SUMMARIES = EXAMPLES / "summarization" / "data"
FIGURES = {"modeling_recurrence": "figure5_cpu", "linear_and_nonlinear_rnn": "results"}
"""With a record that the script can draw."""

WRONG = [
    ("summarization/figure.py", [], "required: RESULTS.json, FIGURE.png"),
    ("summarization/figure.py", ["gone", "a.png"], "No such file or directory: 'gone'"),
    ("summarization/figure.py", ["text", "a.png"], "text: expected the results.json of an exp"),
    ("summarization/lead.py", ["gone"], "required: MODEL, PIECES, OUTPUT"),
    ("summarization/lead.py", ["gone", "m", "p", "o"], "cannot read gone/train.source: there is"),
    ("summarization/lead.py", [str(SUMMARIES), "m", "p", "o"], "No such file or directory: 'm'"),
    ("summarization/lead.py", [str(SUMMARIES), "text", "p", "o"], "text is not a SentencePiece"),
    ("linear_and_nonlinear_rnn/figure.py", ["list", "a.png"], "list: expected the results.json"),
    ("modeling_recurrence/figure.py", [], "required: RESULTS.json, FIGURE.png"),
    ("modeling_recurrence/figure.py", ["empty", "a.png"], "experiment with finished runs"),
    ("modeling_recurrence/figure.py", ["gone", "a.png", "b"], "unrecognized arguments: b"),
    ("modeling_recurrence/steps.py", ["bin"], "required: SENTENCES, NAME=CHECKPOINT"),
    ("modeling_recurrence/steps.py", ["bin", "gone", "a=b"], "cannot read gone: there is no such"),
    ("modeling_recurrence/steps.py", ["bin", "text", "a.pt"], "a.pt: expected NAME=CHECKPOINT"),
    ("modeling_recurrence/steps.py", ["bin", "text", "a=gone.pt"], "gone.pt"),
    ("quickstart/show.py", [], "required: TEST, NAME=OUTPUT"),
    ("quickstart/show.py", ["gone", "a=b"], "cannot read gone.en: there is no such file"),
    ("quickstart/show.py", [str(DATA / "test"), "out"], "out: expected NAME=OUTPUT"),
    ("quickstart/show.py", [str(DATA / "test"), "a=text"], "text has 1 lines, expected"),
]


def status(script: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The exit status of a script that is run as a program."""
    monkeypatch.setattr(sys, "argv", [script, *words])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    return left.value.code


@pytest.mark.parametrize("script, words, message", WRONG)
def test_wrong_calls_are_one_message(
    script: str, words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for name, content in {"text": "a", "list": "[1]", "empty": '{"runs": []}'}.items():
        Path(name).write_text(content + "\n")
    assert status(script, words, monkeypatch) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and message in printed.err
    assert printed.err.count("error: ") == 1 and "Traceback" not in printed.err


@pytest.mark.parametrize("example", FIGURES)
def test_a_record_is_drawn(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    record = EXAMPLES / example / "results" / f"{FIGURES[example]}.json"
    script, drawn = f"{example}/figure.py", tmp_path / "a.png"
    assert status(script, [str(record), str(drawn)], monkeypatch) == 0
    assert drawn.stat().st_size > 1000
    assert status(script, [str(record), "a.text"], monkeypatch) == 2
    assert "Format 'text' is not supported" in capsys.readouterr().err


def test_ten_sentences_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(DATA / "test"), f"copy={DATA / 'test.en'}"]
    assert status("quickstart/show.py", words, monkeypatch) == 0
    assert capsys.readouterr().out.count("\n  copy ") == 10


GRIDS = ("copy_task", "language_models", "regular_languages", "time_series")
"""Whose trainings a program makes."""


@pytest.mark.parametrize("example", GRIDS)
def test_each_training_of_a_grid_has_one_gpu(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with two; none on the CPU."""
    modules = [file.stem for file in (EXAMPLES / example).glob("*.py")]
    for name in modules:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(EXAMPLES / example))
    run, words, devices = importlib.import_module("run"), ["table"], []
    if example == "language_models":
        words = [str(tmp_path), "table"]
        for part in ("train", "valid", "test"):
            (tmp_path / f"{part}.txt").write_text("a b c\n" * 40)
    (tmp_path / "ETTh1.csv").touch()
    variables = {"DATA": tmp_path, "CELLS": "ETTh1/24", "SHARES": 100, "BATCH": 2, "TOKENS": 4}
    for name, value in {**variables, "WORK": tmp_path / "work"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(run, "run_and_report", lambda *given: devices.append(given[5]) or 0)
    for device in ("cuda", "cpu"):
        monkeypatch.setenv("DEVICE", device)
        assert run.main(words) == 0
    for name in modules:
        sys.modules.pop(name, None)
    assert devices == [["0", "1"], []]


# The shell scripts, with programs that only write down how they were called ---------------------

SHELLS = ("quickstart", "summarization", "defect_detection", "modeling_recurrence")
ODD = "it's #1: {a}, b"
"""The name of a folder which YAML would read as something else."""

Script = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The scripts in a project whose programs do nothing."""
    root = tmp_path / "project"
    for name in SHELLS:
        shutil.copytree(
            EXAMPLES / name, root / "examples" / name,
            ignore=lambda folder, names: [n for n in names if Path(folder, n).is_dir()],
        )  # fmt: skip
    for name in ("quickstart", "summarization"):
        folder = root / "examples" / name / "data"
        folder.mkdir()
        for part in ("train", "valid", "test"):
            for side in ("en", "de", "source", "target"):
                (folder / f"{part}.{side}").write_text("a b c\n")
    for name in ("help.sh", "lock.sh", "own.sh", "recipes/shared.sh", "launch/gpus.sh"):
        (root / "scripts" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(EXAMPLES.parent / "scripts" / name, root / "scripts" / name)
    (root / "scripts" / "setup.sh").write_text("exit 0\n")
    programs = root / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "fairseq-recur"):
        program = programs / name
        program.write_text(
            f"#!{sys.executable} -S\nimport json, sys\n"
            f"call = json.dumps([{name!r}, *sys.argv[1:]])\n"
            f"open({str(root / 'calls')!r}, 'a').write(call + chr(10))\n"
            "import os\n"
            "if '--destdir' in sys.argv:  # what scripts read of binary data\n"
            "    folder = sys.argv[sys.argv.index('--destdir') + 1]\n"
            "    os.makedirs(folder, exist_ok=True)\n"
            "    open(folder + '/dict.source.txt', 'w').close()\n"
            "sys.exit(2 * ('unknown' in sys.argv))\n"
        )
        program.chmod(0o755)
    return root


@pytest.fixture
def script(project: Path) -> Script:
    """Run a script of the project."""

    def call(name: str, *words: object, **variables: object) -> "subprocess.CompletedProcess[str]":
        environment = {"PATH": f"{project / '.venv/bin'}:/usr/bin:/bin", "HOME": str(project)}
        environment |= {name: str(value) for name, value in variables.items()}
        return subprocess.run(
            ["bash", str(project / "examples" / name), *map(str, words)], cwd=project,
            env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    return call


def calls(project: Path) -> list[list[str]]:
    """The words of all calls."""
    file = project / "calls"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def all_changes(project: Path) -> list[dict[str, Any]]:
    """The values of --set in each call of an experiment, as it reads them."""
    found = []
    for words in (call for call in calls(project) if call[1] == "experiment"):
        given = [after for word, after in zip(words, words[1:]) if word == "--set"]
        pairs = (word.partition("=") for word in given)
        found.append({key: yaml.safe_load(value) for key, _, value in pairs})
    return found


def changes(project: Path) -> dict[str, Any]:
    """The values of --set in the only call of an experiment."""
    (found,) = all_changes(project)
    return found


def test_paths_of_the_quick_start_are_taken_as_they_are(project: Path, script: Script) -> None:
    """Also in the commands that it prints."""
    work = project / ODD
    done = script("quickstart/run.sh", WORK=work, SEEDS="3 4")
    assert done.returncode == 0, done.stderr
    found = changes(project)
    assert found["data"] == f"{work}/data-bin"
    assert found["generate.sentencepiece-model"] == f"{work}/bpe.model"
    printed = [line.strip() for line in done.stdout.splitlines() if "translate.sh" in line]
    expected = [f"WORK={ODD}", "SEED=3", "bash", "examples/quickstart/translate.sh", "birnn"]
    assert shlex.split(printed[0]) == expected
    again = next(line for line in done.stdout.splitlines() if "EPOCHS=8" in line)
    assert shlex.split(again)[:4] == [f"WORK={ODD}", "SEEDS=3 4", "EPOCHS=8", "bash"]


def test_usual_paths_are_printed_as_they_are(project: Path, script: Script) -> None:
    done = script("quickstart/run.sh", WORK=project / "my-work", SEEDS="1 2")
    assert "\n  WORK=my-work bash examples/quickstart/translate.sh birnn\n" in done.stdout
    again = '  WORK=my-work SEEDS="1 2" EPOCHS=8 bash examples/quickstart/run.sh '
    assert f"\n{again}" in done.stdout


def test_paths_of_the_summarization_examples_are_taken_as_they_are(
    project: Path, script: Script
) -> None:
    work = project / ODD
    work.mkdir()
    (work / "bpe.model").touch()
    done = script("summarization/run.sh", WORK=work)
    assert done.returncode == 0, done.stderr
    _, copying, continued = all_changes(project)
    words = f"{work}/lead/text/test.target"
    pieces = {"generate.sentencepiece-model": f"{work}/bpe.model"}
    assert copying == {"data": f"{work}/lead/data-bin", "score.reference": words, **pieces}
    assert continued.items() >= pieces.items()
    assert continued["data"] == f"{work}/data-bin"
    assert continued["score.outputs"] == {"first words": words}
    assert continued["start"] == f"{work}/copying/copying/seed1/checkpoint_best.pt"
    (project / "calls").unlink()
    (work / "extracts").mkdir()
    (work / "extracts" / "lead: 3.txt").touch()
    start = {"START": work / "model.pt", "PIECES_FROM": work / "other"}
    done = script("summarization/continued.sh", "texts", WORK=work, **start)
    assert done.returncode == 0, done.stderr
    found = changes(project)
    assert found["data"] == f"{work}/sentencepiece-8000-1024-128/data-bin"
    assert found["score.outputs"] == {"lead: 3": f"{work}/extracts/lead: 3.txt"}
    assert found["start"] == f"{work}/model.pt"
    model = f"{work}/sentencepiece-8000-1024-128/model/spiece.model"
    assert found["generate.sentencepiece-model"] == model
    assert found["train.eval-rouge-args"] == {"beam": 1, "max_len_b": 100}


@pytest.fixture
def summaries(project: Path) -> Path:
    """A folder with what the preparations of the summarization examples write."""
    work = project / "work"
    prepared = work / "sentencepiece-8000-1024-128"
    for folder in (work / "text", prepared / "model", prepared / "data-bin"):
        folder.mkdir(parents=True)
    for name in ("train.source", "valid.source", "test.source", "train.target"):
        (work / "text" / name).write_text("a\n")
    for file in (work / "bpe.model", prepared / "model/spiece.model"):
        file.touch()
    (prepared / "data-bin/dict.source.txt").touch()
    return work


SCRIPTS = {"run.sh": [], "continued.sh": ["texts", "--systems"]}


@pytest.mark.parametrize("name", SCRIPTS)
def test_options_are_checked_before_the_model_that_copies_is_trained(
    name: str, project: Path, script: Script, summaries: Path
) -> None:
    """All that the table needs but that model, so nothing that is found out later is wrong."""
    words = [f"summarization/{name}", *SCRIPTS[name]]
    done = script(*words, "unknown", WORK=summaries)
    assert done.returncode == 2, done.stderr
    (check,) = (call for call in calls(project) if call[1] == "experiment")
    assert "--dry-run" in check and "unknown" in check
    (project / "calls").unlink()
    done = script(*words, "full_continued", WORK=summaries)
    assert done.returncode == 0, done.stderr
    runs = [call for call in calls(project) if call[1] == "experiment"]
    assert ["--dry-run" in call for call in runs] == [True, False, False]
    checked, copying, table = all_changes(project)
    assert copying["data"] != table["data"]
    model = f"{summaries}/copying/copying/seed1/checkpoint_best.pt"
    assert table == {**checked, "start": model} and "start" not in checked
    # A training that has begun from the model would refuse to go on without it.
    Path(model).parent.mkdir(parents=True)
    Path(model).touch()
    (project / "calls").unlink()
    assert script(*words, "full_continued", WORK=summaries).returncode == 0
    assert [change.get("start") for change in all_changes(project)] == [model, None, model]


def test_a_start_needs_its_pieces(project: Path, script: Script) -> None:
    """Rows of embeddings of other pieces would be taken without a word."""
    done = script("summarization/continued.sh", "texts", START="model.pt")
    assert done.returncode == 2 and calls(project) == []
    assert done.stderr.startswith("error: START=model.pt without PIECES_FROM: ")


@pytest.mark.parametrize("pieces, positions, tokens", [(128, 1024, 4096), (5000, 5000, 5000)])
def test_long_summaries_are_cut(
    pieces: int, positions: int, tokens: int, project: Path, script: Script, summaries: Path
) -> None:
    """Also those of the validation set, which a limit of the training set does not shorten."""
    start = {"START": "model.pt", "PIECES_FROM": "other", "MAX_TARGET": pieces}
    done = script("summarization/continued.sh", "texts", WORK=summaries, **start)
    assert done.returncode == 0, done.stderr
    found = changes(project)
    assert found["train.truncate-target"] is True
    assert (found["train.max-target-positions"], found["train.max-tokens"]) == (positions, tokens)


@pytest.mark.parametrize("metric", ["chrF2", "rouge1"])
def test_summaries_that_rouge_cannot_read_need_no_rouge(
    metric: str, project: Path, script: Script, summaries: Path
) -> None:
    """Neither in the table nor in the validation; the preparation has found them."""
    (summaries / "extracts").mkdir()
    (summaries / "extracts" / "scores.json").write_text(
        json.dumps({"lead-2": [{"metric": metric}]})
    )
    start = {"START": "model.pt", "PIECES_FROM": "other", "SEGMENT": 8}
    done = script("summarization/continued.sh", "texts", WORK=summaries, **start)
    assert done.returncode == 0, done.stderr
    found = changes(project)
    if metric == "chrF2":
        assert found["score.metrics"] == ["chrf"] and found["train.eval-rouge"] is False
        assert found["train.best-checkpoint-metric"] == "loss"
    else:
        assert "score.metrics" not in found and "train.eval-rouge" not in found
    (segments,) = (call for call in calls(project) if "recipes.summary_segments" in call)
    assert segments[-3:] == [f"{summaries}/sentencepiece-8000-1024-128/pieces", "8", "24"]


@pytest.mark.parametrize("step, data", [("copying", "lead"), ("runs", "sentencepiece")])
def test_a_folder_has_the_pieces_of_its_trainings(
    step: str, data: str, project: Path, script: Script, summaries: Path
) -> None:
    """Before anything is prepared; without a training, other pieces may be chosen."""
    assert (summaries / "sentencepiece-8000-1024-128/data-bin").is_dir()
    call = partial(script, "summarization/continued.sh", "texts", WORK=summaries)
    other = {"PIECES": 4000, "MAX_TARGET": 64}
    start = {"START": "model.pt", "PIECES_FROM": "other"}
    assert call(**other, **start).returncode == 0
    (project / "calls").unlink()
    state = summaries / step / "full/seed1/state.json"
    state.parent.mkdir(parents=True)
    words = ["train", f"{summaries}/{data}-8000-1024-128/data-bin", "--arch", "srformer"]
    write_json(state, {"train": {"key": words}})
    done = call(**other)
    assert done.returncode == 2 and calls(project) == []
    assert done.stderr == (
        f"error: {summaries} has trainings with PIECES=8000, MAX_SOURCE=1024 and MAX_TARGET=128; "
        "set WORK to another folder for PIECES=4000, MAX_SOURCE=1024 and MAX_TARGET=64\n"
    )
    assert call().returncode == 0, "the same pieces"


def test_paths_of_defect_detection_are_taken_as_they_are(project: Path, script: Script) -> None:
    work = project / ODD
    (work / "text").mkdir(parents=True)
    (work / "text/train.target").write_text("a\n" * 40)
    done = script("defect_detection/run.sh", "data", "model", WORK=work, EPOCHS="3")
    assert done.returncode == 0, done.stderr
    found = changes(project)
    assert found["start"] == f"{work}/model/model.pt" and found["train.total-num-update"] == 6
    assert found["score.reference"] == f"{work}/text/test.target"


@pytest.mark.parametrize(
    "lines, variables, batch, warmup, updates",
    [
        (21854, {}, 32, 1000, 13660),  # of the paper
        (500, {}, 32, 32, 320),
        (500, {"BATCH": 8, "EPOCHS": 4}, 8, 25, 252),
    ],
)
def test_the_schedule_of_defect_detection_ends_with_the_training(
    lines: int, variables: dict[str, int], batch: int, warmup: int, updates: int, project: Path,
    script: Script,
) -> None:  # fmt: skip
    (project / "work/text").mkdir(parents=True)
    (project / "work/text/train.target").write_text("a\n" * lines)
    done = script("defect_detection/run.sh", "data", "model", WORK="work", **variables)
    assert done.returncode == 0, done.stderr
    found = changes(project)
    schedule = [found[f"train.{name}"] for name in ("warmup-updates", "total-num-update")]
    assert found["train.batch-size"] == batch and schedule == [warmup, updates]


@pytest.mark.parametrize("valid, shown", [(2732, True), (2731, False)])
def test_the_papers_accuracy_is_only_beside_its_data(
    valid: int, shown: bool, project: Path, script: Script
) -> None:
    text, example = project / "work/text", EXAMPLES / "defect_detection"
    text.mkdir(parents=True)
    for part, lines in (("train", 21854), ("valid", valid), ("test", 2732)):
        (text / f"{part}.target").write_text("true\n" * lines)
    done = script("defect_detection/run.sh", "data", "model", WORK="work")
    assert done.returncode == 0, done.stderr
    (call,) = (call for call in calls(project) if call[1] == "experiment")
    given = [after for word, after in zip(call, call[1:]) if word == "--set"]
    systems = read_experiment([example / "experiment.yaml"], given).systems.values()
    figures = [{"Accuracy": 64.60}, {"Accuracy": 65.96}] if shown else [{}, {}]
    assert [system.published for system in systems] == figures


@pytest.mark.parametrize(
    "words, variable",
    [
        (["--set", "train.batch-size=8"], "BATCH"),
        (["--seeds", "1", "--set=train.update-freq=4"], "BATCH"),
        (["--set", "train.max-epoch=3"], "EPOCHS"),
        (["--set", "train.max_sentences=8"], "BATCH"),
        (["--set", "systems.rsa.flags.max-tokens=99"], "BATCH"),
    ],
)
def test_options_that_would_change_the_schedule_are_refused(
    words: list[str], variable: str, project: Path, script: Script
) -> None:
    done = script("defect_detection/run.sh", "data", "model", *words)
    assert done.returncode == 2 and calls(project) == []
    setting = words[-1].removeprefix("--set=")
    assert done.stderr == f"error: {setting}: set {variable}=N in front of the command instead\n"


@pytest.mark.parametrize("setting", ["generate.max-tokens=999", "train.warmup-updates=5"])
def test_options_that_say_what_they_change_are_taken(
    setting: str, project: Path, script: Script
) -> None:
    text = project / "work/text"
    text.mkdir(parents=True)
    (text / "train.target").write_text("true\n" * 50)
    done = script(
        "defect_detection/run.sh", "data", "model", "--set", setting, WORK=project / "work"
    )
    assert done.returncode == 0, done.stderr
    name, _, value = setting.partition("=")
    assert str(changes(project)[name]) == value


def copies_subwords(project: Path) -> None:
    """Replace subword-nmt by a program that leaves the text as it is."""
    program = project / ".venv/bin/subword-nmt"
    program.write_text("#!/bin/sh\nexec cat\n")
    program.chmod(0o755)


def preparation(example: str, data: Path, output: Path) -> list[Path | str | int]:
    """The arguments of an example's prepare.sh."""
    if example == "modeling_recurrence":
        return [data, "en", "de", output, 300]
    return [data, output, 300, "en", "de"]


def test_a_last_line_without_its_end_is_one(project: Path, script: Script, tmp_path: Path) -> None:
    """In one of the languages; another number of lines is refused."""
    copies_subwords(project)
    texts = tmp_path / "texts"
    texts.mkdir()
    for part in ("train", "valid", "test"):
        (texts / f"{part}.de").write_bytes(b"a\nb")
        (texts / f"{part}.en").write_bytes(b"a\nb\n")
    words = ["modeling_recurrence/prepare.sh", texts, "de", "en", tmp_path / "output"]
    done = script(*words)
    assert (done.returncode, done.stdout.count("data-bin is ready")) == (0, 1), done.stderr
    (texts / "test.de").write_text("a\nb\nc")
    done = script(*words)
    assert done.returncode == 2 and "test.de has 3 lines, and .en has another" in done.stderr


def test_text_in_another_encoding_is_one_message(
    project: Path, script: Script, tmp_path: Path
) -> None:
    """It names the line, and nothing is written; a byte order mark is no error."""
    python = project / ".venv/bin/python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    texts, output = tmp_path / "texts", tmp_path / "output"
    texts.mkdir()
    for part, language in itertools.product(("train", "val", "test"), ("de", "en")):
        (texts / f"{part}.{language}").write_text("ä\nb\n", encoding="utf-8-sig")
    (texts / "val.en").write_bytes(b"a\nb\xe9")
    variables = {"PYTHONPATH": EXAMPLES.parent}
    done = script("modeling_recurrence/prepare.sh", texts, "de", "en", output, **variables)
    assert done.returncode == 2 and not output.exists()
    said = f"error: {texts}/val.en, line 2: not UTF-8 text ('utf-8' codec can't decode byte 0xe9 in"
    assert done.stderr.startswith(said) and done.stderr.count("\n") == 1
    assert done.stderr.endswith("; convert the file to UTF-8\n")


def test_byte_order_marks_are_dropped(project: Path, script: Script, tmp_path: Path) -> None:
    """Of each file: from what the codes are learned from, the pieces and the test set."""
    copies_subwords(project)
    texts, output = tmp_path / "texts", tmp_path / "output"
    texts.mkdir()
    for part, language in itertools.product(("train", "valid", "test"), ("de", "en")):
        (texts / f"{part}.{language}").write_text("ä b\n\ufeffc\nd", encoding="utf-8-sig")
    done = script("modeling_recurrence/prepare.sh", texts, "de", "en", output)
    assert done.returncode == 0, done.stderr
    for made in ("pieces/train.de", "pieces/valid.en", "pieces/test.de", "test.de", "test.en"):
        assert (output / made).read_text(encoding="utf-8") == "ä b\n\ufeffc\nd"
    assert (output / "codes").read_text(encoding="utf-8").count("\ufeff") == 2


REBUILD = "modeling_recurrence/rebuild.sh"
REBUILT = [
    ("trained", "rsa", 1, "trained_cpu"), ("trained", "disan", 1, "trained_others_cpu"),
    ("continued", "biarn", 3, "continued_cpu"), ("continued", "closed", 2, "continued_options_cpu"),
    ("continued_gpu", "gated_sum", 2, "continued_gpu"), ("trained", "rsa", 2, "trained_seed_2_cpu"),
    ("trained", "rsa", 3, "trained_seed_3_cpu"),
    ("layers", "6_layer_birnn", 2, "layers_cpu"),
    ("layers", "6_layer_birnn", 3, "layers_seed_3_cpu"),
    ("overview", "biarn_continued", 1, "multi30k_cpu"),
    ("table4", "rnn_multicolumn", 1, "table4_cpu"), ("rsa", "short_0", 3, "rsa_cpu"),
    ("figure5", "steps_16", 1, "figure5_cpu"), ("short_cut", "6_layers_top", 1, "short_cut_cpu"),
    ("causes", "biarn_lr", 1, "causes_cpu"),
]  # fmt: skip
"""Each experiment, a system and a seed that it was run with, and its record."""


@pytest.fixture
def tables(project: Path) -> None:
    """The files of the experiments in modeling_recurrence."""
    for name in ("tables", "corpora"):
        folder = f"modeling_recurrence/{name}"
        shutil.copytree(EXAMPLES / folder, project / "examples" / folder)


def experiments_in(printed: str) -> list[tuple[dict[str, list[str]], Any]]:
    """The options and the settings of each experiment in the commands of PRINT=1."""
    found = []
    for words in map(shlex.split, printed.splitlines()):
        if words[:3] == ["fairseq-recur", "experiment", "run"]:
            options: dict[str, list[str]] = {}
            for name, value in zip(words, words[1:]):
                if name.startswith("--"):
                    options.setdefault(name, []).append(value)
            files = [word for word in words if word.endswith(".yaml")]
            found.append((options, read_experiment(files, options.get("--set", []))))
    return found


@pytest.mark.parametrize("experiment, name, seed, record", REBUILT)
def test_a_checkpoint_is_rebuilt_with_the_recorded_settings(
    experiment: str, name: str, seed: int, record: str, project: Path, tables: None,
    script: Script, tmp_path: Path,
) -> None:  # fmt: skip
    """What it continues from is trained first."""
    work = tmp_path / ODD.replace(":", "")  # which is refused
    done = script(REBUILD, experiment, name, seed, WORK=work, PRINT=1)
    assert done.returncode == 0 and calls(project) == [], done.stderr
    *first, (options, found) = experiments_in(done.stdout)
    expected = [[name], [str(seed)], [f"{work}/{experiment}"]]
    assert [options[f"--{key}"] for key in ("systems", "seeds", "work-dir")] == expected
    known = json.loads((EXAMPLES / f"modeling_recurrence/results/{record}.json").read_text())
    assert (name, seed) in {(run["system"], run["seed"]) for run in known["runs"]}
    for key in ("train", "checkpoint", "speed", "source", "target"):
        assert getattr(found, key) == known["experiment"][key], key
    (row,) = (row for row in known["experiment"]["systems"] if row["name"] == name)
    assert found.systems[name].flags == row["flags"]
    assert found.systems[name].start_from == row["start_from"]
    prepared = Path(known["experiment"]["data"]).parent.name
    assert (found.data, *found.score.reference) == (
        f"{work}/{prepared}/data-bin", f"{work}/{prepared}/test.de"
    )  # fmt: skip
    assert found.generate["bpe-codes"] == f"{work}/{prepared}/codes"
    merges = {"multi30k": "10000", "multi30k_4k": "4000"}[prepared]
    preparing = next(line for line in done.stdout.splitlines() if "/prepare.sh" in line)
    assert shlex.split(preparing)[-2:] == [f"{work}/{prepared}", merges]
    start = known["experiment"].get("start") or "transformer/seed1/average.pt"
    (first_seed,) = re.findall(r"transformer/seed(\d)/", start)
    baseline = f"{work}/trained/transformer/seed{first_seed}/average.pt"
    assert found.start == (baseline if known["experiment"].get("start") else None)
    assert len(first) == bool(found.start)
    for options, started in first:
        assert [options[f"--{key}"] for key in ("systems", "seeds")] == [
            ["transformer"],
            [first_seed],
        ]
        of_trained = EXAMPLES / "modeling_recurrence/results/trained_cpu.json"
        trained = json.loads(of_trained.read_text())["experiment"]
        assert started.train == trained["train"] and started.data == found.data


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "expected EXPERIMENT SYSTEM [SEED], found 0 words"),
        (["table1", "transformer"], "EXPERIMENT table1; expected trained, continued, "),
        (
            ["trained", "biarn"],
            "SYSTEM biarn is not in tables/from_scratch.yaml; expected one of: ",
        ),
        (["trained", "rsa", "1x"], "SEED=1x: expected a whole number, at least 1"),
    ],
)
def test_what_cannot_be_rebuilt_is_refused(
    words: list[str], message: str, project: Path, tables: None, script: Script
) -> None:
    done = script(REBUILD, *words)
    assert done.returncode == 2 and calls(project) == []
    assert done.stderr.startswith(f"error: {message}") and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_continued_checkpoint_is_rebuilt_from_text(
    project: Path, tables: None, script: Script, tmp_path: Path
) -> None:
    """In miniature, by the real programs; the second time nothing is left to do."""
    example, text = project / "examples/modeling_recurrence", tmp_path / "text"
    shutil.rmtree(project / ".venv")
    (project / ".venv").symlink_to(sys.prefix)
    text.mkdir()
    for file in DATA.glob("*.??"):
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)[:40]
        (text / file.name).write_text("".join(lines), encoding="utf-8")
    small = {"encoder-layers": 1, "decoder-layers": 1, "encoder-embed-dim": 8}
    small |= {"decoder-embed-dim": 8, "max-update": 2, "total-num-update": 2, "warmup-updates": 1}
    corpus = example / "corpora/multi30k_trained.yaml"
    content = yaml.safe_load(corpus.read_text())
    content["train"] |= small
    corpus.write_text(yaml.safe_dump(content))
    (example / "corpora/further.yaml").write_text("train: {max-update: 3, total-num-update: 3}\n")
    words = [REBUILD, "continued", "closed", 2]
    variables = {"TEXT": text, "PYTHONPATH": EXAMPLES.parent}
    done = script(*words, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    model = example / "work/continued/closed/seed2/average.pt"
    assert done.stdout.endswith(f"The checkpoint is {model}\n")
    start = json.loads((model.parent / "state.json").read_text())["train"]["key"]
    baseline = example / "work/trained/transformer/seed1/average.pt"
    assert start[start.index("--finetune-from-model") + 1].endswith("transformer/seed1/average.pt")
    times = [file.stat().st_mtime_ns for file in (baseline, model)]
    again = script(*words, **variables)
    assert again.returncode == 0 and "is prepared already" in again.stdout
    assert [file.stat().st_mtime_ns for file in (baseline, model)] == times


@pytest.mark.parametrize(
    "name, words, variable, value",
    [
        ("summarization/continued.sh", ["texts"], "MAX_SOURCE", "1k"),
        ("summarization/continued.sh", ["texts"], "MORE", "-3"),
        ("defect_detection/run.sh", ["data", "model"], "EPOCHS", "x[$(touch injected)]"),
        ("defect_detection/run.sh", ["data", "model"], "MAX_TARGET", "0"),
        ("defect_detection/run.sh", ["data", "model"], "BATCH", "0"),
    ],
)
def test_what_is_no_number_is_refused_before_any_work(
    name: str, words: list[str], variable: str, value: str, project: Path, script: Script
) -> None:
    done = script(name, *words, **{variable: value})
    assert done.returncode == 2 and calls(project) == []
    assert done.stderr == f"error: {variable}={value}: expected a whole number, at least 1\n"


def test_data_are_prepared_once(project: Path, script: Script) -> None:
    """A change of the program that makes them is no change of the data."""
    words = [project / "examples/quickstart/data", project / "work", 300, "en", "de"]
    assert script("quickstart/prepare.sh", *words).returncode == 0
    with open(project / "examples/quickstart/bpe.py", "a") as program:
        program.write("# a comment\n")
    done = script("quickstart/prepare.sh", *words)
    assert (done.returncode, done.stdout) == (0, "The data is already prepared\n"), done.stderr
    words[2] = 400
    assert script("quickstart/prepare.sh", *words).returncode == 2
    done = script("quickstart/prepare.sh", *words[:2])
    assert done.returncode == 2 and "expected DATA WORK SIZE SOURCE TARGET, found 2" in done.stderr


@pytest.mark.parametrize("example", ["quickstart", "modeling_recurrence"])
def test_files_of_the_user_are_not_replaced(example: str, project: Path, script: Script) -> None:
    """Neither the texts, by output in their folder, nor data that the script has not made."""
    copies_subwords(project)
    data, work = project / "examples/quickstart/data", project / "work"

    def prepare(output: Path) -> "subprocess.CompletedProcess[str]":
        return script(f"{example}/prepare.sh", *preparation(example, data, output))

    before = {path: path.read_bytes() for path in data.iterdir() if path.is_file()}
    done = prepare(data / "../data")
    assert done.returncode == 2 and "is the folder of the texts" in done.stderr
    assert before == {path: path.read_bytes() for path in data.iterdir()}
    (work / "data-bin").mkdir(parents=True)
    (work / "data-bin/mine").touch()
    done = prepare(work)
    assert done.returncode == 2 and "data-bin was not made by this script" in done.stderr
    assert (work / "data-bin/mine").exists()
    shutil.rmtree(work)
    assert prepare(work).returncode == 0
    (work / "data-bin").mkdir(exist_ok=True)
    for finished in ("done", "prepared"):  # as after a stop
        (work / finished).unlink(missing_ok=True)
    assert prepare(work).returncode == 0


@pytest.mark.skipif(shutil.which("flock") is None, reason="the lock is that of the command flock")
@pytest.mark.parametrize("example", ["quickstart", "modeling_recurrence"])
def test_one_preparation_at_a_time(example: str, project: Path, script: Script) -> None:
    """In a folder; the second one finds that there is nothing left to do."""
    copies_subwords(project)
    data, work = project / "examples/quickstart/data", project / "work"
    words = preparation(example, data, work)
    work.mkdir()
    lock = os.open(work, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with ThreadPoolExecutor() as pool:
        others = [pool.submit(script, f"{example}/prepare.sh", *words) for _ in range(2)]
        time.sleep(1)
        assert not any(other.done() for other in others) and not any(work.iterdir())
        os.close(lock)
        done = [other.result() for other in others]
    assert [one.returncode for one in done] == [0, 0], done
    assert sum("already" in one.stdout for one in done) == 1


def test_the_lowest_seed_translates(project: Path, script: Script) -> None:
    work = project / "with a blank"
    for seed in (2, 10):
        folder = work / f"runs/birnn/seed{seed}"
        folder.mkdir(parents=True)
        (folder / "average.pt").touch()
    for variables, seed in (({}, 2), ({"SEED": "10"}, 10)):
        assert script("quickstart/translate.sh", WORK=work, **variables).returncode == 0
        model = str(work / f"runs/birnn/seed{seed}/average.pt")
        assert calls(project)[-1] == ["fairseq-recur", "translate", model, "--beam", "5", "--cpu"]
    done = script("quickstart/translate.sh", "other", WORK=work)
    assert done.returncode == 1 and "other is not trained" in done.stderr
