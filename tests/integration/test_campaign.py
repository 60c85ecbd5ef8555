"""The campaign for a GPU: which pieces run, for how long, and a rehearsal of all on the CPU."""

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.expression import Expression

from tests.conftest import (
    FORECASTERS,
    LANGUAGE_MODELS,
    MEMORY_MODELS,
    PRESETS,
    STRUCTURES,
    write_corpus,
)
from tests.docs.commands import parse
from tests.integration import test_gpu

ROOT = Path(__file__).parents[2]
RUN = ROOT / "benchmarks" / "gpu" / "run.sh"
SIZES = re.compile("_(tiny|text8|enwik8)$")
"""Sizes of language models that are measured by other names: text8's has none."""


@pytest.fixture
def campaign(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "gpu"))
    yield __import__("campaign")
    del sys.modules["campaign"], sys.modules["pieces"]


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "gpu"))
    yield __import__("ready")
    del sys.modules["ready"]


def python(campaign: Any, name: str, code: str, seconds: float = 60, **more: Any) -> Any:
    """A piece that runs Python code."""
    return campaign.Piece(name, [sys.executable, "-S", "-c", code], seconds / 60, **more)


def statuses(folder: Path) -> dict[str, str]:
    known = json.loads((folder / "campaign.json").read_text())["pieces"]
    return {name: state["status"] for name, state in known.items()}


def start(*words: object, **more: str) -> "subprocess.CompletedProcess[str]":
    """Start the script, with further variables."""
    settings = {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1", **more}
    return subprocess.run(
        ["bash", RUN, *words], text=True, capture_output=True, env={**os.environ, **settings}
    )


def namespace(folder: Path, tiny: bool = False) -> argparse.Namespace:
    """Options with which all pieces exist."""
    return argparse.Namespace(tiny=tiny, work_dir=folder, multi30k=folder, en_de=folder, g2p=folder)


def test_a_further_start_does_only_the_remaining_work(campaign: Any, tmp_path: Path) -> None:
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
    campaign.Campaign(tmp_path, 600).run(chosen[:1], again=campaign.ENDS)
    assert ran.read_text() == "xxxx"
    campaign.Campaign(tmp_path, 600).run(chosen, again=["failed"])
    assert ran.read_text() == "xxxxx"
    known = json.loads((tmp_path / "campaign.json").read_text())["pieces"]
    assert known["good"]["said"] == ["said"] and 1 <= known["long"]["seconds"] < 30
    assert (tmp_path / "logs" / "good.log").read_text() == "said\nsaid\n"


def test_a_piece_that_raises_and_one_without_memory_do_not_stop_the_others(
    campaign: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of a GPU may end a process by a signal. Logs of earlier starts do not count."""
    monkeypatch.setattr(campaign, "KINDS", {"-S": "training"})
    memory = "raise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB')"
    rows = json.dumps({"rows": [{"system": "a", "tokens_per_second": [1.0], "of_first": [1.0]}]})
    good = f"open({str(tmp_path / 'results' / 'good.json')!r}, 'w').write({rows!r})"
    chosen = [
        python(campaign, "raises", "raise ValueError('no such kernel')"),
        python(campaign, "memory", memory),
        python(campaign, "killed", "import os; os.abort()"),
        python(campaign, "good", good),
        python(campaign, "late", "print(1)", 600),
    ]
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "raises.json").write_text('{"rows": [{')
    first = campaign.Campaign(tmp_path, 120)
    first.run(chosen)
    found = {"raises": "failed", "memory": "out of memory", "killed": "failed", "good": "done"}
    assert statuses(tmp_path) == found
    assert first.summary(chosen).splitlines()[-1] == "1 done, 2 failed, 1 out of memory, 1 left"
    said = re.sub(r"\d s", "0 s", first.summary(chosen))
    assert said.startswith("done: good (0 s, 1 rows)\nfailed: raises (0 s)\n")
    assert "ValueError: no such kernel\n" in said and "left: late (at most 10 minutes)\n" in said
    row = "| `a` | - | 1 (1–1) | 1.00 (1.00–1.00) | - | - |"
    assert first.tables(chosen).splitlines()[4:] == [row]
    second = campaign.Campaign(tmp_path, 120)
    second.run([python(campaign, "memory", "raise ValueError")], again=campaign.ENDS)
    assert statuses(tmp_path)["memory"] == "failed"


def test_another_command_runs_again_and_the_earlier_result_is_kept(
    campaign: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rehearsal is not the real run."""
    (tmp_path / "results").mkdir()
    file = tmp_path / "results" / "x.json"

    def piece(value: int) -> Any:
        rows = json.dumps({"rows": [{"system": value}]})
        return python(campaign, "x", f"open({str(file)!r}, 'w').write({rows!r}); print({value})")

    for value in (1, 2, 2):
        last = campaign.Campaign(tmp_path, 600)
        last.run([piece(value)])
        assert json.loads(file.read_text())["rows"] == [{"system": value}]
    kept = tmp_path / "results" / "x_before1.json"
    assert json.loads(kept.read_text())["rows"] == [{"system": 1}]
    assert statuses(tmp_path) == {"x_before1": "done", "x": "done"}
    assert (tmp_path / "logs" / "x.log").read_text() == "1\n2\n"
    assert f"the earlier results are kept in {kept}" in capsys.readouterr().out
    assert last.summary([piece(3)]).splitlines()[-1] == "1 left" and not last.result(piece(3))


@pytest.mark.slow
def test_what_a_start_cuts_short_runs_again_and_what_killed_one_runs_last(
    campaign: Any, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    slow = f"import time; open({str(ran)!r}, 'a').write('s'); time.sleep(30)"
    piece = python(campaign, "slow", slow, 2)
    for seconds, status in ((1.5, "cut short"), (600, "out of time"), (600, "out of time")):
        campaign.Campaign(tmp_path, seconds + campaign.END).run([piece])
        assert statuses(tmp_path) == {"slow": status}
    assert ran.read_text() == "ss"
    note = f"open({str(ran)!r}, 'a').write"
    chosen = [python(campaign, name, f"{note}({name!r})") for name in "abc"]
    state = {"a": {"status": "running"}, "b": {"status": "cut short"}, "c": {"status": "done"}}
    (tmp_path / "campaign.json").write_text(json.dumps({"pieces": state}))
    campaign.Campaign(tmp_path, 600).run(chosen)
    assert ran.read_text() == "ssba" and {*statuses(tmp_path).values()} == {"done"}


@pytest.mark.parametrize("damaged", ['{"pieces": {"a"', '{"pieces": {"a": 1}}', "[]", ""])
def test_a_damaged_state_is_put_aside(
    campaign: Any, tmp_path: Path, damaged: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "campaign.json").write_text(damaged)
    campaign.Campaign(tmp_path, 600).run([python(campaign, "a", "print(1)")])
    assert statuses(tmp_path) == {"a": "done"}
    assert (tmp_path / "campaign.damaged").read_text() == damaged
    assert "campaign.json is damaged" in capsys.readouterr().out


def test_a_campaign_continues_elsewhere_with_its_archive(
    campaign: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive is there while a piece runs, so that nothing is lost with the machine."""
    monkeypatch.setattr(campaign, "POLL", 0.05)
    monkeypatch.setattr(campaign, "TAIL", 5)
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    archive = tmp_path / "all.tar.gz"
    code = (
        "import os, pathlib, sys, time; print('123456789', flush=True)\n"
        "pathlib.Path('results').mkdir(); pathlib.Path('results/a.json').write_text('{}')\n"
        f"archive = {str(archive)!r}; import tarfile\n"
        "for _ in range(200):\n"
        "    time.sleep(0.05)\n"
        "    if 'results/a.json' in tarfile.open(archive).getnames(): sys.exit()\n"
        "sys.exit('not in the archive')"
    )
    monkeypatch.setattr(campaign, "ROOT", here)
    chosen = [python(campaign, "a", code), python(campaign, "b", "raise ValueError")]
    campaign.Campaign(here, 600, archive=archive).run(chosen)
    assert statuses(here) == {"a": "done", "b": "failed"}
    shutil.unpack_archive(archive, there)
    assert statuses(there) == statuses(here) and (there / "logs/a.log").read_text() == "6789\n"
    campaign.Campaign(there, 600).run(chosen[:1])  # would fail: the folder of results is there
    assert statuses(there) == statuses(here)
    full = campaign.Campaign(there, 600, archive=tmp_path / "none" / "all.tar.gz")
    full.run([python(campaign, "c", "print(1)")])
    assert statuses(there)["c"] == "done"


@pytest.mark.slow
def test_a_training_continues_until_it_is_done(campaign: Any, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    code = (
        f"import time; file = open({str(ran)!r}, 'a+'); file.write('x'); file.flush(); "
        "time.sleep(60 if file.tell() < 3 else 0)"
    )
    training = python(campaign, "training", code, seconds=1, continues=True)
    campaign.Campaign(tmp_path, 600).run([training])
    assert ran.read_text() == "xxx" and statuses(tmp_path) == {"training": "done"}


def test_nothing_starts_without_the_time_for_it(campaign: Any, tmp_path: Path) -> None:
    """Half of a piece's limit, in which most pieces end."""
    short, long = (python(campaign, str(s), "print(1)", s) for s in (100, 150))
    campaign.Campaign(tmp_path, campaign.END + 60).run([long, short])
    assert statuses(tmp_path) == {"100": "done"}


def test_what_a_piece_has_started_ends_with_it(
    campaign: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the piece does not react to the request to end."""
    monkeypatch.setattr(campaign, "END", 0.2)
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
    pieces, most = campaign.pieces(namespace(tmp_path, tiny)), sys.modules["pieces"].MOST
    assert len({piece.name for piece in pieces}) == len(pieces) >= 30
    for piece in pieces:
        assert re.fullmatch(r"[a-z0-9-]+", piece.name) and piece.minutes <= most
        if "pytest" in piece.command:
            assert (ROOT / piece.command[3]).is_file()
        else:
            parse(["python", *piece.command[1:]])
            assert piece.continues or campaign.kind_of(piece) in campaign.TABLES


@pytest.mark.parametrize("tiny", [False, True])
def test_every_architecture_is_measured(campaign: Any, tmp_path: Path, tiny: bool) -> None:
    """Of the registry: encoder-decoders at base and big size, the rest at the sizes of papers."""
    words = {word for piece in campaign.pieces(namespace(tmp_path, tiny)) for word in piece.command}
    measured = {word.split("+")[0] for word in words}
    big_size = sys.modules["pieces"].BIG
    big = {name for name in PRESETS if name.endswith(big_size)}
    assert big | {name.removesuffix(big_size) for name in big} <= measured
    assert {name for name in STRUCTURES if re.search("t5_small|bart_base", name)} <= measured
    language = {SIZES.sub("", name) for name in LANGUAGE_MODELS + MEMORY_MODELS}
    assert language | {"transformer_lm", "transformer_lm_wiki103"} <= measured
    assert {*FORECASTERS} <= measured


def test_every_test_on_the_gpu_is_in_one_piece(campaign: Any, tmp_path: Path) -> None:
    """With each precision, if it has one."""
    code = ast.parse(Path(test_gpu.__file__).read_text())
    names = [node.name for node in code.body if getattr(node, "name", "").startswith("test_")]
    chosen = [
        Expression.compile(piece.command[piece.command.index("-k") + 1])
        for piece in campaign.pieces(namespace(tmp_path)) if "-k" in piece.command
    ]  # fmt: skip
    assert len(names) > 8 and len(chosen) > 5

    def pieces_with(item: str) -> int:
        return sum(expression.evaluate(lambda word, **_: word in item) for expression in chosen)

    for name in names:
        for precision in test_gpu.PRECISIONS if name == "test_training_and_decoding" else [""]:
            assert pieces_with(f"{name}[{precision}]") == 1, (name, precision)


def test_what_the_pieces_import_is_checked(ready: Any, monkeypatch: Any) -> None:
    """All that the package needs; and what is wrong is named, all at once."""
    setup = (ROOT / "setup.py").read_text().split("install_requires=[")[1].split("],")[0]
    needed = {name.replace("-", "_") for name in re.findall(r'^ +"([\w-]+)[>=<]', setup, re.M)}
    modules = {"hydra_core": "hydra", "PyYAML": "yaml"}
    assert {modules.get(name, name) for name in needed} <= {*ready.MODULES}
    assert len(needed) > 8
    monkeypatch.setattr(ready, "MODULES", ("json", "no_such", "neither_this"))
    assert [line.split(":")[0] for line in ready.missing()] == ["no_such", "neither_this"]


def wheel(folder: Path, name: str) -> None:
    """Write the wheel of a package with one module."""
    folder.mkdir(exist_ok=True)
    about = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": f"{name}.py,,\n",
    }
    with zipfile.ZipFile(folder / f"{name}-1-py3-none-any.whl", "w") as packed:
        packed.writestr(f"{name}.py", "value = 1\n")
        for file, content in about.items():
            packed.writestr(f"{name}-1.dist-info/{file}", content)


def test_packages_come_from_wheels_without_a_network(campaign: Any, tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", "carried")
    assert campaign.install(tmp_path / "wheels", tmp_path / "packages")
    run = campaign.Campaign(tmp_path, 600, tmp_path / "packages")
    run.run([python(campaign, "a", "import carried; print(carried.value)")])
    assert statuses(tmp_path) == {"a": "done"}
    (tmp_path / "wheels" / "broken-1-py3-none-any.whl").write_text("")
    assert not campaign.install(tmp_path / "wheels", tmp_path / "packages")


def test_preparing_has_a_limit(campaign: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "PREPARATION", 0.2)
    assert not campaign.succeeds("-S", "-c", "import time; time.sleep(60)")


@pytest.mark.parametrize("version", ["3.11", "3.12"])
def test_wheels_are_pinned(tmp_path: Path, version: str) -> None:
    """Each in the version that is tested; a package without a wheel is built."""
    pip = tmp_path / "pip"
    pip.write_text(f'#!/bin/bash\necho "$@" >> {tmp_path}/calls\n[[ "$*" != *download*rouge* ]]\n')
    pip.chmod(0o755)
    script = ROOT / "benchmarks" / "gpu" / "wheels.sh"
    words = ["bash", script, tmp_path / "wheels", version, "lxml"]
    subprocess.run(words, check=True, env={**os.environ, "PYTHON": str(pip)})
    calls = (tmp_path / "calls").read_text().splitlines()
    pins = (ROOT / "requirements" / f"py{version}.txt").read_text().splitlines()
    assert {call.split()[-1] for call in calls} <= {*pins} and len(calls) > 13
    assert [call.split()[2] for call in calls if "rouge" in call] == ["download", "wheel"]
    assert "ve-fairseq==0.12.3" in calls[0] and calls[-1].split()[-1].startswith("lxml==")
    failed = subprocess.run([*words, "nonsense"], env={**os.environ, "PYTHON": str(pip)})
    assert failed.returncode == 2


@pytest.mark.slow
def test_a_piece_by_name_on_the_cpu(tmp_path: Path) -> None:
    done = start("--tiny", "--only", "ops-rem-product", "--work-dir", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert statuses(tmp_path) == {"ops-rem-product": "done"}
    found = json.loads((tmp_path / "results" / "ops-rem-product.json").read_text())
    assert [row["length"] for row in found["rows"]] == [70]
    shown = start("--summary", "--tiny", "--only", "ops-rem-product", "--work-dir", tmp_path)
    assert "| rem product | 70 | dense |" in shown.stdout and "\n1 done, 0 left" in shown.stdout


@pytest.mark.slow
def test_nothing_starts_where_nothing_can_run(tmp_path: Path) -> None:
    """No piece is then counted as failed: a further start runs it."""
    (tmp_path / "nltk.py").write_text("raise ImportError('made for another Python')")
    words = ["--tiny", "--only", "ops-birnn", "--work-dir", tmp_path / "work"]
    done = start(*words, PYTHONPATH=str(tmp_path))
    assert done.returncode == 2 and not (tmp_path / "work" / "campaign.json").exists()
    assert "nltk: ImportError: made for another Python" in done.stdout


def test_mistakes_are_named(tmp_path: Path) -> None:
    for words, error in (
        (["--only", "nonsense"], "--only: unknown nonsense; expected names that --list prints"),
        (["--multi30k", tmp_path], "no data-bin, codes, test.de; give a folder that prepare.sh"),
        (["--g2p", tmp_path / "none"], "none: no such folder; give one with LANG_train.tsv"),
        (["--wheels", tmp_path], "no wheels; give a folder that wheels.sh has made"),
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
    (text / "codes").write_text("#version: 0.2\na b\n")
    words = tmp_path / "words"
    words.mkdir()
    for name in ("train", "dev", "test"):
        (words / f"xx_{name}.tsv").write_text("ab\ta b\nba\tb a\nabba\ta b b a\n")
    work, archive = tmp_path / "work", tmp_path / "all.tar.gz"
    done = start(
        "--tiny", "--work-dir", work, "--multi30k", text, "--en-de", text, "--g2p", words,
        "--archive", archive,
    )  # fmt: skip
    logs = {log.stem: log.read_text()[-2000:] for log in (work / "logs").iterdir()}
    wrong = {name: logs[name] for name, status in statuses(work).items() if status != "done"}
    assert done.returncode == 0 and not wrong, wrong
    results = {file.stem: json.loads(file.read_text()) for file in (work / "results").iterdir()}
    assert len(results) == len([name for name in logs if "tests-" not in name]) - 3
    for name, result in results.items():
        assert f"\n{name}\n\n| " in f"\n{done.stdout}"
        assert result["rows"] and '"error"' not in json.dumps(result["rows"]), name
    with tarfile.open(archive) as packed:
        assert {f"results/{name}.json" for name in results} <= {*packed.getnames()}
