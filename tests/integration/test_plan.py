"""`fairseq-recur plan`, from its options to the launchers that take what it prints."""

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fairseq_recur.cli import main
from tests.conftest import OURS
from tests.integration.test_launch import LAUNCH, environment, value

BASE = ["--gpu", "v100-16", "--vocabulary", "1000", "--longest", "64"]
TINY = ["--arch", "transformer_biarn_tiny", *BASE]


def plan(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """Return the plan of a command line, as its JSON file has it."""
    file = tmp_path / "plan.json"
    assert main(["plan", "--json", str(file), *arguments]) == 0
    return json.loads(file.read_text())["plan"]


def refused(capsys: pytest.CaptureFixture, *arguments: str) -> str:
    assert main(["plan", *arguments]) == 2
    return capsys.readouterr().err


def test_a_plan_is_text_and_json(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    found = plan(tmp_path, *TINY, "--batch-tokens", "8192", "--gpus", "2", "--updates", "1000")
    printed = capsys.readouterr().out
    assert printed.startswith("A prediction")
    assert f"{found['parameters']:,}" in printed and "recurrence encoder" in found["flops"]
    assert found["max_tokens"] * found["update_freq"] * 2 == 8192
    seconds = found["seconds"]
    total = seconds.pop("total")
    assert total == pytest.approx(sum(seconds.values()))
    assert found["hours"] == pytest.approx(1000 * total / 3600)
    assert found["updates_per_second"] == pytest.approx(1 / total)
    assert 0 < found["mfu"] < 0.4, "no more than the products reach"


@pytest.mark.slow
def test_mfu_alone(tmp_path: Path) -> None:
    found = plan(tmp_path, *TINY, "--mfu", "0.25", "--batch-tokens", "200000")
    assert found["seconds"]["traffic"] == found["seconds"]["latency"] == 0
    flops = sum(found["flops"].values()) * 200000
    assert found["seconds"]["products"] == pytest.approx(flops / (0.25 * 125e12), rel=1e-6)


def test_the_time_is_that_of_the_planned_tokens(tmp_path: Path) -> None:
    """The step that is traced has whole sentences, and so another number of tokens."""
    found = plan(tmp_path, *TINY, "--mfu", "0.25", "--batch-tokens", "70")
    flops = sum(found["flops"].values()) * 70
    assert found["seconds"]["products"] == pytest.approx(flops / (0.25 * 125e12), rel=1e-6)


@pytest.mark.slow
def test_more_gpus_take_less_time_and_the_same_batch(tmp_path: Path) -> None:
    hours: list[float] = []
    for gpus in ("1", "8"):
        found = plan(tmp_path, *TINY, "--batch-tokens", "65536", "--max-tokens", "4096",
                     "--gpus", gpus)  # fmt: skip
        assert found["update_freq"] == 16 / int(gpus)
        hours.append(found["hours"])
    assert hours == sorted(hours, reverse=True)


@pytest.mark.slow
def test_what_is_printed_is_what_the_launchers_take(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    found = plan(tmp_path, *TINY, "--batch-tokens", "25000", "--gpus", "8", "--memory-efficient")
    line = re.search(r"^scripts/launch +(.+)$", capsys.readouterr().out, re.M)[1]
    settings = dict(word.split("=", 1) for word in line.split())
    done = subprocess.run(
        ["bash", str(LAUNCH / "node.sh"), "DATA", "--print"], env=environment(**settings),
        capture_output=True, text=True,
    )  # fmt: skip
    command = shlex.split(done.stdout)
    assert value(command, "--update-freq") == str(found["update_freq"])
    assert value(command, "--max-tokens") == str(found["max_tokens"])
    assert "--memory-efficient-fp16" in command


@pytest.mark.slow
def test_flags_of_the_model(tmp_path: Path) -> None:
    one = plan(tmp_path, *TINY)
    other = plan(tmp_path, *TINY, "--", "--recurrence-layers", "2", "--share-all-embeddings")
    ratio = other["flops"]["recurrence encoder"] / one["flops"]["recurrence encoder"]
    assert 1.5 < ratio < 4
    assert other["memory"]["weights"] == 2 * other["parameters"]


def test_everything_that_is_wrong_is_reported_at_once(capsys: pytest.CaptureFixture) -> None:
    message = refused(
        capsys, *TINY, "--lengths", "0", "90", "--reserve", "1", "--gpus", "0", "--mfu", "2",
        "--matmul-efficiency", "1.5", "--memory-efficient", "--precision", "fp32",
    )  # fmt: skip
    for word in ("--lengths 0", "--reserve 1", "--gpus 0", "--mfu 2", "--matmul-efficiency 1.5",
                 "--longest 64 is less", "--memory-efficient needs"):  # fmt: skip
        assert f"- {word}" in message


def test_model_and_device_are_among_what_is_wrong(capsys: pytest.CaptureFixture) -> None:
    message = refused(
        capsys, "--arch", "nope", "--gpu", "bar", "--updates", "0", "--flops", "-1", "--", "--fp16"
    )
    for words in ("unknown architecture 'nope'", "found --fp16 after --", "--gpu bar is unknown",
                  "--updates 0: expected", "--flops -1.0: expected"):  # fmt: skip
        assert f"- {words}" in message
    message = refused(capsys, *TINY, "--precision", "bf16", "--updates", "0")
    assert "- --precision bf16: " in message and "- --updates 0" in message


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((*TINY, "--gpu", "t4", "--flops", "65", "--precision", "bf16"), "T4, changed does not su"),
        ((*TINY, "--precision", "bf16"), "does not support it; expected one of fp32, fp16"),
        ((*TINY, "--longest", "2000"), "has 1024 positions"),
        ((*TINY, "--memory", "0.02"), "does not fit into Tesla V100 SXM2 16 GB, changed"),
        ((*TINY, "--network", "50"), "--network 50 has no effect with --nodes 1"),
        ((*TINY, "--mfu", "0.4", "--overhead", "5"), "--overhead 5 has no effect with --mfu"),
        ((*TINY, "--gpus", "3"), "not a multiple of 3 processes; give 24999 or 25002"),
        ((*TINY, "--max-tokens", "4096"), "give --max-tokens 3125, with --update-freq 8"),
        ((*TINY, "--max-tokens", "9"), r"expected \d+ \(--longest\) to \d+, the most that fits"),
        ((*TINY, "--max-tokens", "100000000"), "tokens 100000000: expected .* the most that fits"),
        ((*TINY, "--batch-tokens", "48"), "leaves 48 tokens for a step, fewer than one sentence"),
        ((*TINY, "--gpu", "gtx"), "--gpu gtx is unknown"),
        (("--arch", "transformer_biern", *BASE), "unknown architecture 'transformer_biern'"),
    ],
)
def test_one_wrong_thing(arguments: tuple, message: str, capsys: pytest.CaptureFixture) -> None:
    assert re.search(message, refused(capsys, *arguments))


@pytest.mark.slow
@pytest.mark.parametrize("arch", OURS)
def test_every_preset_can_be_planned(arch: str, tmp_path: Path) -> None:
    """At its full size; what the registry has, the plan knows."""
    found = plan(tmp_path, "--arch", arch, "--gpu", "h100", "--longest", "128")
    assert sum(found["flops"].values()) > 6 * 0.3 * found["parameters"]
    assert found["fits"] > 128 and found["hours"] > 0
