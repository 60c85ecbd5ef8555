"""What an experiment refuses before anything is trained, because it would show only afterwards."""

import json
import logging
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from fairseq_recur.cli import experiment_check, main
from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.reading import read_experiment
from fairseq_recur.experiments.runs import runs_of
from fairseq_recur.experiments.settings import Scoring
from fairseq_recur.scoring import comet
from tests.integration.test_experiments import content, write

FROZEN = Path(__file__).resolve().parents[1] / "frozen"
Refused = Callable[..., str]


@pytest.fixture
def refused(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Check one system of an experiment with changed keys; return what is said if it is refused."""

    def check(changed: dict[str, Any], work: Path = tmp_path / "work") -> str:
        file = write(tmp_path, {**content(corpus), **changed})
        argv = ["experiment", "run", file, "--work-dir", str(work), "--dry-run"]
        status = main([*argv, "--systems", "plain"])
        said = capsys.readouterr().err
        assert status == (2 if said else 0)
        return said

    return check


def test_what_could_not_be_scored(
    refused: Refused, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (corpus / "test.tgt").read_text().splitlines()
    (tmp_path / "gap").write_text("\n".join([*lines[:5], "", *lines[6:]]) + "\n")
    score: dict[str, Any] = {"reference": str(corpus / "test.tgt")}
    said = refused({"score": {"reference": "gap", "metrics": ["per"], "samples": 2_000_000}})
    assert "- score: the translations could not be scored:" in said
    assert "found 2000000 samples" in said and "found 1 empty references" in said
    loaders = lambda name: name, lambda file: None
    monkeypatch.setattr(comet, "comet_package", lambda: loaders)
    two = {"reference": [score["reference"], score["reference"]], "metrics": ["bleu", "comet"]}
    said = refused({"score": {**two, "source": str(corpus / "test.src")}})
    assert "COMET takes one reference, found 2" in said
    assert refused({"score": {**score, "samples": 1000, "metrics": ["per"]}}) == ""


def test_a_setting_of_the_score_without_effect(refused: Refused, corpus: Path) -> None:
    """As `fairseq-recur score` refuses it."""
    score = {"reference": str(corpus / "test.tgt"), "metrics": ["chrf"], "lowercase": True}
    assert refused({"score": score}) == ""
    source = str(corpus / "test.src")
    said = refused({"score": {**score, "tokenize": "zh", "source": source, "comet_model": "foo"}})
    for name, metric in (("tokenize", "bleu"), ("source", "comet"), ("comet_model", "comet")):
        assert f"{name} acts on {metric} and has no effect with the metrics chrf" in said
    assert "lowercase" not in said


def test_everything_is_reported_together(
    refused: Refused, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what is found after another problem; then no model of a metric is loaded."""

    def missing() -> None:
        raise ConfigError("COMET is not installed")

    monkeypatch.setattr(comet, "comet_package", missing)
    monkeypatch.setattr(Scoring, "built", property(lambda _: pytest.fail("it may be large")))
    train = {**content(corpus)["train"], "no-epoch-checkpoints": True}
    del train["max-epoch"]
    score: dict[str, Any] = {"reference": ["nowhere", "two"], "metrics": ["chrf", "comet"]}
    (tmp_path / "two").write_text("a\nb\n")
    score |= {"source": str(corpus / "test.src"), "tokenize": "zh", "samples": 2_000_000}
    changed = {"data": "wrong", "train": train, "generate": {"beams": 3}, "score": score}
    said = refused(changed)
    for words in (
        "- plain: neither --max-update nor --max-epoch is given",
        "- plain: no data folder ",
        "- plain: checkpoint: 2 is never saved with --no-epoch-checkpoints",
        "- generate: ",
        "--beams",
        "- score: the translations could not be scored:",
        f"- cannot read {tmp_path / 'nowhere'}: there is no such file",
        f"{corpus / 'test.src'} has 20 lines, but {tmp_path / 'two'} has 2; expected texts",
        "- COMET is not installed",
        "- tokenize acts on bleu",
        "- found 2000000 samples",
    ):
        assert words in said


def test_what_is_wrong_with_several_rows_is_said_once(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = {**content(corpus), "data": "wrong"}
    changed["systems"]["last"] = {"flags": {"arch": "transformer", "lr": "x"}}
    argv = ["experiment", "run", write(tmp_path, changed), "--work-dir", str(tmp_path / "work")]
    assert main([*argv, "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert said.count("no data folder") == 1 and "- plain, biarn: no data folder" in said
    assert "- last: " in said


@pytest.mark.parametrize(
    "search, said",
    [
        ({"beam": 0}, "beam=0: expected a beam of at least 1"),
        ({"max_len_b": -3}, "min_len=1 is more than the longest output for 1024 source tokens"),
        ({"temperature": 0}, "temperature=0.0: expected more than 0"),
        ({"sampling": True}, "nbest=1 of beam=5: fairseq-generate samples as many as it returns"),
        ({"sampling": True, "nbest": 5, "min-len": 9}, ""),
        ({"beam": 0, "sentencepiece-model": "none", "bpe": "sentencepiece"}, "none"),
    ],
)
def test_a_search_that_must_fail(
    search: dict[str, Any], said: str, corpus: Path, tmp_path: Path
) -> None:
    file = write(tmp_path, {**content(corpus), "generate": search})
    (run, *_) = runs_of(read_experiment([file]), tmp_path / "work")
    with pytest.raises(ConfigError, match=said) if said else nullcontext():
        experiment_check._check_generate(run)


def test_searches_and_seeds_are_reported_with_the_rest(refused: Refused, corpus: Path) -> None:
    generate = {**content(corpus)["generate"], "beam": -3}
    said = refused({"generate": generate, "seeds": [1, 99999999999, 2**31]})
    assert "- generate: beam=-3: expected a beam of at least 1" in said
    assert "- seeds: found 99999999999, expected at most 2147483647" in said
    assert refused({"seeds": [2**31 - 1]}) == ""


def test_a_start_that_does_not_fit_hides_no_warnings(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Of the systems after it."""
    levels: list[int] = []
    seen = lambda *_: levels.append(logging.root.manager.disable)
    monkeypatch.setattr(experiment_check, "_check_saved", seen)
    changed = {**content(corpus), "start": str(FROZEN / "t5_small.pt")}
    changed["systems"]["last"] = {"flags": {"arch": "transformer"}}
    argv = ["experiment", "run", write(tmp_path, changed), "--work-dir", str(tmp_path / "work")]
    assert main([*argv, "--dry-run"]) == 2
    assert "- plain, last: " in capsys.readouterr().err
    assert levels == [logging.INFO] * 3


@pytest.mark.parametrize("name, mark", [("12:30", "':'"), ("${x}", "'${'")])
def test_a_folder_that_fairseq_misreads(
    refused: Refused, tmp_path: Path, name: str, mark: str
) -> None:
    """Also if a link to it has another name: checkpoints have the real one."""
    (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / name)
    said = refused({}, tmp_path / "link")
    assert f"- --work-dir: {tmp_path / name}: fairseq reads {mark} in the name" in said


def test_the_folder_of_another_experiment(refused: Refused, corpus: Path, tmp_path: Path) -> None:
    def begin(name: str, data: str) -> None:
        file = tmp_path / "work" / name / "seed7/state.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"train": {"key": ["train", data]}}))

    own = str(corpus / "bin")
    begin("plain", "other")
    said = refused({})
    assert "has another experiment, plain on other, whose table would be lost" in said
    begin("row", own)
    assert "another experiment, plain, row on " in refused({})
    begin("biarn", own)
    assert refused({}) == ""


def test_a_test_sentence_that_is_too_long_for_the_model(refused: Refused, corpus: Path) -> None:
    lengths = [len(line.split()) + 1 for line in (corpus / "test.src").read_text().splitlines()]
    train = {**content(corpus)["train"], "max-source-positions": max(lengths)}
    assert refused({"train": train}) == ""
    taken_back = {"gen-subset": None}  # as if the flag were not there
    said = refused({"train": {**train, "max-source-positions": 1}, "generate": taken_back})
    assert "sentences of the subset test are longer" in said and "None" not in said
    said = refused({"train": {**train, "max-source-positions": max(lengths) - 1}})
    assert f"{lengths.count(max(lengths))} sentences of the subset test are longer" in said
    assert f"the first is sentence {lengths.index(max(lengths)) + 1};" in said


def test_a_test_sentence_that_is_too_long_for_a_batch(refused: Refused, corpus: Path) -> None:
    texts = [(corpus / f"test.{side}").read_text().splitlines() for side in ("src", "tgt")]
    longest = max(len(line.split()) + 1 for lines in texts for line in lines)
    generate = {**content(corpus)["generate"], "max-tokens": longest}
    assert refused({"generate": generate}) == ""
    said = refused({"generate": {**generate, "max-tokens": longest - 1}})
    assert f"generate: max-tokens {longest - 1}: the longest sentence of the subset test" in said
