"""The examples' scripts that take files: wrong calls are one message, not a traceback."""

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DATA = EXAMPLES / "quickstart" / "data"
FIGURES = {"modeling_recurrence": "figure5_cpu", "linear_and_nonlinear_rnn": "results"}
"""With a record that the script can draw."""

WRONG = [
    ("summarization/figure.py", [], "required: RESULTS.json, FIGURE.png"),
    ("summarization/figure.py", ["gone", "a.png"], "No such file or directory: 'gone'"),
    ("summarization/figure.py", ["text", "a.png"], "text: expected the results.json of an exp"),
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
