"""`fairseq-recur translate` and `summarize`: what is known before a model is loaded."""

import io
import sys

import pytest

from fairseq_recur.cli import main
from fairseq_recur.errors import ConfigError
from fairseq_recur.search import search_options
from tests.unit.test_cli_main import root_logger  # noqa: F401  (used by every test)


@pytest.mark.parametrize("command", ["translate", "summarize"])
def test_wrong_options_are_named_together_before_the_model_is_loaded(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder of the model does not exist, and the input is empty."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    words = f"none --beam 0 --batch-size {10**25} --max-tokens -1 --lenpen nan --min-len 3"
    assert main([command, *words.split()]) == 2
    printed = capsys.readouterr().err
    assert f"invalid options of {command}:\n" in printed
    for said in ("--beam 0", f"--batch-size {10**25}", "--max-tokens -1"):
        assert f"- {said}: expected at least 1 and at most 2147483647\n" in printed
    assert "- --lenpen nan: expected a finite number\n" in printed
    assert "nbest" not in printed and "none" not in printed and "--min-len" not in printed


@pytest.mark.parametrize(
    "beam, nbest, said",
    [(0, 1, "^beam=0: expected a beam of at least 1$"), (2, 3, "^nbest=3 of beam=2: expected")],
)
def test_a_wrong_beam_is_named_without_what_nobody_gave(beam: int, nbest: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        search_options({"beam": beam}, nbest, 5, 100)
