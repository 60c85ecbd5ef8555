"""The file of an experiment, its runs, and its table."""

import argparse
import errno
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from fairseq_recur.cli import experiment_run, main
from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments import folder_lock, settings, speed
from fairseq_recur.experiments.other_sets import make_data
from fairseq_recur.experiments.progress import Progress, trained_share, where
from fairseq_recur.experiments.reading import read_experiment
from fairseq_recur.experiments.results import compare_rows, compare_seeds
from fairseq_recur.experiments.runner import Runner
from fairseq_recur.experiments.runs import SystemRun, by_updates, pairs, runs_of
from fairseq_recur.experiments.settings import arguments
from fairseq_recur.experiments.table import table
from fairseq_recur.files import write_json
from fairseq_recur.locks import hold
from fairseq_recur.scoring.tables import markdown

STARTED: dict[str, Any] = {"files": [], "set": [], "systems": [], "seeds": [], "parameters": {}}
"""How an experiment was started, as its folder tells."""


def content() -> dict[str, Any]:
    return {
        "title": "A table",
        "data": "bin",
        "source": "en",
        "target": "de",
        "baseline": "a",
        "seeds": [1, 2],
        "train": {"arch": "transformer", "lr": 0.1, "max-epoch": 4, "cpu": True},
        "generate": {"beam": 2},
        "score": {"reference": "test.de"},
        "checkpoint": 3,
        "systems": {
            "a": {"flags": {}, "published": {"BLEU": 27.3}},
            "b": {"flags": {"arch": "transformer_biarn", "lr": None}, "start_from": "a"},
        },
    }


def read(folder: Path, changed: dict[str, Any] | None = None, *changes: str) -> Any:
    whole = {**content(), **(changed or {})}
    (folder / "t.yaml").write_text(yaml.safe_dump(whole, sort_keys=False))
    return read_experiment([folder / "t.yaml"], changes)


def test_flags_become_words() -> None:
    flags = {
        "max_tokens": 5, "cpu": True, "fp16": False, "lr": None, "lrs": [1, 2], "args": {"b": 1},
    }  # fmt: skip
    assert arguments(flags) == [
        "--max-tokens", "5", "--cpu", "--lrs", "1", "2", "--args", '{"b": 1}'
    ]  # fmt: skip


def test_values_that_begin_like_a_flag_are_read_as_values() -> None:
    flags = {"stop_min_lr": -0.00001, "keep": -1, "gate": -0.5, "half": "-.5", "name": "-x y"}
    signs = {"minus": "-", "bound": float("-inf"), "separator": "-s"}
    words = arguments({**flags, **signs})
    assert words[:3] == ["--stop-min-lr=-1e-05", "--keep", "-1"]
    parser = argparse.ArgumentParser()
    for name in (*flags, *signs):
        parser.add_argument(f"--{name.replace('_', '-')}")
    given = {name: str(value) for name, value in {**flags, **signs}.items()}
    assert vars(parser.parse_args(words)) == given
    assert pairs(["train", *words])["stop-min-lr"] == "-1e-05"


def test_paths_are_relative_to_the_file_and_changes_to_here(tmp_path: Path) -> None:
    found = read(tmp_path, {}, "train.max-epoch=9", "systems.a.flags.arch=x", "seeds=[7]")
    assert found.data == str(tmp_path / "bin")
    assert found.score.reference == [str(tmp_path / "test.de")]
    assert found.train["max-epoch"] == 9 and found.seeds == [7]
    assert found.systems["a"].flags == {"arch": "x"}
    assert read(tmp_path, {}, "data=elsewhere").data == str(Path.cwd() / "elsewhere")
    assert read(tmp_path, {"data": "/abs"}).data == "/abs"
    flags = {"sentencepiece_model": "m", "bpe-codes": "/c", "gpt2-vocab-bpe": "https://x/y"}
    assert read(tmp_path, {"generate": {"beam": 2, **flags}}).generate == {
        "beam": 2, **flags, "sentencepiece_model": str(tmp_path / "m")
    }  # fmt: skip


def test_published_values_are_of_the_own_test_set(tmp_path: Path) -> None:
    """The table of another one has none."""
    (tmp_path / "bin").mkdir()
    for language in ("en", "de"):
        (tmp_path / f"bin/dict.{language}.txt").write_text("a 1\n")
        (tmp_path / f"other.{language}").write_text("a\n")
    found = read(tmp_path, {"generate": {"beam": 2, "gen-subset": "valid"}})
    other = make_data(found, str(tmp_path / "other"), tmp_path / "work", str, str)
    assert [row.published for row in found.systems.values()] == [{"BLEU": 27.3}, {}]
    assert [row.published for row in other.systems.values()] == [{}, {}]
    found.systems["a"].published = {}
    assert other.systems == found.systems
    assert other.generate == {"beam": 2}, "its set is called test"


def test_a_path_may_begin_with_another_setting(tmp_path: Path) -> None:
    """Whichever file or change has that."""
    systems = {"a": {"flags": {}}, "b": {"flags": {}, "start": "${data}/m.pt"}}
    score = {"reference": ["${data}/test.ref", "own.${target}"], "outputs": {"x": "${data}/x"}}
    changed = {"systems": systems, "score": score, "generate": {"bpe-codes": "${data}/codes"}}
    given = {**content(), **changed}
    del given["data"]
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus/c.yaml").write_text("data: bin")
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(given))
    files = [tmp_path / "t.yaml", tmp_path / "corpus/c.yaml"]
    of_corpus, here = str(tmp_path / "corpus/bin"), str(Path.cwd() / "elsewhere")
    for changes, data in (([], of_corpus), (["data=elsewhere"], here), (["data=/abs"], "/abs")):
        found = read_experiment(files, changes)
        assert found.score.reference == [f"{data}/test.ref", str(tmp_path / "own.de")]
        assert found.systems["b"].start == f"{data}/m.pt"
        assert found.score.outputs == {"x": f"{data}/x"}
        assert found.generate == {"bpe-codes": f"{data}/codes"}
    found = read_experiment(files, ["score.reference=${data}/other"])
    assert found.score.reference == [f"{of_corpus}/other"]


def test_a_path_that_is_still_relative_is_refused(tmp_path: Path) -> None:
    for changed, changes in (
        ({"score": {"reference": "${target}.txt"}}, []),
        ({}, ["score.reference=${target}.txt"]),
    ):
        with pytest.raises(ConfigError, match=r"path de\.txt is relative .*; begin it with \./"):
            read(tmp_path, changed, *changes)
    found = read(tmp_path, {"score": {"reference": "./${target}.txt"}})
    assert found.score.reference == [str(tmp_path / "de.txt")]


def test_a_checkpoint_starts_the_systems_that_no_other_starts(tmp_path: Path) -> None:
    found = read(tmp_path, {"start": "model.pt"})
    begin = {run.system.name: run.train_argv() for run in runs_of(found, tmp_path, seeds=[1])}
    starts = {
        name: words[words.index("--finetune-from-model") + 1] for name, words in begin.items()
    }
    first = tmp_path / "a" / "seed1" / "average.pt"
    assert starts == {"a": str(tmp_path / "model.pt"), "b": str(first)}
    assert "--finetune-from-model" not in runs_of(read(tmp_path), tmp_path)[0].train_argv()


def test_a_system_has_its_own_start(tmp_path: Path) -> None:
    """It takes precedence; its path is relative to the file, or to this folder in a change."""
    systems = {**content()["systems"], "c": {"flags": {}, "start": "own/c.pt"}}
    changed = {"start": "model.pt", "systems": systems}
    a, b, c = runs_of(read(tmp_path, changed), tmp_path, seeds=[1])
    assert (a.start, b.start) == (str(tmp_path / "model.pt"), str(a.model))
    assert c.start == str(tmp_path / "own/c.pt")
    assert c.train_argv()[c.train_argv().index("--finetune-from-model") + 1] == c.start
    *_, moved = runs_of(read(tmp_path, changed, "systems.c.start=c.pt"), tmp_path, seeds=[1])
    assert moved.start == str(Path.cwd() / "c.pt")
    (tmp_path / "own").mkdir()
    (tmp_path / "own/c.pt").write_text("12345")
    (tmp_path / "model.pt").write_text("1")
    (of_c,), (of_a,) = c.reads().items(), a.reads().items()
    assert of_c[0] == c.start and of_c[1].startswith("5 bytes, sha256 5994471a")
    assert of_a[0] == a.start and of_a[1].startswith("1 bytes, sha256 6b86b273")
    assert set(b.reads()) == {"start_from"}


def test_files_are_read_as_one(tmp_path: Path) -> None:
    whole = content()
    (tmp_path / "corpus").mkdir()
    table = {k: whole.pop(k) for k in ("title", "baseline", "systems")}
    table["train"] = {"lr": 0.5, "clip-norm": 1}
    (tmp_path / "table.yaml").write_text(yaml.safe_dump(table))
    (tmp_path / "corpus/c.yaml").write_text(yaml.safe_dump(whole))
    found = read_experiment([tmp_path / "table.yaml", tmp_path / "corpus/c.yaml"])
    assert found.train == {**whole["train"], "clip-norm": 1}, "the later file counts"
    assert found.data == str(tmp_path / "corpus/bin") and found.baseline == "a"
    with pytest.raises(ConfigError, match="systems is missing"):
        read_experiment([tmp_path / "corpus/c.yaml"])


WRONG = [
    ({"title": [3]}, "title: [3]; expected a text"),
    ({"train": None}, "train: None; expected flags"),
    ({"sedes": [1]}, "unknown key sedes"),
    ({"baseline": "c"}, "baseline: there is no system c; choose one of a, b"),
    ({"seeds": [1, 1]}, "seeds: [1, 1]; expected a list of different whole numbers"),
    ({"checkpoint": 0}, "checkpoint: 0; expected a number above 0, best or last"),
    ({"checkpoint": "newest"}, "checkpoint: 'newest'; expected"),
    ({"seeds": [1, "x"]}, "seeds: [1, 'x']; expected a list of different whole numbers"),
    ({"seeds": [1, -1]}, "seeds: [1, -1]; expected a list of different whole numbers, at least 0"),
    ({"generate": {"quiet": True}}, "generate.quiet: True; expected false, for the output has"),
    ({"systems": {"a": {"flags": {}}, "lock": {"flags": {}}}}, "lock is a name that the exper"),
    ({"systems": {"a": {"flags": {}}, "other_sets": {"flags": {}}}}, "other_sets is a name"),
    ({"speed": {"rounds": 2}}, "unknown key speed.rounds; expected updates, warmup, repeats"),
    ({"speed": {"repeats": 0}}, "speed.repeats: 0; expected a whole number, at least 1"),
    ({"speed": {"updates": "many"}}, "speed.updates: 'many'; expected a whole number, at least 5"),
    ({"speed": {"updates": 4}}, "speed.updates: 4; expected a whole number, at least 5"),
    ({"score": None}, "score: None; expected at least `reference: FILE`"),
    ({"systems": None}, "systems: None; expected a name and flags for each row"),
    ({"speed": 3}, "speed: 3; expected updates, warmup, repeats"),
    ({"score": {"reference": "r", "metrics": ["blue"]}}, "score.metrics: ['blue']"),
    ({"score": {"metrics": ["bleu"]}}, "score.reference is missing"),
    ({"score": {"reference": "r", "tokenize": "x"}}, "score.tokenize: 'x'"),
    ({"score": {"reference": "r", "samples": 0}}, "score.samples: 0"),
    ({"score": {"reference": "r", "metric": 1}}, "unknown key score.metric"),
    ({"score": {"reference": "r", "lowercase": "maybe"}}, "score.lowercase: 'maybe'"),
    ({"score": {"reference": []}}, "score.reference: []; expected a file"),
    ({"score": {"reference": "r", "metrics": ["comet"]}}, "score.source is missing"),
    ({"train": {"save_dir": "x"}}, "train.save_dir is set by the experiment itself"),
    ({"generate": {"path": "x"}}, "generate.path is set by the experiment itself"),
    ({"systems": {"a": {"flags": {"seed": 3}}}}, "systems.a.flags.seed is set by the"),
    ({"systems": {"a": {}}}, "systems.a.flags is missing: expected flags of fairseq-train"),
    ({"systems": {"a": 3}}, "systems.a: 3; expected the keys flags, start_from, start, published"),
    ({"systems": {"a": {"flags": {}, "x": 1}}}, "unknown key systems.a.x"),
    ({"systems": {"a": {"flags": {}, "name": "b"}}}, "unknown key systems.a.name"),
    ({"title": "${nope}"}, "nope"),
    ({"systems": {"a": {"flags": {}}, "b/c": {"flags": {}}}}, "'b/c' cannot be the name"),
    ({"systems": {"a": {"flags": {}}, "b:c": {"flags": {}}}}, "misreads ':' in b:c; choose"),
    ({"train": {"log_format": "none"}}, "systems.b: log-format none; expected json, simple or"),
    (
        {"systems": {"a": {"flags": {"log-format": "none"}}}},
        "systems.a: log-format none; expected json",
    ),
    (
        {"systems": {"a": {"flags": {}, "start_from": "b"}, "b": {"flags": {}, "start_from": "a"}}},
        "systems.a.start_from leads to a, which is itself",
    ),
    ({"systems": {"a": {"flags": {}, "start_from": "z"}}}, "z, which is not a system"),
    ({"start": {}}, "start: {}; expected a checkpoint"),
    (
        {"systems": {"a": {"flags": {}}, "b": {"flags": {}, "start_from": "a", "start": "m"}}},
        "systems.b has both start and start_from; remove one of them",
    ),
    ({"start": "12:30/m.pt"}, "start: fairseq misreads ':' in "),
    ({"data": "12:30"}, "data: fairseq misreads ':' in "),
    (
        {"systems": {"a": {"flags": {}, "start": "12:30.pt"}}},
        "systems.a.start: fairseq misreads ':' in ",
    ),
    ({"target": False}, "target: False; expected a language code; put it in quotes, for YAML"),
    ({"title": True}, "title: True; expected a text; put it in quotes"),
    ({"start": True}, "start: True; expected a checkpoint; put it in quotes"),
    (
        {"score": {"reference": False}},
        "score.reference: False; expected a file, or a list of files;",
    ),
    (
        {"score": {"reference": ["r", True]}},
        "r', True]; expected a file, or a list of files; put it",
    ),
    ({"score": {"reference": "r", "outputs": {"x": True}}}, "score.outputs: {'x': True}; expected"),
    ({"systems": {"a": {"flags": {}}, False: {"flags": {}}}}, "systems: False is not a text; put"),
]


def test_case_is_ignored_where_a_file_says_so(tmp_path: Path) -> None:
    for lowercase, expected in ((True, 100.0), (False, 0.0)):
        score = {"reference": "r", "metrics": ["bleu"], "lowercase": lowercase}
        (metric,) = read(tmp_path, {"score": score}).score.built
        found = metric.corpus_score(["A SMALL TEST HERE"], [["a small test here"]]).score
        assert found == pytest.approx(expected)


def test_a_metric_counts_once(tmp_path: Path) -> None:
    score = {"reference": "r", "metrics": ["chrf", "bleu", "chrf"]}
    found = read(tmp_path, {"score": score}).score
    assert found.metrics == ["chrf", "bleu"] and len(found.built) == 2


@pytest.mark.parametrize("changed, message", WRONG)
def test_a_wrong_file_is_refused(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="t.yaml: ") as error:
        read(tmp_path, changed)
    assert message in str(error.value)


def test_everything_wrong_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        read(tmp_path, {"seeds": [], "title": {}, "score": {}, "systems": {"a": {"x": 1}}})
    assert str(error.value).count("\n- ") == 5
    with pytest.raises(ConfigError, match="not an experiment") as error:
        read(tmp_path, {"seeds": [1, 1], "checkpoint": -1, "baseline": "c"})
    assert str(error.value).count("\n- ") == 3


def test_what_is_no_experiment(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_experiment([tmp_path / "none.yaml"])
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match="is not YAML"):
        read_experiment([tmp_path / "bad.yaml"])
    for endless in ("&a [*a]", "[" * 400 + "]" * 400):
        (tmp_path / "bad.yaml").write_text(f"title: {endless}")
        with pytest.raises(ConfigError, match="contains itself, or is nested too deeply; correct"):
            read_experiment([tmp_path / "bad.yaml"])
        with pytest.raises(ConfigError, match="contains itself, or is nested too deeply; correct"):
            read(tmp_path, {}, f"title={endless}")
    for wrong in (b"3", b"title: \xff", b"title: ${"):
        (tmp_path / "bad.yaml").write_bytes(wrong)
        with pytest.raises(ConfigError, match="bad.yaml is not YAML: .*; correct it there"):
            read_experiment([tmp_path / "bad.yaml"])
    (tmp_path / "list.yaml").write_text("- a")
    with pytest.raises(ConfigError, match="expected keys and values"):
        read_experiment([tmp_path / "list.yaml"])
    (tmp_path / "${x}").mkdir()
    with pytest.raises(ConfigError, match="stands for a setting; rename the folder"):
        read(tmp_path / "${x}")
    for change, message in (
        ("x", "--set 'x'"),
        ("=3", "--set '=3'"),
        ("a=[", r"--set 'a=\['"),
        ("title.deep=3", "title: {'deep': 3}"),
        ("data=${no}", "--set"),
    ):
        with pytest.raises(ConfigError, match=message):
            read(tmp_path, {}, change)


def runs(folder: Path, changed: dict[str, Any] | None = None, *changes: str) -> list[SystemRun]:
    return runs_of(read(folder, changed, *changes), folder / "work")


def test_checkpoints_are_kept_by_updates_where_they_are_saved_by_updates() -> None:
    """fairseq's default, 0, saves none."""
    assert [by_updates({"save-interval-updates": n}) for n in (0, "0", 5)] == [False, False, True]
    assert not by_updates({}) and not by_updates({"save-interval-updates": [5]})


def test_an_average_knows_its_newest_checkpoint(tmp_path: Path) -> None:
    run, *_ = runs_of(read(tmp_path, {}), tmp_path, seeds=[1])
    run.folder.mkdir(parents=True)
    lines = ["average.pt: average of 2 checkpoints"]
    lines += [f"  a/checkpoint{epoch}.pt, update {10 * epoch}" for epoch in (9, 8)]
    (run.folder / "average.out").write_text("\n".join(lines))
    averaged = {"checkpoints": ["checkpoint9.pt", "checkpoint8.pt"], "updates": 90}
    assert run.made("average") == {"averaged": averaged}


def test_a_run_is_fairseqs_commands(tmp_path: Path) -> None:
    a1, b1, a2, b2 = runs(tmp_path)
    assert [r.name for r in (a1, b1, a2, b2)] == ["a seed 1", "b seed 1", "a seed 2", "b seed 2"]
    folder = tmp_path / "work/b/seed2"
    assert b2.train_argv() == [
        "train", str(tmp_path / "bin"), "-s", "en", "-t", "de", "--arch", "transformer_biarn",
        "--max-epoch", "4", "--cpu", "--keep-last-epochs", "3", "--seed", "2",
        "--finetune-from-model", str(tmp_path / "work/a/seed2/average.pt"),
        "--save-dir", str(folder), "--log-file", str(folder / "train.log"),
    ]  # fmt: skip
    assert b2.generate_argv() == [
        "generate", str(tmp_path / "bin"), "-s", "en", "-t", "de",
        "--path", str(folder / "average.pt"), "--beam", "2",
    ]  # fmt: skip
    chosen = runs_of(a1.experiment, a1.work, ("b",), (2, 3))  # b starts from a
    assert [run.name for run in chosen] == ["a seed 2", "b seed 2", "a seed 3", "b seed 3"]
    with pytest.raises(ConfigError, match="no system c in the table; choose from a, b"):
        runs_of(a1.experiment, a1.work, ("c",))


def test_what_is_averaged(tmp_path: Path) -> None:
    run = runs(tmp_path)[0]
    run.folder.mkdir(parents=True)
    for name in ("checkpoint1.pt", "checkpoint2.pt", "checkpoint_best.pt", "checkpoint_1_50.pt"):
        (run.folder / name).touch()
    assert run.average_argv()[3:5] == ["--last", "2"] and "--updates" not in run.average_argv()
    run = runs(tmp_path, {}, "train.save_interval_updates=50")[0]
    assert run.average_argv()[3:6] == ["--last", "1", "--updates"]
    assert run.train_flags()["keep-interval-updates"] == 3
    run = runs(tmp_path, {}, "systems.a.flags.save_interval_updates=50")[0]
    assert run.train_flags()["keep-interval-updates"] == 3
    assert "keep-last-epochs" not in run.train_flags()
    best = runs(tmp_path, {"checkpoint": "best"})[0]
    assert best.steps == ["train", "generate"] and best.model.name == "checkpoint_best.pt"


def test_a_training_within_its_first_epoch_has_only_its_last_checkpoint(tmp_path: Path) -> None:
    """As with max-update below the updates of an epoch."""
    run = runs(tmp_path)[0]
    run.folder.mkdir(parents=True)
    (run.folder / "checkpoint_last.pt").touch()
    assert run.average_argv()[1:3] == ["--inputs", str(run.folder / "checkpoint_last.pt")]
    assert "--last" not in run.average_argv()


def test_a_step_is_done_again_when_its_settings_change(tmp_path: Path) -> None:
    run = runs(tmp_path)[0]
    run.write_state({step: {"key": run.key(step), "done": True} for step in run.steps})
    assert run.trained() and not run.finished(), "its output is missing"
    run.output.touch()
    assert run.finished()
    other = runs(tmp_path, {"generate": {"beam": 3}})[0]
    assert other.trained() and not other.finished()
    longer = runs(tmp_path, {}, "train.max-epoch=5")[0]
    assert not longer.trained() and longer.check_unchanged() == []
    assert runs(tmp_path, {}, "train.lr=0.2")[0].check_unchanged() == [
        "a seed 1: --lr was 0.1, is 0.2"
    ]
    assert runs(tmp_path, {}, "train.clip-norm=0.2")[0].check_unchanged() == [
        "a seed 1: --clip-norm was not given, is 0.2"
    ]
    assert runs(tmp_path, {"data": "bin2"})[0].check_unchanged() == [
        f"a seed 1: --argument 1 was {tmp_path / 'bin'}, is {tmp_path / 'bin2'}"
    ]


def test_progress_is_read_from_the_log(tmp_path: Path) -> None:
    run = runs(tmp_path)[0]
    assert trained_share(run) == 0.0
    run.folder.mkdir(parents=True)
    line = "epoch 003:     50 / 100 loss=5.0, ppl=32, wps=1, ups=1, num_updates=250, wall=9"
    (run.folder / "train.log").write_text(f"2026-01-01 00:00:00 | INFO | train_inner | {line}\n")
    assert trained_share(run) == pytest.approx(2.5 / 4)
    assert trained_share(runs(tmp_path, {}, "train.max-update=300")[0]) == pytest.approx(250 / 300)
    assert where(run, "train") == "update 250, epoch 2.5, loss 5.00"
    assert where(run, "generate") == "generate"


def test_the_time_that_is_left_is_that_of_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier start has trained took none of the time since this one."""
    (run, *_) = runs(tmp_path, {}, "train.max-update=100", "train.max-epoch=0")
    run.folder.mkdir(parents=True)
    log, now = run.folder / "train.log", 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def train(updates: int) -> None:
        line = f"epoch 001: {updates} / 100 loss=5.0, wps=1, ups=1, num_updates={updates}, wall=9"
        log.write_text(f"2026-01-01 00:00:00 | INFO | train_inner | {line}\n")

    train(20)
    progress = Progress([run])
    assert progress.line() == "0 of 1 runs done, 20% of the training, 0:00:00 elapsed"
    train(60)
    now += 100
    done = "0 of 1 runs done, 60% of the training, 0:01:40 elapsed"
    assert progress.line() == f"{done}, about 0:01:40 left"
    train(100)
    done = "0 of 1 runs done, 100% of the training, 0:01:40 elapsed"
    assert progress.line([(run, "generate")]) == f"{done} | {run.name}: generate"
    now += 60
    assert Progress([run]).line() == "0 of 1 runs done, 0:00:00 elapsed", "decoding alone is left"


def test_each_validation_is_printed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs(tmp_path)[0]
    run.folder.mkdir(parents=True)
    log = run.folder / "train.log"

    def validate(updates: int, loss: float, subset: str = "valid") -> None:
        with log.open("a") as file:
            file.write(
                f"epoch 001 | valid on '{subset}' subset | loss {loss} | num_updates {updates}\n"
            )

    validate(10, 5.0)
    progress = Progress([run], validation=True)
    progress.validated(run)
    validate(20, 4.5)
    progress.validated(run)
    progress.validated(run)
    validate(20, 4.75, "valid1")
    progress.validated(run)
    Progress([run]).validated(run)
    assert capsys.readouterr().out.splitlines() == [
        "a seed 1: update 20, valid loss 4.5", "a seed 1: update 20, valid1 loss 4.75"
    ]  # fmt: skip


@pytest.mark.parametrize("metric, gpus", [("comet", 1), ("bleu", 0)])
def test_comet_runs_on_a_gpu(metric: str, gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `fairseq-recur score`."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(settings, "build_metric", lambda name, *args, **more: given.update(more))
    assert settings.Scoring(reference=[], metrics=[metric]).built
    assert given["gpus"] == gpus


def test_jobs_are_spread_over_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    runner = Runner(runs(tmp_path), jobs=4, devices=["3", "5"])
    assert [runner.environment(i)["CUDA_VISIBLE_DEVICES"] for i in range(4)] == ["3", "5"] * 2
    cores = os.cpu_count() or 1
    assert runner.environment(0)["OMP_NUM_THREADS"] == str(max(1, cores // 4))
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert Runner([], jobs=1, devices=[]).environment(0)["OMP_NUM_THREADS"] == "7"


def test_a_folder_is_held_by_one(tmp_path: Path) -> None:
    lock = hold(tmp_path / "lock")
    assert lock is not None and hold(tmp_path / "lock") is None
    # `is_locked` has it for a moment, and that is no holder.
    with open(tmp_path / "looked at", "a") as looked:
        fcntl.flock(looked, fcntl.LOCK_SH)
        threading.Timer(0.01, fcntl.flock, (looked, fcntl.LOCK_UN)).start()
        assert hold(tmp_path / "looked at") is not None
    lock.close()
    assert hold(tmp_path / "lock") is not None


def test_slow_trainings_are_measured_as_exactly_as_fast_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(words: list[str], *_: Any) -> float:
        lines = [
            {"epoch": 1, "update": 0.1, "num_updates": n, "ups": "0.01", "wps": wps, "wpb": "1000"}
            for n, wps in ((5, "99"), (10, "99"), (15, "12"), (20, "6"))
        ]
        given.append(words)
        Path(words[words.index("--log-file") + 1]).write_text("\n".join(map(json.dumps, lines)))
        return 300.0

    given: list[list[str]] = []
    monkeypatch.setattr(speed, "_call", train)
    # A line is about five updates, so one after seven counts from the tenth on.
    for warmup in (10, 7):
        measured = {"updates": 10, "warmup": warmup}
        run = runs(tmp_path, {"speed": measured}, "train.tensorboard-logdir=tb")[0]
        run.work.mkdir(exist_ok=True)
        assert speed.training_speed(run, {}) == pytest.approx((0.008, 300))  # their harmonic mean
        assert given[-1][given[-1].index("--max-update") + 1] == "20"
        assert "--tensorboard-logdir" not in given[-1], "the curves of the training"


def test_a_decoding_that_tells_no_speed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "Translated 1,200 sentences (9 tokens) in 3.0s (400.00 sentences/s, 3.00 tokens/s)"

    def generate(words: list[str], environment: dict[str, str], out: Path) -> float:
        out.write_text(said)
        return 300.0

    monkeypatch.setattr(speed, "_call", generate)
    run = runs(tmp_path, {"speed": {}})[0]
    run.work.mkdir(exist_ok=True)
    assert speed.decoding_speed(run, {}) == (400, 300)
    said = "Translated"
    with pytest.raises(ConfigError, match="speed.out does not report the speed .*; look there"):
        speed.decoding_speed(run, {})


def test_the_table_has_the_speed_of_its_own_commands(tmp_path: Path) -> None:
    """Not that of a former search, nor that of one that is no longer asked for."""
    some = runs(tmp_path, {"speed": {}})
    ones = {run.system.name: run for run in reversed(some)}.values()
    assert len(ones) > 1
    key = [asdict(some[0].experiment.speed), *map(speed.commands, ones)]
    systems = {run.system.name: {"updates_per_second": [1.0]} for run in ones}
    write_json(some[0].work / "speed.json", {"key": key, "systems": systems})
    assert speed.measured(some)["systems"] == systems
    assert speed.measured(some[:1])["systems"].keys() == {some[0].system.name}
    assert speed.measured(runs(tmp_path, {"speed": {}}, "generate.beam=7")) is None
    assert speed.measured(runs(tmp_path, {"speed": {"updates": 7}})) is None
    assert speed.measured(runs(tmp_path)) is None and speed.measured([]) is None


def test_the_memory_of_a_command_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of a larger command before it; and a failed one is told."""
    monkeypatch.setattr(speed, "PROGRAM", [sys.executable, "-c"])
    out, environment = tmp_path / "out", {**os.environ}
    end = "import time; time.sleep(0.5)"
    before = speed._call([end], environment, out)
    large = speed._call([f"print(len(b'x' * 2**28)); {end}"], environment, out)
    assert out.read_text() == f"{2**28}\n"
    after = speed._call([end], environment, out)
    assert 0 < before and abs(after - before) < 20 and 250 < large - before < 280
    with pytest.raises(ConfigError, match="ended with 3; see .*out"):
        speed._call(["raise SystemExit(3)"], environment, out)


def test_a_disk_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(ConfigError, match="no locks .* choose another --work-dir"):
        folder_lock.exclusive(tmp_path)


def test_only_a_process_of_this_machine_is_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(tmp_path / "command.json", STARTED)
    with subprocess.Popen(["sleep", "20"]) as process:
        for holder, said in (
            (f"{process.pid} on elsewhere", "runs on elsewhere, and this machine is"),
            (f"4194305 on {socket.gethostname()}", "process 4194305 cannot be stopped: No such"),
        ):  # no process has a number above 2**22
            (tmp_path / "lock").write_text(holder)
            lock = hold(tmp_path / "lock")
            assert lock is not None
            with lock:
                assert main(["experiment", "stop", str(tmp_path)]) == 2
            assert said in capsys.readouterr().err
        assert process.poll() is None
        process.kill()


def test_a_signal_ends_the_measurement_of_speed_and_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_json(tmp_path / "command.json", STARTED)
    monkeypatch.setattr(experiment_run.Runner, "__call__", lambda runner: [])
    monkeypatch.setattr(experiment_run, "write_results", lambda *_: None)
    monkeypatch.setattr(speed, "PROGRAM", [str(tmp_path / "program")])
    (tmp_path / "program").write_text(
        f"#!/bin/sh\necho $$ > {tmp_path}/process\nsleep 0.2\nkill $PPID\nexec sleep 20\n"
    )
    (tmp_path / "program").chmod(0o755)
    monkeypatch.setattr(
        experiment_run,
        "measure_speed",
        lambda _, env: speed._call(["train"], env, tmp_path / "out"),
    )

    def unhandled(*_: Any) -> None:
        raise AssertionError("the signal would have ended this process, but not its command")

    before = signal.signal(signal.SIGTERM, unhandled)
    try:
        some = runs(tmp_path, {"speed": {}})
        assert experiment_run.work_on(some, tmp_path, 1, [], validation=False) == 130
        assert signal.getsignal(signal.SIGTERM) is unhandled
    finally:
        signal.signal(signal.SIGTERM, before)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "process").read_text()), 0)


def result(tmp_path: Path) -> dict[str, Any]:
    """Two systems with two seeds, the second system better."""
    experiment = json.loads(json.dumps(content()))
    systems = [
        {"name": "a", "published": {"BLEU": 27.3}, "start_from": None},
        {"name": "b", "published": {}, "start_from": "a"},
        {"name": "c", "published": {}, "start_from": None, "start": "/m/copying/seed1/c.pt"},
    ]
    scores = {("a", 1): 20.0, ("a", 2): 21.0, ("b", 1): 22.0, ("b", 2): 24.0}
    run = {
        "signatures": {"BLEU": "sig", "chrF2": "sig2"}, "decimals": {"BLEU": 2, "chrF2": 2},
        "updates": 100, "commit": "abc",
    }  # fmt: skip

    def compared(seed: int) -> dict[str, Any]:
        found = [
            {"system": s, "difference": scores[s, seed] - scores["a", seed],
             "p": {} if s == "a" else {"bootstrap": 0.01 * seed, "randomization": 0.03 * seed},
             "corrected": {} if s == "a" else {"bootstrap": 0.02, "randomization": 0.04}}
            for s in "ab"
        ]  # fmt: skip
        metrics = [{"metric": "BLEU", "higher_is_better": True, "systems": found}]
        return {"seed": seed, "baseline": "a", "metrics": metrics}

    return {
        "title": "A table",
        "experiment": {**experiment, "systems": systems},
        "parameters": {"a": 1000, "b": 1234},
        "machine": "1 core",
        "versions": {"torch": "2"},
        "runs": [
            {"system": s, "seed": seed, "scores": {"BLEU": v, "chrF2": v + 20}, **run}
            for (s, seed), v in scores.items()
        ],
        "outputs": [{"system": "copied", "scores": {"BLEU": 3.0}, "decimals": {"BLEU": 2}}],
        "comparisons": [compared(1), compared(2)],
        "speed": {
            "threads": "2", "commit": "abc",
            "systems": {
                "a": {"updates_per_second": [10.0, 8.0, 4.0], "sentences_per_second": [50.0] * 3},
                "b": {"updates_per_second": [9.0, 6.0, 2.0], "sentences_per_second": [60.0] * 3},
            },
        },
    }  # fmt: skip


def test_the_table(tmp_path: Path) -> None:
    lines = table(result(tmp_path)).splitlines()
    assert lines[0] == "# A table"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:8]]
    head, _, copied, a, b, c = (dict(zip(cells[0], row)) for row in cells)
    assert list(head) == [
        "system", "runs", "BLEU", "difference", "p bootstrap", "p randomization", "p corrected",
        "chrF2", "published", "parameters", "training", "decoding",
    ]  # fmt: skip
    assert a["BLEU"] == "20.50 ± 0.71" and b["BLEU"] == "23.00 ± 1.41"
    assert (a["difference"], b["difference"]) == ("", "+2.50")
    assert (a["p bootstrap"], b["p bootstrap"]) == ("", "0.010, 0.020")
    assert (a["p randomization"], b["p randomization"]) == ("", "0.030, 0.060")
    assert (a["p corrected"], b["p corrected"]) == ("", "0.040, 0.040")
    assert (a["published"], a["parameters"], b["parameters"]) == ("27.3 BLEU", "1,000", "1,234")
    assert (a["training"], b["training"]) == ("8.00 updates/s", "0.75 (0.50–0.90)")
    assert b["decoding"] == "1.20 (1.20–1.20)"
    assert {*c.values()} == {"c", ""}
    assert {*copied.values()} == {"copied", "3.00", ""}
    notes = "\n".join(lines[8:])
    assert "BLEU `sig`" in notes and "b starts from the trained a" in notes
    assert "- seeds 1, 2: mean" in notes
    assert "a starts from" not in notes and "c starts from" not in notes, "c is not trained yet"
    more = {**result(tmp_path)["runs"][0], "system": "c"}
    trained = {**result(tmp_path), "runs": [*result(tmp_path)["runs"], more]}
    assert "\n- c starts from copying/seed1/c.pt" in table(trained)
    start = {**result(tmp_path)["experiment"], "start": "/m/full/seed2/checkpoint_best.pt"}
    note = "- the other systems start from full/seed2/checkpoint_best.pt\n"
    assert note in table({**result(tmp_path), "experiment": start})
    assert "lower is better" not in notes
    results = result(tmp_path)
    results["speed"]["systems"]["b"] |= {"training_mib": [510.4, 2000.0, 500.0]}
    lines = table(results).splitlines()
    head, b = ([c.strip() for c in lines[n].split("|")] for n in (2, 6))
    assert dict(zip(head, b))["training, MiB"] == "510" and "decoding, MiB" not in head
    results["comparisons"][0]["metrics"][0]["higher_is_better"] = False
    assert "\n- BLEU: lower is better\n" in table(results)


def test_the_table_tells_what_was_averaged(tmp_path: Path) -> None:
    """A training may end after the last checkpoint that has a number, or before there are many."""
    results = result(tmp_path)
    for run, names in zip(results["runs"], (["3.pt", "2.pt", "1.pt"], ["2.pt", "1.pt"], ["1.pt"])):
        run["averaged"] = {"checkpoints": names, "updates": 62 * len(names)}
    few = "averages of 1, 2, 3 instead of 3 checkpoints, the newest of update 62, 124, 186"
    assert f"\n- {few}\n" in table(results)
    for run in results["runs"]:
        run["averaged"] = {"checkpoints": ["3.pt", "2.pt", "1.pt"], "updates": 186}
    assert "\n- averages of 3 checkpoints, the newest of update 186\n" in table(results)


def test_a_name_does_not_end_a_cell_of_the_table(tmp_path: Path) -> None:
    results = json.loads(json.dumps(result(tmp_path)).replace('"b"', '"b|c"'))
    lines = table(results).splitlines()
    assert lines[6].startswith("| b\\|c | 2 | 23.00 ± 1.41 | +2.50 |")
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines[2:8]} == {13}
    assert markdown([["a\\|b", "1"]], names=1)[0] == "| a\\|b | 1 |"


def test_the_table_of_pooled_seeds(tmp_path: Path) -> None:
    """A column for the rows that have the test; it is about the first metric."""
    results = result(tmp_path)
    of_b = [{"system": "b", "seeds": [1, 2], "difference": 2.4, "p": 0.011, "corrected": 0.022}]
    of_chrf = [{**of_b[0], "corrected": 0.5}]
    results["pooled"] = [
        {"baseline": "a", "metric": "BLEU", "systems": of_b},
        {"baseline": "a", "metric": "chrF2", "systems": of_chrf},
    ]
    lines = table(results).splitlines()
    head, a, b = ([c.strip() for c in lines[n].split("|")] for n in (2, 5, 6))
    assert (dict(zip(head, a))["p pooled"], dict(zip(head, b))["p pooled"]) == ("", "0.022")
    assert "p pooled: randomization" in "\n".join(lines)


def test_seeds_are_pooled_with_the_control_of_each_row(tmp_path: Path) -> None:
    """Rows with fewer than two seeds in common with their control have no such test."""
    given = content()
    given["systems"] = {name: {"flags": {"arch": "transformer"}} for name in "abcd"}
    given["baseline"] = "a"
    given["systems"]["c"]["compare_with"] = "b"
    experiment = read(tmp_path, given)
    words = "the cat sat on a mat and the dog barked at it".split()
    reference = [" ".join(words[i:] + words[:i]) for i in range(8)]
    outputs = {
        name: {seed: [t.replace(words[seed + n], "x") for t in reference] for seed in seeds}
        for n, (name, seeds) in enumerate(
            {"a": (1, 2), "b": (1, 2, 3), "c": (2, 3), "d": (1,)}.items()
        )
    }
    found = list(compare_seeds(experiment, outputs, [reference], experiment.score.built))
    seen = [
        (c["baseline"], c["metric"], [(s["system"], s["seeds"]) for s in c["systems"]])
        for c in found
    ]
    assert seen == [
        ("a", "BLEU", [("b", [1, 2])]), ("a", "chrF2", [("b", [1, 2])]),
        ("b", "BLEU", [("c", [2, 3])]), ("b", "chrF2", [("c", [2, 3])]),
    ]  # fmt: skip


def test_the_table_of_a_control(tmp_path: Path) -> None:
    results = result(tmp_path)
    more = deepcopy(results["comparisons"][:1])
    more[0]["baseline"] = "b"
    (of_a, of_b) = more[0]["metrics"][0]["systems"]
    of_a["difference"], of_a["p"], of_a["corrected"] = -2.0, of_b["p"], of_b["corrected"]
    of_b["difference"], of_b["p"], of_b["corrected"] = 0.0, {}, {}  # as of every control
    text = table({**results, "comparisons": [*results["comparisons"], *more]})
    assert "Compared with b:\n\n| system | BLEU, difference | p bootstrap |" in text
    assert "\n| a | -2.00 | 0.010 | 0.030 | 0.040 |\n\n- BLEU" in text


def test_a_run_of_a_subclass_starts_from_one_of_the_same(tmp_path: Path) -> None:
    class Named(SystemRun):
        """A run with another name, by which the runner finds the run that it starts from."""

    (_, run) = runs_of(read(tmp_path), tmp_path, ["b"], [2])
    first = Named(run.experiment, run.system, run.seed, run.work).starts_from
    assert type(first) is Named and (first.system.name, first.seed) == ("a", 2)


def test_rows_are_compared_with_the_baseline_and_with_the_row_they_name(tmp_path: Path) -> None:
    """Each group is corrected for its own number of systems."""
    given = content()
    given["systems"] = {name: {"flags": {"arch": "transformer"}} for name in "abcd"}
    given["baseline"] = "a"
    for name in "cd":
        given["systems"][name]["compare_with"] = "b"
    experiment = read(tmp_path, given)
    words = "the cat sat on a mat and the dog barked at it".split()
    reference = [" ".join(words[i:] + words[:i]) for i in range(8)]
    texts = {n: [t.replace(w, "x") for t in reference] for n, w in zip("abc", ("it", "cat", "on"))}
    found = list(
        compare_rows(experiment, texts, [reference], experiment.score.built)
    )  # d is not trained yet
    assert [c["baseline"] for c in found] == ["a", "b"]
    assert [[s["system"] for s in c["metrics"][0]["systems"]] for c in found] == [
        ["a", "b", "c"], ["b", "c"]
    ]  # fmt: skip
    (only,) = found[1]["metrics"][0]["systems"][1:]
    assert only["corrected"]["randomization"] == only["p"]["randomization"]
    assert (
        list(compare_rows(experiment, {"b": texts["b"]}, [reference], experiment.score.built)) == []
    )
    given["systems"]["c"]["compare_with"] = "c"
    with pytest.raises(ConfigError, match="systems.c.compare_with: c is not another system"):
        read(tmp_path, given)


def test_the_table_of_one_run_or_none(tmp_path: Path) -> None:
    results = result(tmp_path)
    results["runs"], results["comparisons"] = results["runs"][:1], []
    results["speed"] = None
    text = table(results)
    assert "| a | 1 | 20.00 |" in text and "±" not in text.splitlines()[5]
    assert "difference |" not in text and "training |" not in text
    results["runs"] = []
    assert "Nothing is finished yet." in table(results)
