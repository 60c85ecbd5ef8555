"""`check`: its output as text and JSON, and its exit status."""

import json

import pytest

from fairseq_recur import compat
from fairseq_recur.cli import main
from fairseq_recur.cli.check import registered
from fairseq_recur.compat import report
from fairseq_recur.models.config import (
    encoder_decoder_slots,
    forecaster_slots,
    language_model_slots,
)
from fairseq_recur.modules.options import flag
from tests.conftest import REGISTERED
from tests.unit.test_cli_main import root_logger  # noqa: F401  (used by every test)


def test_everything_registered_is_listed(capsys: pytest.CaptureFixture) -> None:
    found = registered()
    assert found["architectures"] == REGISTERED
    every = (encoder_decoder_slots, language_model_slots, forecaster_slots)
    for slot in (slot for slots in every for slot in slots()):
        assert found[flag(slot.option)] == list(slot.table)
    assert "adamw_fused" in found["optimizers"]
    main(["check"])
    printed = capsys.readouterr().out
    for name in (*REGISTERED, "adamw_fused", *(name for name, _ in compat.environment_report())):
        assert name in printed
    assert max(map(len, printed.splitlines())) <= 100


def test_each_mend_has_its_state_and_reason(capsys: pytest.CaptureFixture) -> None:
    def words(text: str) -> str:
        return " ".join(text.split())

    main(["check"])
    short = words(capsys.readouterr().out)
    main(["check", "--verbose"])
    long = words(capsys.readouterr().out)
    assert len(compat.MENDS) > 20
    for mend in compat.MENDS:
        assert f"{mend.name} {mend.status}" in short and f"{mend.name} {mend.status}" in long
        assert words(mend.reason) in long and words(mend.reason) not in short
        assert words(mend.until) in long


def test_a_mend_that_failed_is_an_error(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = compat.Mend("renamed", "what was wrong", "never", lambda: True)
    broken.patch("fairseq.utils:eval_boolean")(print)
    broken.apply()
    monkeypatch.setattr(report, "MENDS", [broken])
    monkeypatch.setattr(compat, "MENDS", [broken])
    assert main(["check"]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "1 failed renamed failed" in printed
    assert (
        "cannot apply 'renamed' to the installed libraries: fairseq.utils:eval_boolean" in printed
    )
    assert main(["check", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["mends"][0]["status"] == "failed"


@pytest.mark.parametrize("severity, status", [("note", 0), ("warning", 0), ("error", 1)])
def test_problems_have_a_remedy(
    severity: str, status: int, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = compat.Problem("the thing is broken", "mend the thing", severity)
    monkeypatch.setattr(compat, "known_problems", lambda: [problem])
    assert main(["check"]) == status
    assert (
        f"Known problems: 1\n  {severity}: the thing is broken\n      remedy: mend the thing\n"
        in capsys.readouterr().out
    )
    assert main(["check", "--json"]) == status
    assert json.loads(capsys.readouterr().out)["problems"] == [
        {"title": "the thing is broken", "remedy": "mend the thing", "severity": severity}
    ]


def test_no_problem(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "known_problems", lambda: [])
    assert main(["check"]) == 0
    assert "Known problems: none found" in capsys.readouterr().out
