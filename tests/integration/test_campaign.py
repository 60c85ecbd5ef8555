"""The campaign for a GPU: which pieces run, for how long, and a rehearsal of all on the CPU."""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PRESETS, STRUCTURES, write_corpus
from tests.docs.commands import parse

ROOT = Path(__file__).parents[2]


@pytest.fixture
def campaign(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "gpu"))
    yield __import__("campaign")
    del sys.modules["campaign"]


def python(campaign: Any, name: str, code: str, seconds: float = 60, **more: Any) -> Any:
    """A piece that runs Python code."""
    return campaign.Piece(name, [sys.executable, "-S", "-c", code], seconds / 60, **more)


def statuses(folder: Path) -> dict[str, str]:
    known = json.loads((folder / "campaign.json").read_text())["pieces"]
    return {name: state["status"] for name, state in known.items()}


def start(*words: object) -> "subprocess.CompletedProcess[str]":
    """Start the script."""
    return subprocess.run(
        ["bash", ROOT / "benchmarks" / "gpu" / "run.sh", *words], text=True, capture_output=True,
        env={**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_a_further_start_does_only_what_is_left(campaign: Any, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    note = f"open({str(ran)!r}, 'a').write('x'); print('said')"
    chosen = [
        python(campaign, "good", note),
        python(campaign, "bad", f"{note}; raise SystemExit(3)"),
        python(campaign, "long", f"{note}; import time; time.sleep(60)", seconds=1),
    ]
    for _ in range(2):
        campaign.Campaign(tmp_path, 600).run(chosen)
        assert statuses(tmp_path) == {"good": "done", "bad": "failed", "long": "out of time"}
        assert ran.read_text() == "xxx"
    campaign.Campaign(tmp_path, 600).run(chosen[:1], again=True)
    assert ran.read_text() == "xxxx"
    known = json.loads((tmp_path / "campaign.json").read_text())["pieces"]
    assert known["good"]["said"] == ["said", "said"] and 1 <= known["long"]["seconds"] < 30
    assert (tmp_path / "logs" / "good.log").read_text() == "said\nsaid\n"


def test_a_training_goes_on_until_it_is_done(campaign: Any, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    code = (
        f"import time; file = open({str(ran)!r}, 'a+'); file.write('x'); file.flush(); "
        "time.sleep(60 if file.tell() < 3 else 0)"
    )
    training = python(campaign, "training", code, seconds=1, continues=True)
    campaign.Campaign(tmp_path, 600).run([training])
    assert ran.read_text() == "xxx" and statuses(tmp_path) == {"training": "done"}


def test_nothing_starts_without_the_time_for_it(campaign: Any, tmp_path: Path) -> None:
    short, long = (python(campaign, str(s), "print(1)", s) for s in (20, 100))
    campaign.Campaign(tmp_path, campaign.GRACE + 60).run([long, short])
    assert statuses(tmp_path) == {"20": "done"}


def test_what_a_piece_has_started_ends_with_it(
    campaign: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the piece does not react to the request to end."""
    monkeypatch.setattr(campaign, "GRACE", 0.2)
    child = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-S', '-c', "
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"{child}'import time; time.sleep(60)']); print(p.pid, flush=True); time.sleep(60)"
    )
    campaign.Campaign(tmp_path, 600).run([python(campaign, "stubborn", code, seconds=1)])
    status = Path("/proc", (tmp_path / "logs" / "stubborn.log").read_text().strip(), "stat")
    for _ in range(100):
        if not status.exists() or status.read_text().split()[2] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("the process lives")


@pytest.mark.parametrize("tiny", [False, True])
def test_every_command_is_accepted(campaign: Any, tmp_path: Path, tiny: bool) -> None:
    args = argparse.Namespace(tiny=tiny, work_dir=tmp_path, multi30k=tmp_path, en_de=tmp_path)
    pieces = campaign.pieces(args)
    assert len({piece.name for piece in pieces}) == len(pieces) > 20
    words: set[str] = set()
    for piece in pieces:
        assert re.fullmatch(r"[a-z0-9-]+", piece.name) and piece.minutes <= campaign.MOST
        words |= {*piece.command}
        if "pytest" in piece.command:
            assert (ROOT / piece.command[3]).is_file()
        else:
            parse(["python", *piece.command[1:]])
    big = {name for name in PRESETS if name.endswith(campaign.BIG)}
    assert big | {name.removesuffix(campaign.BIG) for name in big} <= words
    assert {name for name in STRUCTURES if re.search("t5_small|bart_base", name)} <= words


@pytest.mark.slow
def test_a_piece_by_name_on_the_cpu(tmp_path: Path) -> None:
    done = start("--tiny", "--only", "ops-rem-product", "--work-dir", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert statuses(tmp_path) == {"ops-rem-product": "done"}
    found = json.loads((tmp_path / "results" / "ops-rem-product.json").read_text())
    assert [row["length"] for row in found["rows"]] == [70]


def test_mistakes_are_named(tmp_path: Path) -> None:
    for words, error in (
        (["--only", "nonsense"], "--only: unknown nonsense; expected names that --list prints"),
        (["--multi30k", tmp_path], "no data-bin; give a folder that prepare.sh has made"),
    ):
        done = start(*words, "--work-dir", tmp_path)
        assert done.returncode == 2 and error in done.stderr


@pytest.mark.slow
def test_a_rehearsal_of_all_pieces(cli: Callable[..., str], tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for name in ("train", "valid", "test"):
        write_corpus(text, name, 16, lambda words: words[::-1], 1)
        for side, language in (("src", "en"), ("tgt", "de")):
            (text / f"{name}.{side}").rename(text / f"{name}.{language}")
    cli(
        "preprocess", "-s", "en", "-t", "de", "--joined-dictionary", "--trainpref", text / "train",
        "--validpref", text / "valid", "--testpref", text / "test", "--destdir", text / "data-bin",
    )  # fmt: skip
    work = tmp_path / "work"
    done = start("--tiny", "--work-dir", work, "--multi30k", text, "--en-de", text)
    logs = {log.stem: log.read_text()[-2000:] for log in (work / "logs").iterdir()}
    wrong = {name: logs[name] for name, status in statuses(work).items() if status != "done"}
    assert done.returncode == 0 and not wrong, wrong
    results = [json.loads(file.read_text()) for file in (work / "results").iterdir()]
    assert len(results) == len(logs) - 7 and all(result["rows"] for result in results)
