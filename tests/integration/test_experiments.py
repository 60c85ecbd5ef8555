"""An experiment through the command line: killed, resumed, in the background, wrong."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
import sentencepiece
import torch
import yaml
from fairseq.data import Dictionary, data_utils
from sacrebleu.metrics import BLEU

from fairseq_recur.cli import experiment_score, experiment_status, main
from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments import runner, speed
from fairseq_recur.experiments.folder_lock import is_held
from fairseq_recur.experiments.other_sets import write_binary
from fairseq_recur.experiments.reading import ABOUT, read_experiment
from fairseq_recur.experiments.runs import runs_of
from fairseq_recur.experiments.steps import LOCK
from fairseq_recur.locks import hold
from fairseq_recur.scoring.generation import read_hypotheses
from tests.conftest import SMALL, TRAIN
from tests.forking import Fork
from tests.running import USER_DIR

ROOT = Path(USER_DIR).parent


def flags_of(words: list[str]) -> dict[str, Any]:
    """Flags as an experiment's file has them."""
    found: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name = word[2:]
            found[name] = True
        else:
            found[name] = word
    return {k: v for k, v in found.items() if k != "seed"}


def content(corpus: Path) -> dict[str, Any]:
    train = {**flags_of([*SMALL, *TRAIN]), "max-epoch": 6, "dropout": 0.1, "lr": 0.02}
    return {
        "title": "Reversing",
        "data": str(corpus / "bin"),
        "source": "src",
        "target": "tgt",
        "baseline": "plain",
        "train": train,
        "checkpoint": 2,
        "generate": {"cpu": True, "max-len-b": 12, "num-workers": 0},
        "score": {"reference": str(corpus / "test.tgt"), "tokenize": "none", "samples": 50},
        "speed": {"updates": 5, "warmup": 5, "repeats": 1},
        "systems": {
            "plain": {"flags": {"arch": "transformer"}},
            "biarn": {"flags": {"arch": "transformer_biarn"}, "start_from": "plain"},
        },
    }


def write(folder: Path, experiment: dict[str, Any]) -> str:
    (folder / "t.yaml").write_text(yaml.safe_dump(experiment, sort_keys=False))
    return str(folder / "t.yaml")


def start(*argv: str, log: Path) -> "subprocess.Popen[bytes]":
    """Start the command in a separate process."""
    with open(log, "wb") as stream:
        return subprocess.Popen(
            [sys.executable, "-m", "fairseq_recur", "experiment", *argv], cwd=ROOT,
            stdout=stream, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip


def forked_popen(
    command: list[str], *, stdout: IO[bytes], stderr: IO[bytes] | int, env: dict[str, str], **_: Any
) -> Fork:
    """Replaces `subprocess.Popen`."""
    own = len(runner.PROGRAM)
    assert command[:own] == runner.PROGRAM
    return Fork(partial(main, command[own:]), stdout, stderr, env)


@pytest.fixture(scope="module")
def forked() -> Iterator[None]:
    """Run the commands of experiments as forks, so that none has to import torch again."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (runner, speed):
            names = {**vars(subprocess), "Popen": forked_popen}
            patch.setattr(module, "subprocess", SimpleNamespace(**names))
        patch.setattr(runner, "POLL", 0.05)
        yield


def wait_for(what: Callable[[], Any], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, corpus: Path, forked: None) -> Path:
    """A finished experiment, which was killed in its first training and started again."""
    folder = tmp_path_factory.mktemp("experiment")
    # Every name is relative: a folder that is continued, looked at and scored has to be the same.
    given = {**content(corpus), "data": os.path.relpath(corpus / "bin", folder)}
    file, work = os.path.relpath(write(folder, given), ROOT), folder / "work"
    run = partial(main, ["experiment", "run", file, "--work-dir", str(work)])

    def first() -> int:
        """Run it with a training in a new interpreter."""
        runner.subprocess = subprocess
        return run()

    with pytest.MonkeyPatch.context() as here:
        here.chdir(ROOT)
        with open(folder / "first.log", "wb") as stream:
            process = Fork(first, stream)
        log = work / "plain/seed1/train.log"
        wait_for(lambda: log.is_file() and "num_updates=8" in log.read_text())
        process.kill()
        process.wait()
        # The training itself may outlive it, and the second start waits for it.
        assert not (work / "plain/seed1/test.txt").exists()
        assert run() == 0
    return folder


@pytest.mark.slow
def test_killed_and_resumed_is_as_never_stopped(
    done: Path, corpus: Path, cli: Callable[..., str], tmp_path: Path
) -> None:
    state = json.loads((done / "work/plain/seed1/state.json").read_text())
    words = state["train"]["key"][1:]
    words[words.index("--save-dir") + 1] = str(tmp_path)
    words[words.index("--log-file") + 1] = str(tmp_path / "log")
    cli("train", *words, "--user-dir", USER_DIR)
    own, other = (
        torch.load(folder / "checkpoint_last.pt", weights_only=False)["model"]
        for folder in (done / "work/plain/seed1", tmp_path)
    )
    assert own.keys() == other.keys() and all(torch.equal(own[k], other[k]) for k in own)


def test_the_results(done: Path, corpus: Path) -> None:
    results = json.loads((done / "work/results.json").read_text())
    runs = {run["system"]: run for run in results["runs"]}
    assert {*runs} == {"plain", "biarn"}
    references = (corpus / "test.tgt").read_text().splitlines()
    for name, run in runs.items():
        texts = read_hypotheses(done / "work" / name / "seed1/test.txt", 20)
        expected = BLEU(tokenize="none", force=True).corpus_score(texts, [references]).score
        assert expected == pytest.approx(run["scores"]["BLEU"], abs=1e-9)
        assert run["epochs"] == 6 and run["updates"] > 6 and len(run["valid_loss"]) == 6
        averaged = {"checkpoints": ["checkpoint6.pt", "checkpoint5.pt"], "updates": run["updates"]}
        assert run["averaged"] == averaged
    updates = [point[0] for point in runs["biarn"]["valid_loss"]]
    observed = runs["biarn"]["observed"]
    assert runs["plain"]["observed"] == {} and "step_distance_recurrence_0" in observed
    assert all([point[0] for point in points] == updates for points in observed.values())
    assert [c["seed"] for c in results["comparisons"]] == [run["seed"] for run in runs.values()][:1]
    compared = results["comparisons"][0]["metrics"][0]
    assert [s["system"] for s in compared["systems"]] == ["plain", "biarn"]
    assert {*compared["systems"][1]["p"]} == {"bootstrap", "randomization"}
    assert all(0 < p <= 1 for p in compared["systems"][1]["p"].values())
    weights = torch.load(done / "work/biarn/seed1/average.pt", weights_only=False)["model"]
    buffers = [k for k in weights if k.endswith("version") or "_float_tensor" in k]
    count = sum(w.numel() for k, w in weights.items() if k not in buffers)
    tied = weights["decoder.output_projection.weight"].numel()
    assert results["parameters"]["biarn"] in (count, count - tied)
    speeds = results["speed"]["systems"]["biarn"]
    assert len(speeds["updates_per_second"]) == len(speeds["sentences_per_second"]) == 1
    assert min(*speeds["updates_per_second"], *speeds["sentences_per_second"]) > 0
    assert min(*speeds["training_mib"], *speeds["decoding_mib"]) > 50


def test_speed_is_measured_from_scratch(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ./checkpoints has, which is where fairseq looks for a training to resume."""
    monkeypatch.chdir(tmp_path)
    Path("checkpoints").mkdir()
    shutil.copy(done / "work/plain/seed1/checkpoint_last.pt", "checkpoints")
    (run, _) = runs_of(read_experiment([done / "t.yaml"]), tmp_path)
    run.folder.mkdir(parents=True)
    assert speed.training_speed(run, {"OMP_NUM_THREADS": "1"})[0] > 0
    assert "No existing checkpoint found" in (tmp_path / "speed.out").read_text()


@pytest.mark.slow
def test_other_test_sets_are_scored(
    done: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for suffix in ("src", "tgt"):
        shutil.copyfile(corpus / f"valid.{suffix}", tmp_path / f"more.{suffix}")
    argv = ["experiment", "score", str(done / "work"), "--test", "same", str(corpus / "test")]
    argv += ["--test", "seed7", str(tmp_path / "more")]
    assert main(argv) == 0
    assert "Reversing: seed7" in capsys.readouterr().out
    own, same, more = (
        json.loads((done / "work" / folder / "results.json").read_text())
        for folder in (".", "other_sets/same", "other_sets/seed7")
    )
    for key in ("runs", "comparisons", "outputs", "machine", "versions"):
        assert same[key] == own[key]  # the set of the experiment itself
    texts = read_hypotheses(done / "work/other_sets/seed7/biarn/seed1/test.txt", 20)
    references = (corpus / "valid.tgt").read_text().splitlines()
    expected = BLEU(tokenize="none", force=True).corpus_score(texts, [references]).score
    (biarn,) = [run for run in more["runs"] if run["system"] == "biarn"]
    assert biarn["scores"]["BLEU"] == pytest.approx(expected, abs=1e-9)
    # Another text under the same name is decoded again, and so is a model that has changed.
    outputs = [done / f"work/other_sets/same/{name}/seed1/test.txt" for name in ("plain", "biarn")]
    before = [output.stat().st_mtime_ns for output in outputs]
    (done / "work/biarn/seed1/average.pt").touch()
    (tmp_path / "more.src").write_text((corpus / "test.src").read_text())
    (tmp_path / "more.tgt").write_text((corpus / "test.tgt").read_text())
    assert main(argv) == 0
    after = [output.stat().st_mtime_ns for output in outputs]
    assert [a == b for a, b in zip(after, before)] == [True, False]
    again = json.loads((done / "work/other_sets/seed7/results.json").read_text())
    assert again["runs"] == own["runs"]


def test_wrong_test_sets_are_refused(
    done: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short.src").write_text("w1\n")
    (tmp_path / "short.tgt").write_text("w1\nw2\n")
    (tmp_path / "empty.src").write_text("")
    sets = [("a/b", corpus / "test"), ("12:30", corpus / "test"), ("${x}", corpus / "test")]
    sets += [(name, tmp_path / name) for name in ("none", "short", "empty")]
    argv = [word for name, prefix in sets for word in ("--test", name, str(prefix))]
    assert main(["experiment", "score", str(done / "work"), *argv]) == 2
    said = capsys.readouterr().err
    for words in ("--test a/b: expected", "none.src", "1 lines and", "empty.src is empty"):
        assert words in said
    assert "--test 12:30: fairseq misreads ':'" in said and "--test ${x}: fairseq misr" in said
    assert not (done / "work/other_sets/none").exists()


def test_without_a_trained_system_nothing_is_scored(
    done: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "work").mkdir()
    shutil.copy(done / "work" / ABOUT, tmp_path / "work")
    argv = ["experiment", "score", str(tmp_path / "work"), "--test", "a", str(corpus / "test")]
    assert main(argv) == 2
    assert "work has no trained system; run the experiment first" in capsys.readouterr().err


def test_a_test_set_that_a_metric_cannot_score_is_refused(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is decoded; a phone error rate needs a phone in each reference."""
    shutil.copytree(done / "work", tmp_path / "work", ignore=shutil.ignore_patterns("*.pt"))
    for path in (done / "work").glob("*/seed1/*.pt"):
        (tmp_path / path.relative_to(done)).touch()
    about = tmp_path / "work" / ABOUT
    given = json.loads(about.read_text())
    about.write_text(json.dumps({**given, "set": [*given["set"], "score.metrics=[per]"]}))
    (tmp_path / "blank.src").write_text("w1\nw2\n")
    (tmp_path / "blank.tgt").write_text("w1\n\n")
    argv = ["--test", "blank", str(tmp_path / "blank")]
    assert main(["experiment", "score", str(tmp_path / "work"), *argv]) == 2
    said = capsys.readouterr().err
    assert f"--test blank, {tmp_path}/blank.tgt: PER: found 1 empty references" in said
    assert not (tmp_path / "work/other_sets/blank").exists()


def test_a_folder_that_was_renamed(
    done: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is done again in it, unless fairseq would misread its new name."""
    argv = ["experiment", "run", str(done / "t.yaml"), "--work-dir", str(tmp_path / "new")]
    shutil.copytree(done / "work", tmp_path / "new", ignore=shutil.ignore_patterns("*.pt"))
    made = [*(tmp_path / "new").glob("*/seed1/*")]
    before = {path: path.stat().st_mtime_ns for path in made}
    assert main(argv) == 0
    assert {path: path.stat().st_mtime_ns for path in made} == before
    (tmp_path / "new").rename(tmp_path / "12:30")
    test = ["--test", "same", str(corpus / "test")]
    assert main(["experiment", "score", str(tmp_path / "12:30"), *test]) == 2
    said = capsys.readouterr().err
    assert "12:30: fairseq misreads ':' in its path" in said and "trained system" not in said


def test_another_checkpoint_of_a_finished_experiment_is_only_decoded(
    done: Path, tmp_path: Path
) -> None:
    shutil.copytree(done / "work", tmp_path / "work")
    given = yaml.safe_load((done / "t.yaml").read_text())
    given["data"] = str((done / given["data"]).resolve())
    file = write(tmp_path, {**given, "speed": None})
    before = (tmp_path / "work/plain/seed1/train.log").read_bytes()
    argv = ["experiment", "run", file, "--work-dir", str(tmp_path / "work"), "--systems", "plain"]
    assert main([*argv, "--set", "checkpoint=last"]) == 0
    assert (tmp_path / "work/plain/seed1/train.log").read_bytes() == before
    state = json.loads((tmp_path / "work/plain/seed1/state.json").read_text())
    assert "plain/seed1/checkpoint_last.pt" in state["generate"]["key"]


def test_the_text_of_another_test_set(corpus: Path) -> None:
    """With a subword encoder it is plain text; otherwise it has pieces, which are joined again."""

    def run(*flags: str) -> Any:
        argv = ["generate", str(corpus / "bin"), "--path", "x", *flags]
        return SimpleNamespace(generate_argv=lambda: argv)

    plain = experiment_score.conversion(run("--bpe", "characters"))
    assert plain.encode("ab c").split() == ["a", "b", "\u2581", "c"]
    assert plain.decode("ab@@ c") == "ab@@ c" and plain.mark is None
    pieces = experiment_score.conversion(run("--remove-bpe"))
    assert pieces.encode("ab@@ c") == "ab@@ c" and pieces.decode("ab@@ c") == "abc"
    assert pieces.mark == "@@" and experiment_score.conversion(run()).mark is None
    assert plain.longest == pieces.longest == 1024
    for flags in (["--truncate-source"], ["--task", "summarization"]):
        assert experiment_score.conversion(run(*flags)).longest == inf


def test_a_divided_test_set_is_joined_first(corpus: Path, tmp_path: Path) -> None:
    """So text and its subwords, by these codes or others, are the same test set."""
    (tmp_path / "codes").write_text("#version: 0.2\na b\nc d</w>\n")
    with open(tmp_path / "model", "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["ab cd ab cd abc"] * 5), model_writer=file, vocab_size=10,
            model_type="bpe", minloglevel=2,
        )  # fmt: skip
    for flags, divided in (
        (["subword_nmt", "--bpe-codes", "codes"], ["ab@@ c cd", "a@@ b@@ c cd"]),
        (["sentencepiece", "--sentencepiece-model", "model"], ["\u2581ab c \u2581cd"]),
    ):
        argv = ["generate", str(corpus / "bin"), "--path", "x", "--bpe", *flags[:-1]]
        argv.append(str(tmp_path / flags[-1]))
        text = experiment_score.conversion(SimpleNamespace(generate_argv=lambda argv=argv: argv))
        pieces = text.encode("abc cd")
        assert len(pieces.split()) > 2 and text.mark is None
        for line in divided:
            assert text.decode(line) == "abc cd" and text.encode(line) == pieces
        for line in ("abc cd", "@@ -1 +1 @@", "a \u2014 b"):
            assert text.decode(line) == line


@pytest.mark.parametrize("kind, mark", experiment_score.MARKS.items())
def test_marks_are_what_fairseq_removes(kind: str, mark: str) -> None:
    text = f"ab{mark} c" if mark == "@@" else f"{mark}ab c"
    assert mark not in data_utils.post_process(text, kind)


def test_a_set_without_subwords_is_refused(corpus: Path, tmp_path: Path) -> None:
    """If its words are not in the dictionary of subwords; words that are need no division."""
    sets = {"words": "w1 unseen\nw2", "divided": "w1 un@@ seen\nw2", "known": "w1\nw2"}
    for name, text in sets.items():
        (tmp_path / f"{name}.src").write_text(f"{text}\n")
    tests = [(name, str(tmp_path / name)) for name in sets]
    experiment: Any = SimpleNamespace(data=str(corpus / "bin"), source="src", target="tgt")
    text = experiment_score.Conversion(str, str, mark="@@")
    with pytest.raises(ConfigError, match="lacks 1 of the 3 subwords of .*words.src") as error:
        experiment_score.check_subwords(experiment, tests, text)
    assert str(error.value).count("--test") == 1
    experiment_score.check_subwords(experiment, tests, replace(text, mark=None))
    known, letters = [tests[2]], lambda line: " ".join(line)
    with pytest.raises(ConfigError, match="lacks 4 of the 4 subwords of .*known.src"):
        experiment_score.check_subwords(experiment, known, replace(text, mark=None, encode=letters))
    (tmp_path / "known.tgt").write_text("w1 w2\nw3\n")
    with pytest.raises(ConfigError, match="known.tgt is not divided, no subword has \u2581"):
        experiment_score.check_subwords(experiment, known, replace(text, mark="\u2581"))


def test_many_unknown_pieces_are_named(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fifth of them is still accepted: the text may be of another kind."""
    experiment: Any = SimpleNamespace(data=str(corpus / "bin"), source="src", target="tgt")
    text = experiment_score.Conversion(str, str, mark="@@")
    sets = {"fifth": "w1 w2 w3 w4 un@@", "tenth": "w1 w2 w3 w4 un@@ w1 w1 w1 w1 w1"}
    for name, line in sets.items():
        (tmp_path / f"{name}.src").write_text(f"{line}\n")
        experiment_score.check_subwords(experiment, [(name, str(tmp_path / name))], text)
    said = capsys.readouterr().out
    assert "warning: --test fifth: the dictionary lacks 20.0% of the subwords of" in said
    assert "tenth" not in said


def test_a_line_that_is_too_long_is_refused(
    done: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is decoded."""
    for name, count in (("long", 1024), ("most", 1023)):
        (tmp_path / f"{name}.src").write_text("w1\n" + "w1 " * count + "\n")
        (tmp_path / f"{name}.tgt").write_text("w1\nw1\n")
    argv = [word for name in ("long", "most") for word in ("--test", name, str(tmp_path / name))]
    assert main(["experiment", "score", str(done / "work"), *argv]) == 2
    said = capsys.readouterr().err
    assert "line 2 of " in said and "long.src has 1,024 subwords, and the systems read at m" in said
    assert "most 1,023; divide or shorten it" in said and "most.src" not in said
    assert not (done / "work/other_sets/long").exists()


def test_a_model_that_is_gone_is_named(
    done: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = read_experiment([str(done / "t.yaml")])
    model = next(run.model for run in runs_of(experiment, done / "work"))
    argv = ["experiment", "score", str(done / "work"), "--test", "gone", str(corpus / "test")]
    aside = model.rename(model.with_suffix(".aside"))
    try:
        assert main(argv) == 2
    finally:
        aside.rename(model)
    said = capsys.readouterr().err
    assert f"was trained, but {model} is missing; restore it" in said
    assert said.count("is missing") == 1 and not (done / "work/other_sets/gone").exists()


def test_the_longest_line_of_all_systems(tmp_path: Path) -> None:
    """That of the system with the fewest positions; a source that is truncated has no limit."""
    (tmp_path / "a.src").write_text("w1 w2 w3\n")
    systems: Any = [
        SimpleNamespace(train_flags=lambda flags=flags: flags)
        for flags in ({}, {"max-source-positions": 3}, {"max-source-positions": None})
    ]
    check = partial(experiment_score.check_lengths, files=[str(tmp_path / "a.src")], encode=str)
    check([systems[0], systems[2]], longest=4)
    check(systems, longest=inf)
    with pytest.raises(ConfigError, match="a.src has 3 subwords, and the systems read at most 2;"):
        check(systems, longest=1024)


def test_a_line_begins_as_in_the_experiment(corpus: Path, tmp_path: Path) -> None:
    """CodeT5 reads <s> before a text."""
    shutil.copytree(corpus / "bin", tmp_path / "bin")
    file = write(tmp_path, {**content(corpus), "data": str(tmp_path / "bin")})
    experiment = read_experiment([file])
    assert experiment_score.with_start(experiment, str.upper)("a b") == "A B"
    words = Dictionary.load(str(tmp_path / "bin/dict.src.txt"))
    write_binary(["<s> w1 w2"], words, tmp_path / "bin/test.src-tgt.src")
    assert experiment_score.with_start(experiment, str.upper)("a b") == "<s> A B"


def test_a_system_starts_from_another(done: Path) -> None:
    results = json.loads((done / "work/results.json").read_text())
    runs = {run["system"]: run for run in results["runs"]}
    command = runs["biarn"]["command"]
    assert command[command.index("--finetune-from-model") + 1] == "plain/seed1/average.pt"
    said = (done / "work/biarn/seed1/train.err").read_text()
    said += (done / "work/biarn/seed1/train.out").read_text()
    assert "fresh" in said, "the parts that the baseline lacks are named"
    first = {name: run["valid_loss"][0][1] for name, run in runs.items()}
    assert first["biarn"] < first["plain"]


def test_what_is_done_is_not_done_again(
    done: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = done / "work"
    made = [work / "speed.json", *work.glob("*/seed1/*")]
    before = {p: p.stat().st_mtime_ns for p in made}
    argv = ["experiment", "run", str(done / "t.yaml"), "--work-dir", str(work)]
    argv += ["--systems", "plain"]
    with monkeypatch.context() as elsewhere:  # where the table is written anew
        elsewhere.setattr(runner.machine, "machine", lambda: "another machine")
        assert main(argv) == 0
    assert {p: p.stat().st_mtime_ns for p in made} == before
    results = json.loads((work / "results.json").read_text())
    assert {*results["parameters"]} == {"plain", "biarn"} and len(results["runs"]) == 2
    assert results["machine"] == runner.machine.machine()
    capsys.readouterr()
    described, free = experiment_status.describe, []

    def describe(run: Any) -> str:
        free.append(hold(work / LOCK) is not None)  # a status that is read slowly stops nothing
        return described(run)

    monkeypatch.setattr(experiment_status, "describe", describe)
    assert main(["experiment", "status", str(work)]) == 0 and free == [True]
    said = capsys.readouterr().out
    assert "nothing is running" in said and "plain seed 1: done" in said and "# Reversing" in said


def test_other_settings_are_refused(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["experiment", "run", str(done / "t.yaml"), "--work-dir", str(done / "work")]
    assert main([*argv, "--set", "train.lr=0.5"]) == 2
    said = capsys.readouterr().err
    assert "plain seed 1: --lr was 0.02, is 0.5" in said and "use another --work-dir" in said


def test_an_unsuitable_start_is_refused_before_anything_is_done(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint that is missing, damaged, of another program, or of another model."""
    frozen = (ROOT / "tests" / "frozen" / "rsa_transformer.pt").read_bytes()
    (tmp_path / "damaged.pt").write_bytes(frozen[: len(frozen) // 2])
    (tmp_path / "other.pt").write_bytes(frozen)
    torch.save({"weight": torch.zeros(2)}, tmp_path / "foreign.pt")
    argv = ["experiment", "run", str(tmp_path / "t.yaml"), "--work-dir", str(tmp_path / "work")]
    for name, where, said in (
        ("absent", "start", "no such file. Give a file that fairseq-train wrote"),
        ("damaged", "start", "bytes that are not a PyTorch checkpoint, or a truncated"),
        ("foreign", "start", "not a fairseq checkpoint: it holds [weight]"),
        ("other", "plain", "the checkpoint does not fit the model"),
    ):
        systems = {"plain": {"flags": {"arch": "transformer_biarn"}}}
        write(tmp_path, {**content(corpus), "start": f"{name}.pt", "systems": systems})
        assert main(argv) == 2
        printed = capsys.readouterr().err
        assert printed.count(said) == 1 and f"\n- {where}: " in printed
        assert not (tmp_path / "work" / "plain").exists()
        own = {row: {**systems["plain"], "start": f"{name}.pt"} for row in ("plain", "other")}
        write(tmp_path, {**content(corpus), "systems": own})
        assert main(argv) == 2
        # A file is bad once, or fits no row.
        where = {"start": "systems.plain.start", "plain": "plain, other"}[where]
        printed = capsys.readouterr().err
        assert printed.count(said) == 1 and f"\n- {where}: " in printed


def test_everything_wrong_is_reported_before_anything_is_done(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = content(corpus)
    experiment["systems"]["plain"]["flags"]["no-such-flag"] = 1
    experiment["systems"]["biarn"]["flags"]["recurrence-fused-layers"] = 7
    argv = ["experiment", "run", write(tmp_path, experiment), "--work-dir", str(tmp_path / "work")]
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert "plain: " in said and "train: unknown argument '--no-such-flag'" in said
    assert "biarn: " in said and "--recurrence-fused-layers 7: the decoder has 2 layers" in said
    experiment = content(corpus)
    del experiment["train"]["max-epoch"]
    write(tmp_path, experiment)
    assert main(argv) == 2 and "training would never end" in capsys.readouterr().err
    for checkpoint, flag in (
        (5, "no-epoch-checkpoints"), ("best", "disable-validation"),
        ("last", "no-last-checkpoints"), ("last", "no-save"),
    ):  # fmt: skip
        experiment = {**content(corpus), "checkpoint": checkpoint}
        experiment["train"][flag] = True
        write(tmp_path, experiment)
        assert main([*argv, "--systems", "plain"]) == 2
        assert f": {checkpoint} is never saved with --{flag};" in capsys.readouterr().err
    experiment = content(corpus)
    experiment["score"]["reference"] = str(corpus / "train.tgt")
    experiment["generate"]["beams"] = "many"
    write(tmp_path, experiment)
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert "train.tgt has 200 lines, but the subset test has 20" in said and "--beams" in said
    experiment = content(corpus)
    experiment["score"] |= {"metrics": ["bleu", "comet"], "source": str(corpus / "test.src")}
    codes = {"bpe": "sentencepiece", "sentencepiece-model": "missing.model"}
    write(tmp_path, {**experiment, "generate": codes})
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert "unbabel-comet" in said and f"file {tmp_path / 'missing.model'} not found" in said
    assert not (tmp_path / "work").exists()


@pytest.mark.slow
def test_a_failure_is_reported_and_the_others_go_on(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], forked: None
) -> None:
    experiment = {**content(corpus), "checkpoint": "last", "speed": None, "baseline": "fine"}
    experiment["train"]["max-epoch"] = 1
    broken = {"arch": "transformer", "optimizer": "adam", "adam-betas": "(0.9, nonsense)"}
    experiment["systems"] = {
        "broken": {"flags": broken},
        "after": {"flags": {"arch": "transformer"}, "start_from": "broken"},
        "fine": {"flags": {"arch": "transformer"}},
    }
    argv = ["experiment", "run", write(tmp_path, experiment), "--work-dir", str(tmp_path / "work")]
    assert main(argv) == 1
    said = capsys.readouterr()
    assert "broken seed 1: train failed (2)" in said.out and "nonsense" in said.out
    assert "after seed 1 cannot be trained without broken seed 1" in said.out
    assert "broken seed 1 failed" in said.err and "after seed 1 failed" in said.err
    results = json.loads((tmp_path / "work/results.json").read_text())
    assert [run["system"] for run in results["runs"]] == ["fine"]


@pytest.mark.slow
def test_in_the_background_and_stopped(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = {**content(corpus), "speed": None}
    experiment["train"]["max-epoch"] = 5000
    file, work = write(tmp_path, experiment), tmp_path / "work"
    argv = ["run", file, "--work-dir", str(work)]
    assert start(*argv, "--background", log=tmp_path / "log").wait(120) == 0
    assert is_held(work), "from the beginning"
    assert "experiment stop" in (tmp_path / "log").read_text()
    log = work / "plain/seed1/train.log"
    wait_for(lambda: log.is_file() and "num_updates=3" in log.read_text())
    assert hold(work / LOCK) is None
    assert main(["experiment", *argv]) == 2
    assert "an experiment runs in" in capsys.readouterr().err
    assert main(["experiment", "status", str(work)]) == 0
    said = capsys.readouterr().out
    assert "is running" in said and "plain seed 1: update " in said
    assert "biarn seed 1: waiting" in said
    assert main(["experiment", "stop", str(work)]) == 0
    assert hold(work / "plain/seed1" / LOCK) is not None, "the training has ended as well"
    assert main(["experiment", "stop", str(work)]) == 0
    assert "nothing is running" in capsys.readouterr().out
    assert "stopped by SIGTERM" in (work / "run.log").read_text()


def test_no_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for action in ("status", "stop"):
        assert main(["experiment", action, str(tmp_path)]) == 2
        assert "no experiment in" in capsys.readouterr().err


EXAMPLE = ROOT / "examples/modeling_recurrence"
TABLES = sorted(path.stem for path in (EXAMPLE / "tables").iterdir())
CORPORA = sorted(path.stem for path in (EXAMPLE / "corpora").iterdir())
PAIRS = [
    # One in the fast tests: each builds all models of its table.
    pytest.param(table, name, marks=[] if name == "multi30k_cpu" else pytest.mark.slow)
    for table in TABLES
    for name in CORPORA
    if "multi30k" == name or "overview" == table
]


@pytest.mark.parametrize("name", CORPORA)
def test_a_corpus_has_what_prepare_writes_into_one_folder(name: str) -> None:
    content = yaml.safe_load((EXAMPLE / f"corpora/{name}.yaml").read_text())
    if "data" in content:  # not those that change another one
        folder = Path(content["data"]).parent
        assert content["generate"]["bpe-codes"] == str(folder / "codes")
        assert Path(content["score"]["reference"]).parent == folder


BEFORE = {name: ["multi30k_trained"] for name in ("further", "further_gpu")}
"""A file that changes another one, which must stand before it."""


@pytest.mark.parametrize("table, corpora", PAIRS)
def test_the_examples_can_be_run(
    table: str, corpora: str, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = {"data": corpus / "bin", "source": "src", "target": "tgt"}
    here["score.reference"] = corpus / "test.tgt"
    here["generate.bpe-codes"] = tmp_path / "codes"
    here["generate.bpe-codes"].write_text("#version: 0.2\na b\n")
    sizes = [*SMALL, "--decoder-embed-dim", "16", "--decoder-ffn-embed-dim", "24"]
    small = {f"train.{name}": value for name, value in flags_of(sizes).items()}
    changes = [f"--set={key}={value}" for key, value in {**here, **small}.items()]
    files = [str(EXAMPLE / f"tables/{table}.yaml")]
    files += [str(EXAMPLE / f"corpora/{name}.yaml") for name in [*BEFORE.get(corpora, []), corpora]]
    argv = ["experiment", "run", *files, "--work-dir", str(tmp_path / "work"), "--seeds", "4"]
    # What needs a GPU is not built here.
    argv += ["--dry-run", "--set", "train.cpu=true", "--set", "train.fp16=null"]
    assert main([*argv, *changes]) == 0
    said = capsys.readouterr().out.splitlines()
    systems = yaml.safe_load((EXAMPLE / f"tables/{table}.yaml").read_text())["systems"]
    assert len({line for line in said if " train " in line}) == len(systems)
    assert not (tmp_path / "work").exists()


def test_data_of_the_opposite_direction_are_accepted(corpus: Path, tmp_path: Path) -> None:
    """As fairseq does: the files of a pair are the same for both directions."""
    for file in (corpus / "bin").iterdir():
        shutil.copy(file, tmp_path / file.name.replace("src-tgt", "tgt-src"))
    experiment = {**content(corpus), "data": str(tmp_path)}
    argv = ["experiment", "run", write(tmp_path, experiment), "--work-dir", str(tmp_path / "work")]
    assert main([*argv, "--systems", "plain", "--dry-run"]) == 0


def test_a_new_file_has_a_control(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It passes every check, and all but the first training start from the same model."""
    file = tmp_path / "new.yaml"
    words = ["experiment", "new", file, "--data", corpus / "bin", "-s", "src", "-t", "tgt"]
    words += ["--reference", corpus / "test.tgt", "--system", "transformer_biarn", "srformer"]
    new = [str(word) for word in words]
    assert main(new) == 0
    capsys.readouterr()
    assert main(["experiment", "run", str(file), "--work-dir", str(tmp_path), "--dry-run"]) == 0
    printed = capsys.readouterr().out.splitlines()
    lines = [line.split()[1] for line in printed if line.startswith("fairseq-recur ")]
    trained = [line for line in printed if " train " in line]
    assert lines.count("average") == 4, "which writes what generate reads"
    starts = ["--finetune-from-model" in line and "/transformer/seed1" in line for line in trained]
    assert starts == [False, True, True, True]
    assert "--segment-size 8" in trained[3]  # 64 is longer than a sentence
    assert (
        "--recurrence none" in trained[1]
        and yaml.safe_load(file.read_text())["baseline"] == "control"
    )
    scratch = tmp_path / "scratch.yaml"
    new[2] = str(scratch)
    assert main([*new, "--from-scratch"]) == 0
    written = yaml.safe_load(scratch.read_text())
    assert written["baseline"] == "transformer" and '"control"' not in scratch.read_text()
    assert [*written["systems"]] == ["transformer", "transformer_biarn", "srformer"]
    assert not any("start_from" in system for system in written["systems"].values())
    thresholds = [
        yaml.safe_load(path.read_text())["systems"]["srformer"]["flags"].get(
            "srformer-threshold-init"
        )
        for path in (file, scratch)
    ]
    assert thresholds == [None, 10]
    wrong = ["biarn", "transformer", "control"]
    assert main([*new, "--size", "iwslt_de_en", "--system", *wrong]) == 2
    said = capsys.readouterr().err
    assert "exists already" in said and "no architecture biarn_iwslt_de_en" in said
    for name in wrong[1:]:
        assert f"--system {name} is always in the table" in said
