"""The regular languages through the command line, and the runner of the example."""

import fcntl
import importlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

import fairseq_recur.criterions  # noqa: F401
import fairseq_recur.tasks  # noqa: F401
from fairseq_recur.experiments import runner
from fairseq_recur.experiments.steps import LOCK
from fairseq_recur.locks import hold
from fairseq_recur.tasks import regular_languages
from fairseq_recur.tasks.strings import draw_splits
from tests.docs.commands import parse
from tests.forking import own_progress_lock
from tests.running import USER_DIR, saved_weights

Cli = Callable[..., str]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "regular_languages"

SMALL = (
    "--task regular_languages --language d_2 --train-size 80 --bin-size 20 --longest-string 30 "
    "--criterion string_accuracy --decoder-layers 1 --decoder-attention-heads 2 "
    "--decoder-embed-dim 8 --decoder-input-dim 8 --decoder-output-dim 8 "
    "--decoder-ffn-embed-dim 16 --dropout 0 --optimizer adamw_fused --lr 0.005,0.005,0.0025 "
    "--lr-scheduler fixed --batch-size 32 --valid-subset bin0,bin1 --num-workers 0 --cpu "
    "--seed 1 --log-format json --log-interval 1 --no-epoch-checkpoints"
).split()
ARCHS = {
    "transformer": ["--arch", "transformer_lm"],
    "rsa": "--arch rsa_transformer_lm --rsa-heads 1,0,0,1,0,0 --rsa-dilations 2".split(),
    **{
        name: (
            f"--arch rsa_transformer_lm --decoder-self-attention {name} "
            "--no-token-positional-embeddings"
        ).split()
        for name in ("relative", "xl")
    },
}


def results(output: str, part: str) -> dict[int, dict[str, float]]:
    """What validation on a bin logged, by epoch."""
    lines = re.findall(rf"^(\{{.*\"{part}_accuracy\".*\}})$", output, re.M)
    found = [json.loads(line) for line in lines]
    kept = ({k: float(v) for k, v in line.items() if "wps" not in k} for line in found)
    return {int(line["epoch"]): line for line in kept}


@pytest.mark.parametrize(
    "arch", [pytest.param(a, marks=() if a == "rsa" else pytest.mark.slow) for a in ARCHS]
)
def test_trains_and_resumes_as_if_never_stopped(arch: str, cli: Cli, tmp_path: Path) -> None:
    flags = ["--user-dir", USER_DIR, *ARCHS[arch], *SMALL, "--save-dir"]
    at_once = cli("train", *flags, tmp_path / "once", "--max-epoch", 3)
    cli("train", *flags, tmp_path / "two", "--max-epoch", 1)
    resumed = cli("train", *flags, tmp_path / "two", "--max-epoch", 3)
    for part in ("bin0", "bin1"):
        expected = results(at_once, part)
        assert list(expected) == [1, 2, 3]
        assert {n: expected[n] for n in (2, 3)} == results(resumed, part)
        assert all(0 <= line[f"{part}_accuracy"] <= 1 for line in expected.values())
    once, two = (saved_weights(tmp_path / name / "checkpoint_last.pt") for name in ("once", "two"))
    assert once.keys() == two.keys() and all(torch.equal(once[k], two[k]) for k in once)
    rates = {float(r) for r in re.findall(r'"lr": "([\d.]+)", "gnorm"', at_once)}
    assert rates == {0.005, 0.0025}


def test_learns(cli: Cli, tmp_path: Path) -> None:
    """In D_1, each letter determines what may follow, so every string is soon correct."""
    output = cli(
        "train", "--user-dir", USER_DIR, *ARCHS["transformer"], *SMALL, "--language", "d_1",
        "--train-size", 40, "--bin-size", 9, "--longest-string", 100, "--lr", 0.02,
        "--batch-size", 4, "--max-epoch", 6, "--no-token-positional-embeddings", "--no-save",
    )  # fmt: skip
    for part in ("bin0", "bin1"):
        last = results(output, part)[6]
        assert last[f"{part}_accuracy"] == 1 and last[f"{part}_position_accuracy"] == 1
        assert last[f"{part}_loss"] < 0.05


def test_validate_reads_a_checkpoint(cli: Cli, tmp_path: Path) -> None:
    flags = ["--user-dir", USER_DIR, *SMALL[: SMALL.index("--decoder-layers")]]
    trained = cli(
        "train", "--user-dir", USER_DIR, *ARCHS["rsa"], *SMALL, "--save-dir", tmp_path,
        "--max-epoch", 1,
    )  # fmt: skip
    again = cli(
        "validate", *flags, "--path", tmp_path / "checkpoint_last.pt", "--valid-subset", "bin1",
        "--batch-size", 7, "--cpu", "--num-workers", 0, "--log-format", "simple",
    )  # fmt: skip
    found = float(re.search(r"valid on 'bin1' subset \| loss ([\d.]+)", again)[1])
    assert found == pytest.approx(results(trained, "bin1")[1]["bin1_loss"], abs=2e-5)


def test_wrong_subset_is_refused_before_training(cli: Cli, tmp_path: Path) -> None:
    flags = ["--user-dir", USER_DIR, *ARCHS["transformer"], *SMALL, "--save-dir", tmp_path]
    with pytest.raises(ValueError, match="train, bin0, bin1, not 'valid'"):
        cli("train", *flags, "--valid-subset", "valid", "--max-epoch", 1)


# The runner ---------------------------------------------------------------------------

# Replaces fairseq-recur: each call trains from the last epoch on, or fails.
PROGRAM = """#!{python}
import json, os, pathlib, sys, time
words = dict(zip(sys.argv, sys.argv[1:]))
folder = pathlib.Path(words["--save-dir"])
with open(folder / "calls", "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + chr(10))
if words["--language"] == os.environ.get("FAILS"):
    sys.exit("fairseq stumbled")
done = folder / "epochs"
first = int(done.read_text()) + 1 if done.exists() else 1
for epoch in range(first, int(words["--max-epoch"]) + 1):
    with open(words["--log-file"], "a") as log:
        for part, value in (("bin0", 0.9 - 0.01 * epoch), ("bin1", 0.1 * epoch)):
            stats = {{"epoch": epoch, part + "_accuracy": str(value)}}
            print(json.dumps({{**stats, part + "_num_updates": str(7 * epoch)}}), file=log)
    done.write_text(str(epoch))
    if str(epoch) == os.environ.get("STOPS_AFTER"):
        (folder / "new").write_text(str(os.getpid()))
        (folder / "new").rename(folder / "waiting")
        time.sleep(60)
"""
MODULES = ("run", "report", "settings", "table")


class Example:
    """The example's modules, with a program in place of fairseq-recur."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.work, self.monkeypatch = folder / "work", monkeypatch
        program = folder / "program"
        program.write_text(PROGRAM.format(python=sys.executable))
        program.chmod(0o755)
        monkeypatch.setattr(runner, "PROGRAM", [str(program)])
        monkeypatch.setattr(runner, "POLL", 0.02)
        # The check before the first training draws strings, which takes seconds at full size.
        monkeypatch.setattr(
            regular_languages, "draw_splits", lambda language, *_: draw_splits(language, 60, 20, 50)
        )
        monkeypatch.syspath_prepend(str(EXAMPLE))
        for name in ("SEEDS", "OPTIONS", "POSITIONS", "GATE", "DILATIONS", "DEVICE"):
            monkeypatch.delenv(name, raising=False)
        for name in MODULES:
            monkeypatch.delitem(sys.modules, name, raising=False)
        self.settings = importlib.import_module("settings")
        self.run = importlib.import_module("run")

    def __call__(self, *arguments: str, **variables: Any) -> int:
        """Run run.py in this process with the variables; return its exit status."""
        small = {"LANGUAGES": "d_2 parity", "SYSTEMS": "transformer rsa_1", "EPOCHS": 3}
        with self.monkeypatch.context() as patch:
            for name, value in {"WORK": self.work, "JOBS": 2, **small, **variables}.items():
                patch.setenv(name, str(value))
            return self.run.main(list(arguments))

    def start(self, **variables: Any) -> int:
        """Run run.py in a process; return its number."""
        child = os.fork()
        if child == 0:
            status = 70
            own_progress_lock()
            try:
                status = self(**variables)
            finally:
                os._exit(status)
        return child

    def folder(self, language: str, system: str, seed: int = 1) -> Path:
        return self.work / language / system / f"seed{seed}"

    def calls(self) -> list[list[str]]:
        files = sorted(self.work.rglob("calls"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def results(self) -> dict[str, Any]:
        return json.loads((self.work / "results.json").read_text())


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Example]:
    yield Example(tmp_path, monkeypatch)
    for name in MODULES:
        sys.modules.pop(name, None)


def wait_for(path: Path) -> None:
    for _ in range(1000):
        if path.exists():
            return
        time.sleep(0.02)
    raise AssertionError(f"{path} did not appear")


def reports_waiting(example: Example) -> Path:
    """The file that runners make, from now on, once they have found a folder locked three times."""
    file, looks = example.work.parent / "waits", []

    def look(path: Path) -> Any:
        lock = hold(path)
        if lock is None:
            looks.append(path)
        if len(looks) == 3:
            file.touch()
        return lock

    example.monkeypatch.setattr(runner, "hold", look)
    return file


def exit_status(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


ONE = {"LANGUAGES": "parity", "SYSTEMS": "rsa_1"}


def test_everything_is_trained_once(example: Example, capsys: pytest.CaptureFixture[str]) -> None:
    assert example(SEEDS="1 2") == 0
    printed = capsys.readouterr().out
    assert "8 of 8 runs done, 100% of the training" in printed
    assert len(example.calls()) == 8
    report = example.results()
    result = report["runs"]["d_2"]["rsa_1"]["2"]
    assert result["bin0"] == {"max": 0.89, "last": 0.87, "epochs": [0.89, 0.88, 0.87]}
    assert result["bin1"]["max"] == result["bin1"]["last"] == pytest.approx(0.3)
    row = r"D_2 +RSA I \(5,0,0,0,0,0\) +1.00 +0.89 +0.87 +1.00 +0.30 +0.30 +2"
    assert re.search(row, printed)
    assert "D_2, RSA I (5,0,0,0,0,0), bin 1: 0.30, paper 1.00" in printed
    assert "Parity, RSA I (5,0,0,0,0,0), bin 0: " not in printed  # 0.89 is near 0.99
    assert report["settings"]["SEEDS"] == "1 2" and report["versions"]["torch"] == version("torch")
    assert "SEEDS='1 2'" in report["command"]
    page = (example.work / "results.md").read_text()
    assert "| Parity | rsa_1 | 2 | 0.8900 | 0.8700 | 0.3000 | 0.3000 |" in page

    assert example(SEEDS="1 2") == 0 and len(example.calls()) == 8
    assert "8 of them already done" in capsys.readouterr().out
    assert example("table") == 0 and len(example.calls()) == 8
    assert re.search(r"D_2 +RSA I .* 1$", capsys.readouterr().out, re.M)  # one seed of the two
    written = {name: (example.work / name).read_text() for name in ("results.md", "results.json")}
    assert example("table", OPTIONS="--language tomita_3 --rsa-heads 5,0,0,0,0,0") == 2
    said = capsys.readouterr().err
    assert "OPTIONS has --language: choose it with LANGUAGES" in said and "with SYSTEMS" in said
    assert example("table", OPTIONS="--clip-norm 1") == 0
    assert "give the variables" in capsys.readouterr().out
    assert written == {name: (example.work / name).read_text() for name in written}


def test_stopped_and_continued(example: Example, capfd: pytest.CaptureFixture[str]) -> None:
    child = example.start(STOPS_AFTER=2)
    for system in ("transformer", "rsa_1"):
        wait_for(example.folder("d_2", system) / "waiting")
    os.kill(child, signal.SIGTERM)
    assert exit_status(child) == 130 and "continues from here" in capfd.readouterr().err
    seconds = json.loads((example.folder("d_2", "rsa_1") / "state.json").read_text())["train"]
    assert seconds["seconds"] > 0 and not seconds["done"]
    assert example("table") == 0
    assert capfd.readouterr().out.startswith("\nNothing is finished with these settings; give")
    assert not (example.work / "results.json").exists()
    assert example() == 0 and "4 of 4 runs done" in capfd.readouterr().out
    log = (example.folder("d_2", "rsa_1") / "train.log").read_text()
    assert re.findall(r'"epoch": (\d), "bin1', log) == ["1", "2", "3"]


def test_more_epochs_continue_and_other_flags_start_again(
    example: Example, capsys: pytest.CaptureFixture[str]
) -> None:
    example(**ONE)
    example(**ONE, EPOCHS=5)
    log = example.folder("parity", "rsa_1") / "train.log"
    assert re.findall(r'"epoch": (\d), "bin1', log.read_text()) == list("12345")
    capsys.readouterr()
    example(**ONE)  # the first three epochs count
    assert "1 of them already done" in capsys.readouterr().out
    found = example.results()["runs"]["parity"]["rsa_1"]["1"]["bin1"]["epochs"]
    assert found == pytest.approx([0.1, 0.2, 0.3])
    example(**ONE, GATE="-1")
    assert "the settings have changed" in capsys.readouterr().out
    assert re.findall(r'"epoch": (\d), "bin1', log.read_text()) == list("123")
    assert ["--rsa-gate-init=-1" in words for words in example.calls()] == [True, False, False]
    kept = log.parents[1] / "seed1_before1" / log.name
    assert re.findall(r'"epoch": (\d), "bin1', kept.read_text()) == list("12345")


def test_a_failure_is_reported_and_the_rest_is_done(
    example: Example, capsys: pytest.CaptureFixture[str]
) -> None:
    assert example(FAILS="d_2") == 1
    printed = capsys.readouterr()
    assert "fairseq stumbled" in printed.out and "failed: d_2 rsa_1 seed 1" in printed.err
    assert "2 of 4 runs done" in printed.out and "Parity" in printed.out
    assert example() == 0


def test_a_training_that_stops_too_early_has_failed(
    example: Example, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "program").write_text("#!/bin/sh\nexit 0\n")
    assert example(**ONE) == 1
    assert "parity rsa_1 seed 1: train failed (0)" in capsys.readouterr().out


def test_it_waits_for_a_training_that_another_process_started(example: Example) -> None:
    folder = example.folder("parity", "rsa_1")
    folder.mkdir(parents=True)
    with open(folder / LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waits = reports_waiting(example)
        child = example.start(LANGUAGES="parity")
        wait_for(example.folder("parity", "transformer") / "epochs")
        wait_for(waits)
        assert os.waitpid(child, os.WNOHANG) == (0, 0) and not (folder / "calls").exists()
        fcntl.flock(lock, fcntl.LOCK_UN)
    assert exit_status(child) == 0 and (folder / "calls").exists()


def test_it_waits_for_a_training_that_outlived_its_parent(
    example: Example, capfd: pytest.CaptureFixture[str]
) -> None:
    killed = example.start(**ONE, STOPS_AFTER=2)
    folder = example.folder("parity", "rsa_1")
    wait_for(folder / "waiting")
    os.kill(killed, signal.SIGKILL)
    os.waitpid(killed, 0)
    waits = reports_waiting(example)
    child = example.start(**ONE)
    wait_for(waits)
    assert len(example.calls()) == 1 and os.waitpid(child, os.WNOHANG) == (0, 0)
    os.kill(int((folder / "waiting").read_text()), signal.SIGKILL)
    assert exit_status(child) == 0 and len(example.calls()) == 2
    assert "1 of 1 runs done" in capfd.readouterr().out


def test_wrong_settings_are_refused(example: Example, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {
        "LANGUAGES": ("tomita_4", "expected some of: d_2 d_4"),
        "SYSTEMS": ("rsa", "expected some of: transformer"),
        "SEEDS": ("one", "expected whole numbers, at least 1"),
        "EPOCHS": ("0", "expected a whole number, at least 1"),
        "POSITIONS": ("yes", "expected one of 0, 1"),
        "DEVICE": ("gpu", "expected one of cpu, cuda"),
        "JOBS": ("0", "expected a whole number, at least 1"),
        "OPTIONS": ("'--clip-norm", "No closing quotation; expected flags of fairseq-train"),
    }
    assert example(**{name: value for name, (value, _) in wrong.items()}) == 2
    heading, *lines = capsys.readouterr().err.splitlines()
    assert heading == "error: variables that cannot be used:"
    assert [line.removeprefix("- ").split("=")[0] for line in lines] == list(wrong)
    for line, (value, message) in zip(lines, wrong.values()):
        assert value in line and message in line
    unread = {"GATE": "2", "POSITIONS": "1", "DILATIONS": "3,3"}
    assert example(SYSTEMS="transformer", **unread) == 2
    assert [line.split(";")[0] for line in capsys.readouterr().err.splitlines()[1:]] == [
        "- GATE=2: has no effect without a system in SYSTEMS that has RSA's matrices",
        "- POSITIONS=1: has no effect without a system in SYSTEMS that has RSA's matrices",
        "- DILATIONS=3,3: has no effect without a system in SYSTEMS that has dilated heads",
    ]
    assert example(SYSTEMS="transformer rsa_1", **unread) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2
    assert example("tables") == 2 and "expected bash run.sh [table]" in capsys.readouterr().err
    assert not example.work.exists()


def test_the_recorded_table_can_be_made_again(example: Example) -> None:
    record = json.loads((EXAMPLE / "results/seed1.json").read_text())
    table = importlib.import_module("table")
    assert record["counts"] == table.counts(record["runs"], table.read_expected())
    added = json.loads((EXAMPLE / "results/transformer_xl.json").read_text())
    runs = {name: {**of, **added["runs"][name]} for name, of in record["runs"].items()}
    made = table.summary(runs, markdown=True)
    assert "Bin 1: 9 of 24 cells of RSA reach the paper's accuracy, 13 when rounded" in made
    recorded = (EXAMPLE / "README.md").read_text().split("| language | system | bin 0: paper")[1]
    rows = [line for line in recorded.splitlines() if re.match(r"\| (D_|Parity|Tomita)", line)][:42]
    made_rows = [line.rsplit(" |", 2)[0] + " |" for line in made.splitlines()[2:44]]
    assert made_rows == rows


def test_every_command_parses(example: Example) -> None:
    """The real parsers accept the command of each system; all languages have one."""
    settings, work = example.settings, Path("work")
    everything = list(settings.language_runs(settings.Settings(seeds=[1, 2]), work))
    assert len({run.name for run in everything}) == len(everything) == 84
    languages = {run.flags[run.flags.index("--language") + 1] for run in everything}
    assert languages == set(settings.LANGUAGES.split())
    other = settings.Settings(languages=["d_4"], positions="1", gate="-1")
    cases = list(settings.language_runs(other, work))
    for run in [cases[4], *everything[:3], everything[6]]:
        command = ["fairseq-recur", *run.argv("train")]
        parse(command)
    assert all("--cpu" in run.flags for run in everything)
    on_gpu = settings.language_runs(settings.Settings(device="cuda"), work)
    assert not any("--cpu" in run.flags for run in on_gpu)
    rates = command[command.index("--lr") + 1].split(",")
    assert len(rates) == 25
    assert [float(r) for r in (rates[4], rates[5], rates[24])] == [0.005, 0.0025, 0.0003125]
    heads = {r.system: [int(n) for n in r.flags[r.flags.index("--rsa-heads") + 1].split(",")]
             for r in everything if "--rsa-heads" in r.flags}  # fmt: skip
    expected = json.loads((EXAMPLE / "expected.json").read_text())["systems"]
    assert len(heads) == 4 and heads.keys() < expected.keys() == set(settings.SYSTEMS.split())
    maps = {r.system: r.flags[r.flags.index("--decoder-self-attention") + 1]
            for r in everything if "--decoder-self-attention" in r.flags}  # fmt: skip
    assert maps["transformer_xl"] == "xl" and maps["transformer_relative"] == "relative"
    for system, numbers in heads.items():
        assert sum(numbers) == 5
        assert f"({','.join(map(str, numbers))})" in expected[system]


def test_patterns_of_a_model(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is drawn is the recurrence of the values; the input is checked."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    patterns = importlib.import_module("patterns")
    flags = ["--user-dir", USER_DIR, *ARCHS["rsa"], *SMALL, "--add-bos-token", "--max-epoch", 1]
    cli("train", *flags, "--save-dir", tmp_path)
    checkpoint, figure = str(tmp_path / "checkpoint_last.pt"), tmp_path / "figure.png"
    assert patterns.main([checkpoint, "aabbab", "--output", str(figure)]) == 0
    assert figure.stat().st_size > 1000
    loaded = patterns.load(checkpoint, kinds=(patterns.RegularLanguagesTask,))
    model, tokens = loaded.models[0].eval(), patterns.tokens_of(loaded.task, "aabbab")
    attention = patterns.attention_of(model, 0)
    values: list[torch.Tensor] = []
    with attention.v_proj.register_forward_hook(lambda *args: values.append(args[2])):
        matrix, out = patterns.outputs(model, attention, tokens)
    assert tokens.shape == (1, 7) and matrix.shape == (2, 7, 7) and out.shape == (2, 7)
    decays, _ = attention.mixture.heads_parameters()
    for head, dilation in enumerate((1, 2)):
        state = [torch.zeros(4) for _ in range(7)]
        for t in range(dilation, 7):
            before = t - dilation
            value = values[0][before, 0].unflatten(0, (2, 4))[head]
            state[t] = decays[head] * (state[before] + value)
        expected = torch.stack([h.mean() for h in state])
        torch.testing.assert_close(out[head], expected, atol=1e-5, rtol=1e-4)
    capsys.readouterr()
    for words, said in (
        ([checkpoint, "abc"], "STRING 'abc': expected letters of d_2, a b"),
        ([checkpoint, "ab" * 31], "expected at most 60"),
        ([checkpoint, "ab", "--layer", "1"], "--layer 1: expected 0 to 0"),
        ([str(tmp_path / "none.pt"), "ab"], "no file or folder"),
    ):
        assert patterns.main([*words, "--output", str(figure)]) == 2
        assert said in capsys.readouterr().err
