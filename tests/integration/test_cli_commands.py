"""The command line from text to scores, as a user types it."""

import io
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY

import fairseq_recur
from fairseq_recur.cli import main
from fairseq_recur.experiments.training_log import read_log
from tests.conftest import SMALL, TRAIN
from tests.running import reset_command_state
from tests.unit.test_cli_main import root_logger  # noqa: F401  (used by every test)

OWN = str(Path(fairseq_recur.__file__).resolve().parent)
ARCH = "transformer_biarn_tiny"
# All sentences in every fairseq, whatever their number.
DECODE = ["--cpu", "--num-workers", "0", "--required-batch-size-multiple", "1"]


def command(*arguments: Any) -> tuple[int, str, str]:
    """Run fairseq-recur in this process; return its exit status, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    reset_command_state()
    with redirect_stdout(out), redirect_stderr(err):
        status = main([str(argument) for argument in arguments])
    return status, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    """A folder with checkpoints of four epochs, and the logs in both formats, of one training."""
    folder = tmp_path_factory.mktemp("run")
    flags = [*SMALL, *TRAIN, "--max-epoch", "4", "--log-interval", "2"]
    flags += ["--encoder-self-attention", "rsa"]  # for plot checkpoint
    for form in ("json", "simple"):
        status, out, _ = command(
            "train", corpus / "bin", "--arch", ARCH, *flags, "--log-format", form,
            "--save-dir", folder, "--log-file", folder / f"{form}.file", "--restore-file", "none",
        )  # fmt: skip
        assert status == 0
        (folder / f"{form}.log").write_text(out)
    return folder


def test_real_logs_of_every_format_say_the_same(run: Path) -> None:
    logs = [read_log(run / name) for name in ("json.log", "json.file", "simple.log", "simple.file")]
    for metric in ("train_loss", "valid_loss", "valid_ppl"):
        curves = [log.curve(metric) for log in logs]
        assert len(curves[0]) >= 4 and curves.count(curves[0]) == 4, metric
    assert logs[0].curve("valid_loss")[-1][1] < logs[0].curve("valid_loss")[0][1]
    updates = logs[0].curve("valid_loss")[-1][0]
    assert logs[0].position(updates, "epoch") == pytest.approx(4, abs=0.001)
    assert logs[2].position(updates, "epoch") == 4


def test_average_decode_score(run: Path, corpus: Path, tmp_path: Path) -> None:
    average = tmp_path / "average.pt"
    status, out, _ = command("average", "--inputs", run, "--last", 3, "--output", average)
    assert status == 0 and "average of 3 checkpoints" in out
    models = [torch.load(run / f"checkpoint{n}.pt", weights_only=True)["model"] for n in (2, 3, 4)]
    state = torch.load(average, weights_only=True)
    for name, tensor in state["model"].items():
        mean = np.mean([model[name].double().numpy() for model in models], axis=0)
        np.testing.assert_array_equal(tensor.numpy(), mean.astype(np.float32))

    source, reference = corpus / "test.src", corpus / "test.tgt"
    status, generated, log = command(
        "generate", corpus / "bin", "--path", average, *DECODE, "--beam", 3, "--nbest", 2
    )
    assert status == 0 and "Translated 20 sentences" in log and " | INFO | " not in generated
    status, typed, log = command(
        "interactive", corpus / "bin", "--path", average, *DECODE, "--input", source,
        "--buffer-size", 20, "--beam", 3,
    )  # fmt: skip
    assert status == 0 and "Type the input sentence" in log
    for name, text in (("generated", generated), ("typed", typed)):
        (tmp_path / name).write_text(text)
    report = tmp_path / "scores.json"
    status, table, _ = command(
        "score", "--reference", reference, "--system", f"copy={source}",
        "--system", f"typed={tmp_path / 'typed'}", "--system", tmp_path / "generated",
        "--system", f"perfect={reference}", "--metrics", "bleu", "chrf", "--json", report,
    )  # fmt: skip
    assert status == 0 and "|tok:13a|" in table and "chrF2: nrefs:1|" in table
    systems = json.loads(report.read_text())["systems"]
    scores: dict[str, list] = {n: [s["score"] for s in of["scores"]] for n, of in systems.items()}
    assert list(systems) == ["copy", "typed", str(tmp_path / "generated"), "perfect"]
    assert scores["perfect"] == pytest.approx([100, 100])
    assert scores["typed"] == scores[str(tmp_path / "generated")]
    assert 0 < scores["copy"][1] < 100
    assert all(f"{score:.2f}" in table for of_one in scores.values() for score in of_one)


def test_validate_has_the_loss_of_training(run: Path, corpus: Path) -> None:
    status, out, _ = command(
        "validate", corpus / "bin", "--path", run / "checkpoint4.pt", "--max-tokens", 400,
        "--cpu", "--num-workers", 0, "--log-format", "json",
    )  # fmt: skip
    assert status == 0
    printed = json.loads(out[out.rindex('{"valid_loss"') :].splitlines()[0])
    assert float(printed["valid_loss"]) == read_log(run / "json.log").curve("valid_loss")[-1][1]


def test_preprocess_is_fairseqs(corpus: Path, tmp_path: Path) -> None:
    status, out, _ = command(
        "preprocess", "-s", "src", "-t", "tgt", "--joined-dictionary",
        "--trainpref", corpus / "train", "--validpref", corpus / "valid",
        "--destdir", tmp_path / "bin",
    )  # fmt: skip
    assert status == 0 and "Wrote preprocessed data" in out
    for name in ("dict.src.txt", "train.src-tgt.tgt.bin", "valid.src-tgt.src.idx"):
        assert (tmp_path / "bin" / name).read_bytes() == (corpus / "bin" / name).read_bytes()


def test_another_plugin_is_loaded_beside_this_one(corpus: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin_of_a_user"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(
        "from fairseq.models import register_model_architecture\n"
        "register_model_architecture('transformer', 'arch_of_a_user')(lambda args: None)\n"
    )
    try:
        status, out, err = command(
            "train", corpus / "bin", "--arch", "arch_of_a_user", "--user-dir", plugin,
            f"--user-dir={OWN}", *SMALL, *TRAIN, "--max-update", 1, "--no-save",
        )  # fmt: skip
        assert status == 0, err
        assert f"--user-dir {plugin} is loaded in addition to fairseq_recur" in out
        assert "num_updates 1 " in out
    finally:
        ARCH_MODEL_REGISTRY.pop("arch_of_a_user", None)


HYDRA = [
    "task=translation", "criterion=cross_entropy", "optimizer=adam", "lr_scheduler=fixed",
    "optimization.lr=[0.002]", "optimization.max_update=2", "dataset.max_tokens=400",
    "dataset.num_workers=0", "common.cpu=true", "checkpoint.no_save=true",
]  # fmt: skip


@pytest.mark.slow
def test_hydra_train_takes_presets_and_files(corpus: Path, tmp_path: Path) -> None:
    """Each runs in a separate process: hydra keeps a global state that breaks a second run."""
    (tmp_path / "mine.yaml").write_text(
        "# @package _group_\ndefaults:\n  - model: null\n  - _self_\n"
        "common: {cpu: true}\ntask: {_name: translation}\ncriterion: {_name: cross_entropy}\n"
        "optimizer: {_name: adam}\nlr_scheduler: {_name: fixed}\ncheckpoint: {no_save: true}\n"
        "optimization: {lr: [0.002], max_update: 2}\ndataset: {max_tokens: 400, num_workers: 0}\n"
        f"model: {{_name: {ARCH}}}\n"
    )
    data = os.path.relpath(corpus / "bin", tmp_path)
    for arguments in (
        [f"model={ARCH}", f"task.data={data}", *HYDRA],
        ["--config-dir", str(tmp_path), "--config-name", "mine", f"+task.data={data}"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "fairseq_recur", "hydra-train", *arguments],
            cwd=tmp_path, env=environment(), capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "(recurrence_encoder): RecurrenceEncoder" in done.stdout
        assert f"'user_dir': '{OWN}'" in done.stdout and "num_updates 2 " in done.stdout


def test_hydra_train_reports_errors_as_train_does(corpus: Path, tmp_path: Path) -> None:
    """hydra would print a traceback and leave with 1."""
    wrong = [f"model={ARCH}", "model.recurrence_layers=-3", f"task.data={corpus / 'bin'}", *HYDRA]
    done = subprocess.run(
        [sys.executable, "-m", "fairseq_recur", "hydra-train", *wrong],
        cwd=tmp_path, env={**environment(), "HYDRA_FULL_ERROR": "0"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("- --recurrence-layers -3: expected 1 to ")


def environment() -> dict[str, str]:
    """The environment of a process that finds this package and trains without other processes."""
    path = os.pathsep.join(filter(None, [str(Path(OWN).parent), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let writes beyond a size fail, as on a full disk; terminals and pipes have no size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# The largest file that is possible, and the command up to the name of its output.
WRITING = {
    "average": (99, "average --inputs {run}/checkpoint4.pt --output"),
    "convert": (99, "convert --input {t5} --output"),
    "convert back": (4096, "convert --input {t5}-fairseq/model.pt --output"),
    "convert back, at once": (99, "convert --input {t5}-fairseq/model.pt --output"),
    "plot attention": (
        99,
        "plot attention {run}/checkpoint4.pt --data {data} --source w1 --output",
    ),
    "plot checkpoint": (99, "plot checkpoint {run}/checkpoint4.pt --output"),
    "plot curves": (99, "plot curves {run}/json.log --output"),
    "score": (99, "score --reference {text} --system a={text} --json"),
}
PRINTING = {
    "interactive": "interactive {data} --path {run}/checkpoint4.pt --cpu --input {text}",
    "translate": "translate {run} {text} --data {data} --cpu",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*WRITING, *PRINTING])
def test_a_full_disk(
    name: str, run: Path, corpus: Path, folders: Callable[[str], Path], tmp_path: Path
) -> None:
    """There is one message; what was there before is intact, and nothing else is left."""
    t5 = folders("v1.0") if "convert" in name else ""
    places = {"run": run, "data": corpus / "bin", "text": corpus / "test.src", "t5": t5}
    if name in PRINTING:
        with open("/dev/full", "w") as full, redirect_stderr(io.StringIO()) as err:
            with redirect_stdout(full):
                status = main(PRINTING[name].format(**places).split())
        assert status == 2
        (said,) = [line for line in err.getvalue().splitlines() if " INFO " not in line]
        assert "No space left on device: the output; free some space" in said
        return
    size, words = WRITING[name]
    output = tmp_path / ("new" if "convert" in name else "old.png" if "plot" in name else "old")
    if output.stem == "old":
        output.write_text("as it was")
    before = list(tmp_path.iterdir())
    with largest_file(size):
        status, _, err = command(*words.format(**places).split(), output)
    assert status == 2
    (said,) = [line for line in err.splitlines() if " INFO " not in line]
    assert str(output) in said and f"{output}." not in said and "free some space" in said
    assert list(tmp_path.iterdir()) == before
    assert not before or output.read_text() == "as it was"
