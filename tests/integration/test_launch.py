"""The launchers on CPU processes: the same batch everywhere, and stops that change nothing."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import SMALL
from tests.running import saved_weights, update_losses

LAUNCH = Path(__file__).parents[2] / "scripts" / "launch"
STOPPED = 75

# An epoch has eleven updates of two hundred words or so: the fifth is in the middle of one.
BATCH = {"BATCH_TOKENS": "200", "MAX_TOKENS": "100"}
FLAGS = [
    *SMALL, *"--optimizer adam --lr 0.002 --lr-scheduler inverse_sqrt --warmup-updates 10".split(),
    *"--criterion label_smoothed_cross_entropy --label-smoothing 0.1 --dropout 0.1".split(),
    *"--seed 1 --log-format simple --log-interval 1 --num-workers 0 --save-interval 10".split(),
    *"--max-update 14 --no-epoch-checkpoints".split(),
]  # fmt: skip

PAUSING = '''
"""Before the sixth update one process waits until a test lets it go on."""
import os, time
from pathlib import Path
from fairseq.trainer import Trainer

FOLDER, RANK = Path(os.environ["PAUSE"]), os.environ.get("PAUSE_RANK", "0")
step = Trainer.train_step

def train_step(self, *args, **kwargs):
    go = FOLDER / "go"
    if self.get_num_updates() == 5 and os.environ.get("RANK", "0") == RANK and not go.exists():
        (FOLDER / "waiting.new").write_text(str(os.getpid()))
        (FOLDER / "waiting.new").rename(FOLDER / "waiting")
        while not go.exists():
            time.sleep(0.05)
    return step(self, *args, **kwargs)

Trainer.train_step = train_step
'''


def environment(**settings: str) -> dict[str, str]:
    """This process's variables without torchrun's and SLURM's, and some of the launchers'."""
    ours = {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1", **settings}
    launched = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK",
                "CUDA_VISIBLE_DEVICES")  # fmt: skip
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in launched and not name.startswith("SLURM_")
    }
    path = os.pathsep.join([str(LAUNCH.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**kept, "PYTHONPATH": path, **ours}


def launch(script: str, *arguments: Any, **settings: str) -> "subprocess.CompletedProcess[str]":
    """Run a launcher to its end."""
    command = ["bash", str(LAUNCH / script), *map(str, arguments)]
    return subprocess.run(
        command, env=environment(**settings), capture_output=True, text=True, timeout=300
    )


def printed(*arguments: str, script: str = "node.sh", **settings: str) -> list[str]:
    """The words of the command that a launcher would run."""
    done = launch(script, "DATA", *arguments, PRINT="1", **settings)
    assert done.returncode == 0, done.stderr
    return shlex.split(done.stdout)


def value(command: list[str], flag: str) -> str:
    return command[command.index(flag) + 1]


@pytest.mark.parametrize("gpus, nodes", [(1, 1), (4, 1), (8, 1), (4, 2)])
def test_the_batch_is_the_same_on_any_number_of_gpus(gpus: int, nodes: int) -> None:
    several = {"NODES": str(nodes), "RENDEZVOUS": "a:29400"} if nodes > 1 else {}
    command = printed(
        script="nodes.sh" if several else "node.sh", GPUS=str(gpus), BATCH_TOKENS="32768",
        MAX_TOKENS="4096", **several,
    )  # fmt: skip
    words = int(value(command, "--max-tokens")) * int(value(command, "--update-freq"))
    assert words * gpus * nodes == 32768
    assert ("torch.distributed.run" in command) == (gpus * nodes > 1)
    if gpus > 1:
        assert value(command, "--nproc_per_node") == str(gpus)
    if several:
        assert value(command, "--nnodes") == "2" and value(command, "--rdzv_endpoint") == "a:29400"
    if gpus * nodes == 1:
        assert value(command, "--distributed-world-size") == "1"


def test_variables_become_flags() -> None:
    command = printed(
        "--arch", "transformer", GPUS="2", BATCH_TOKENS="8192", PRECISION="bf16", DDP="legacy_ddp",
        CHECKPOINT_ACTIVATIONS="1", ADAM="torch",
    )  # fmt: skip
    assert value(command, "--ddp-backend") == "legacy_ddp"
    assert value(command, "--optimizer") == "adamw_fused"
    assert {"--bf16", "--checkpoint-activations"} <= set(command) and "--cpu" not in command
    efficient = printed(GPUS="1", PRECISION="fp16", MEMORY_EFFICIENT="1", ADAM="fairseq")
    assert "--memory-efficient-fp16" in efficient and "--fp16" not in efficient
    assert value(efficient, "--optimizer") == "adam" and "--use-old-adam" in efficient
    own = printed("--optimizer", "sgd", "--print", GPUS="0")
    assert own.count("--optimizer") == 1 and "--cpu" in own


def test_adam_is_apexs_where_it_has_its_extensions(tmp_path: Path) -> None:
    """The package of that name on the index has none."""
    (tmp_path / "apex").mkdir()
    (tmp_path / "apex" / "__init__.py").touch()
    assert value(printed(GPUS="1", PYTHONPATH=str(tmp_path)), "--optimizer") == "adamw_fused"
    (tmp_path / "amp_C.py").touch()
    assert value(printed(GPUS="1", PYTHONPATH=str(tmp_path)), "--optimizer") == "adam"


def test_everything_that_is_wrong_is_reported_at_once() -> None:
    done = launch(
        "node.sh", "DATA", "--max-tokens", "5", GPUS="three", PRECISION="fp8", DDP="fsdp",
        NODES="2", ADAM="adagrad", CHECKPOINT_ACTIVATIONS="yes",
    )  # fmt: skip
    assert done.returncode == 2 and not done.stdout
    for word in ("GPUS=three", "PRECISION=fp8", "DDP=fsdp", "ADAM=adagrad", "nodes.sh",
                 "CHECKPOINT_ACTIVATIONS=yes", "--max-tokens"):  # fmt: skip
        assert f"- {word}" in done.stderr or word in done.stderr.split("- ", 1)[1]


def test_a_batch_that_does_not_divide_names_the_tokens_that_would() -> None:
    done = launch("node.sh", "DATA", GPUS="8", BATCH_TOKENS="25000", MAX_TOKENS="4096")
    assert done.returncode == 2 and "use MAX_TOKENS=3125 (--update-freq 1)" in done.stderr
    assert value(printed(GPUS="8", BATCH_TOKENS="25000", MAX_TOKENS="3125"), "--update-freq") == "1"
    done = launch("node.sh", "DATA", GPUS="3", BATCH_TOKENS="25000", MAX_TOKENS="4096")
    assert done.returncode == 2 and "use 24999 or 25002" in done.stderr
    done = launch("nodes.sh", "DATA", GPUS="1", NODES="2", RENDEZVOUS="nowhere")
    assert done.returncode == 2 and "RENDEZVOUS=nowhere: expected host:port" in done.stderr


@pytest.mark.parametrize("batch, step, updates", [("0100", "01", "100"), ("08", "04", "2")])
def test_numbers_with_zeros_in_front_are_decimal(batch: str, step: str, updates: str) -> None:
    command = printed(GPUS="00", BATCH_TOKENS=batch, MAX_TOKENS=step)
    assert value(command, "--update-freq") == updates and "--cpu" in command
    assert value(command, "--max-tokens") == step.lstrip("0")


@pytest.mark.slow
def test_an_error_of_the_training_is_the_launchers(tmp_path: Path) -> None:
    done = launch("node.sh", tmp_path / "none", "--arch", "transformer", GPUS="0", **BATCH)
    assert done.returncode == 2 and "no data folder" in done.stderr


def test_a_fairseq_in_the_current_folder_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recipe may run in a clone of fairseq."""
    (tmp_path / "fairseq").mkdir()
    (tmp_path / "fairseq" / "__init__.py").write_text("raise RuntimeError('the clone')")
    monkeypatch.chdir(tmp_path)
    done = launch("node.sh", tmp_path / "none", "--arch", "transformer", GPUS="0", **BATCH)
    assert done.returncode == 2 and "no data folder" in done.stderr, done.stderr


@pytest.mark.parametrize(
    "number, ignored",
    [(signal.SIGUSR1, False), (signal.SIGHUP, False), (signal.SIGHUP, True)],
    ids=["USR1", "HUP", "HUP-nohup"],
)
def test_a_signal_becomes_a_request(number: signal.Signals, ignored: bool, tmp_path: Path) -> None:
    """Also that of a terminal which is closed, unless `nohup` ignores it."""
    child = (
        "touch ready; for _ in {1..400}; do "  # it ends also if the test has failed
        'if [ -e "$FAIRSEQ_RECUR_STOP/asked" ]; then exit 3; fi; sleep 0.05; done'
    )
    script = f"source {LAUNCH}/run.sh; run bash -c {shlex.quote(child)}"
    action = signal.SIG_IGN if ignored else signal.SIG_DFL  # also where the tests run under nohup
    started = subprocess.Popen(
        ["bash", "-c", script], cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, action),
    )  # fmt: skip
    while not (tmp_path / "ready").exists():
        assert started.poll() is None
        time.sleep(0.02)
    started.send_signal(number)
    if ignored:
        with pytest.raises(subprocess.TimeoutExpired):
            started.wait(1.5)
        started.send_signal(signal.SIGTERM)
    assert started.wait(30) == STOPPED


class Training:
    """A training by a launcher, in a folder, that can be paused before the sixth update."""

    def __init__(self, folder: Path, corpus: Path) -> None:
        self.folder, self.save = folder, folder / "save"
        plugin = folder / "pausing"
        plugin.mkdir(parents=True)
        (plugin / "__init__.py").write_text(PAUSING)
        self.arguments = [
            corpus / "bin", "--arch", "transformer_biarn_tiny", *FLAGS, "--save-dir", self.save,
            "--user-dir", plugin,
        ]  # fmt: skip

    def settings(self, **settings: str) -> dict[str, str]:
        return {"GPUS": "0", "PAUSE": str(self.folder), **BATCH, **settings}

    def run(self, script: str = "node.sh", **settings: str) -> str:
        """Train to the end; return the output."""
        (self.folder / "go").touch()
        done = launch(script, *self.arguments, **self.settings(**settings))
        output = done.stdout + done.stderr
        assert done.returncode == 0, output[-3000:]
        return output

    def start(self, script: str, **settings: str) -> "subprocess.Popen[str]":
        """Start, and return when a process waits."""
        log = (self.folder / "log").open("w")
        process = subprocess.Popen(
            ["bash", str(LAUNCH / script), *map(str, self.arguments)], stdout=log,
            stderr=subprocess.STDOUT, env=environment(**self.settings(**settings)), text=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # as without nohup
        )  # fmt: skip
        self.wait_for("waiting", process)
        return process

    def wait_for(self, name: str, process: "subprocess.Popen[str]") -> None:
        """Wait until the folder contains such a file."""
        end = time.monotonic() + 120
        while not (self.folder / name).exists():
            assert process.poll() is None and time.monotonic() < end, self.log()
            time.sleep(0.05)

    def release(self, process: "subprocess.Popen[str]") -> int:
        """Let it continue once the signal has had time to arrive; return its exit status."""
        time.sleep(1)
        (self.folder / "go").touch()
        return process.wait(120)

    def log(self) -> str:
        return (self.folder / "log").read_text()


def assert_same(found: Path, expected: Path) -> None:
    """The last checkpoints' parameters, to the last bit."""
    one, other = (saved_weights(folder / "checkpoint_last.pt") for folder in (found, expected))
    assert one.keys() == other.keys()
    assert [name for name in other if not torch.equal(one[name], other[name])] == []


def updates(output: str) -> list[int]:
    return list(update_losses(output))


@pytest.fixture(scope="module")
def never_stopped(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoints of an uninterrupted training with this number of processes."""
    done: dict[str, Path] = {}

    def train(processes: str) -> Path:
        if processes not in done:
            training = Training(tmp_path_factory.mktemp("never") / processes, corpus)
            output = training.run(PROCESSES=processes)
            assert set(updates(output)) == set(range(1, 15))
            done[processes] = training.save
        return done[processes]

    return train


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_stopped_equals_never_stopped(
    number: signal.Signals, corpus: Path, tmp_path: Path, never_stopped: Callable[[str], Path]
) -> None:
    """Send a signal to the launcher, as a system does that reclaims the machine."""
    training = Training(tmp_path / "stopped", corpus)
    process = training.start("node.sh")
    process.send_signal(number)
    assert training.release(process) == STOPPED, training.log()
    assert updates(training.log())[-1] == 6
    assert "after update 6: checkpoint_last.pt is saved" in training.log()
    assert [p.name for p in training.save.glob("*.pt")] == ["checkpoint_last.pt"]
    assert updates(training.run())[0] == 7
    assert_same(training.save, never_stopped("1"))


@pytest.mark.slow
def test_two_processes_stop_after_the_same_update(
    corpus: Path, tmp_path: Path, never_stopped: Callable[[str], Path]
) -> None:
    """Send a signal to only one of them."""
    training = Training(tmp_path / "stopped", corpus)
    process = training.start("node.sh", PROCESSES="2", PAUSE_RANK="1")
    os.kill(int((training.folder / "waiting").read_text()), signal.SIGTERM)
    assert training.release(process) == STOPPED, training.log()
    assert "training on 2 devices" in training.log()
    assert "due to a signal to another process, after update 6" in training.log()
    assert updates(training.run(PROCESSES="2"))[0] == 7
    assert_same(training.save, never_stopped("2"))


SRUN = """#!/usr/bin/env bash
# Start the command once for each node, and pass signals on, as srun does.
while [[ "$1" == --* ]]; do shift; done
children=()
trap 'kill -USR1 "${children[@]}"' USR1
for ((node = 0; node < SLURM_JOB_NUM_NODES; node++)); do
    SLURM_NODEID=$node "$@" &
    children+=($!)
done
worst=0
for child in "${children[@]}"; do
    status=0
    wait "$child" || status=$?
    while kill -0 "$child" 2>/dev/null; do wait "$child" && status=0 || status=$?; done
    if [ "$status" -gt "$worst" ]; then worst=$status; fi
done
exit "$worst"
"""
SCONTROL = """#!/usr/bin/env bash
case "$1" in
    show) echo localhost; echo localhost ;;
    requeue) echo "$2" >> "$(dirname "$0")/requeued" ;;
esac
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """A folder with programs of SLURM's names."""
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return tmp_path


@pytest.mark.slow
def test_slurm_queues_again_and_continues(
    corpus: Path, cluster: Path, tmp_path: Path, never_stopped: Callable[[str], Path]
) -> None:
    """Two nodes of one process each; only the batch script gets the signal."""
    training = Training(tmp_path / "job", corpus)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    slurm = {
        "PATH": f"{cluster}{os.pathsep}{os.environ['PATH']}", "SLURM_JOB_ID": "31",
        "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[1-2]", "LAUNCH": str(LAUNCH),
        "RENDEZVOUS": f"localhost:{port}", "SLURM_SUBMIT_DIR": str(tmp_path),
    }  # fmt: skip
    process = training.start("slurm.sbatch", **slurm)
    process.send_signal(signal.SIGUSR1)
    status = training.release(process)
    assert status == STOPPED, training.log()
    assert (cluster / "requeued").read_text() == "31\n"
    assert "training on 2 devices" in training.log() and "after update 6" in training.log()
    assert updates(training.run("slurm.sbatch", **slurm))[0] == 7
    assert (cluster / "requeued").read_text() == "31\n"  # a training that has ended is not
    assert_same(training.save, never_stopped("2"))


NODE = """#!/usr/bin/env bash
trap 'exit 75' USR1
echo "$SRUN_CPUS_PER_TASK" > "$LAUNCH/cores"
while true; do sleep 0.05; done
"""


@pytest.mark.parametrize("number, queued", [(signal.SIGUSR1, True), (signal.SIGTERM, False)])
def test_a_cancelled_job_is_not_queued_again(
    cluster: Path, number: signal.Signals, queued: bool
) -> None:
    """scancel sends SIGTERM; the training is saved all the same."""
    (cluster / "node.sh").write_text(NODE)
    slurm = {
        "PATH": f"{cluster}{os.pathsep}{os.environ['PATH']}", "SLURM_JOB_ID": "31",
        "SLURM_JOB_NUM_NODES": "1", "SLURM_CPUS_PER_TASK": "32", "LAUNCH": str(cluster),
    }  # fmt: skip
    process = subprocess.Popen(
        ["bash", str(LAUNCH / "slurm.sbatch"), "DATA"],
        env=environment(**slurm), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    cores = cluster / "cores"
    end = time.monotonic() + 60
    while not (cores.is_file() and cores.read_text() == "32\n"):
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == STOPPED and (cluster / "requeued").is_file() == queued
    assert ("not requeued; the same command continues" in said) != queued


@pytest.mark.parametrize("visible, count", [("0,1", 2), ("3", 1), ("GPU-a1,GPU-b2", 2)])
def test_only_visible_gpus_are_counted(tmp_path: Path, visible: str, count: int) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nfor n in 0 1 2 3; do echo GPU $n: X; done\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    given = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PRECISION": "bf16"}
    assert value(printed("--arch", "x", **given), "--nproc_per_node") == "4"
    words = printed("--arch", "x", **given, CUDA_VISIBLE_DEVICES=visible)
    assert ("--nproc_per_node" in words) == (count > 1)
    assert count == 1 or value(words, "--nproc_per_node") == str(count)
    for none in ("", "-1"):
        done = launch("node.sh", "DATA", "--arch", "x", **given, CUDA_VISIBLE_DEVICES=none)
        assert done.returncode == 2 and "GPUS is not set, and no GPU is there" in done.stderr


def test_slurm_needs_the_launchers(cluster: Path) -> None:
    done = launch("slurm.sbatch", "DATA", SLURM_JOB_ID="31", SLURM_SUBMIT_DIR=str(cluster))
    assert done.returncode == 2 and "submit from the project's folder" in done.stderr
    directives = re.findall(r"^#SBATCH --(\S+)", (LAUNCH / "slurm.sbatch").read_text(), re.M)
    assert {"signal=B:USR1@180", "requeue", "ntasks-per-node=1"} <= set(directives)
