"""How fast systems train and decode, and their memory, measured alternately."""

import math
import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments import machine
from fairseq_recur.experiments.runner import PROGRAM
from fairseq_recur.experiments.runs import SystemRun
from fairseq_recur.experiments.settings import INTERVAL, arguments
from fairseq_recur.experiments.training_log import read_log
from fairseq_recur.files import read_json, write_json

MEASURES = (("updates_per_second", "training_mib"), ("sentences_per_second", "decoding_mib"))
"""The results of training and of decoding: speed and memory."""
NOT_MEASURED = re.compile(
    "eval-|(maximize-)?best-checkpoint-metric|tensorboard-|wandb-|aim-|azureml-"
)
"""Flags of validation, and of what shows curves of a training elsewhere."""
POLL = 0.1
"""Seconds between two measurements of a process's memory."""
PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.M)
DECODED = re.compile(r"Translated [\d,]+ sentences .* \((?P<speed>[\d.]+) sentences/s")


def measure_speed(runs: Sequence[SystemRun], environment: dict[str, str]) -> None:
    """Measure the systems in several rounds; write speed.json.

    In each round every system trains for a few updates from scratch and decodes the test set
    once. Whatever slows the machine for a while then slows all systems. If speed.json holds
    measurements of the same commands, nothing is measured.

    Args:
        runs: finished runs of one experiment, one per system
        environment: environment variables of the processes

    Raises:
        ConfigError: a command fails
    """
    speed, work = runs[0].experiment.speed, runs[0].work
    assert speed is not None
    known = measured(runs)
    if known is not None and known["systems"].keys() == {run.system.name for run in runs}:
        return
    found: dict[str, dict[str, list[float]]] = {
        run.system.name: {name: [] for pair in MEASURES for name in pair} for run in runs
    }
    for turn in range(speed.repeats):
        for run in runs:
            print(f"speed, round {turn + 1} of {speed.repeats}: {run.system.name}", flush=True)
            values = found[run.system.name]
            for names, measure in zip(MEASURES, (training_speed, decoding_speed)):
                for name, value in zip(names, measure(run, environment)):
                    values[name].append(value)
    content = {
        "threads": environment["OMP_NUM_THREADS"],
        "machine": machine.machine(),
        "commit": machine.commit(),
        "key": [asdict(speed), *map(commands, runs)],
        "systems": found,
    }
    write_json(work / "speed.json", content)


def commands(run: SystemRun) -> list[str]:
    """Return the words of the commands that are measured."""
    return run.relative([*run.train_argv(), *run.generate_argv()])


def measured(runs: Sequence[SystemRun]) -> dict[str, Any] | None:
    """Return the content of speed.json, of the systems whose commands have stayed the same.

    Args:
        runs: finished ones of one experiment, with any seeds

    Returns:
        None if there is no such system, or the experiment measures no speed or another one
    """
    speed = runs[0].experiment.speed if runs else None
    content = read_json(runs[0].work / "speed.json") if runs else None
    if speed is None or content is None or content["key"][0] != asdict(speed):
        return None
    before = dict(zip(content["systems"], content["key"][1:]))
    known = [run for run in runs if run.system.name in before]
    same = {r.system.name for r in known if r.same(before[r.system.name], commands(r))}
    systems = {name: found for name, found in content["systems"].items() if name in same}
    return {**content, "systems": systems} if systems else None


def training_speed(run: SystemRun, environment: dict[str, str]) -> tuple[float, float]:
    """Train from scratch for some updates.

    Returns:
        updates per second, without the first ones, and the peak of the process's memory in MiB
    """
    speed = run.experiment.speed
    assert speed is not None
    # A line of the log is about the updates since the last one, so a part of one does not count.
    first = math.ceil(speed.warmup / INTERVAL) * INTERVAL
    log = run.work / "speed.log"
    log.unlink(missing_ok=True)
    flags = {
        **{k: v for k, v in run.train_flags().items() if not NOT_MEASURED.match(k)},
        "max-update": first + speed.updates, "max-epoch": None, "no-save": True,
        "disable-validation": True, "log-format": "json",
        "log-interval": INTERVAL, "log-file": str(log),
        "save-dir": str(run.work / "speed"),  # else it would resume from ./checkpoints
    }  # fmt: skip
    words = ["train", run.experiment.data, *run.common(), *arguments(flags)]
    peak = _call(words, environment, run.work / "speed.out")
    steps = read_log(log).steps
    # Not "ups", which fairseq rounds to two digits: words per second over words per update.
    rates = [s["wps"] / s["wpb"] for updates, s in sorted(steps.items()) if updates > first]
    return len(rates) / sum(1 / rate for rate in rates), peak


def decoding_speed(run: SystemRun, environment: dict[str, str]) -> tuple[float, float]:
    """Decode the test set.

    Returns:
        sentences per second, without loading, and the peak of the process's memory in MiB
    """
    out = run.work / "speed.out"
    peak = _call(run.generate_argv(), environment, out)
    match = DECODED.search(out.read_text(encoding="utf-8", errors="replace"))
    if match is None:
        raise ConfigError(f"{out} does not report the speed of decoding; look there for an error")
    return float(match["speed"]), peak


def _call(words: list[str], environment: dict[str, str], out: Path) -> float:
    """Run a command; its output goes to a file.

    Returns:
        the largest resident memory of its process, in MiB
    """
    with open(out, "wb") as stream:
        process = subprocess.Popen(
            [*PROGRAM, *words], stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT,
            env=environment,
        )  # fmt: skip
    peak = 0.0
    try:
        while process.poll() is None:
            peak = max(peak, _peak_mib(process.pid))
            time.sleep(POLL)
    except BaseException:
        process.kill()
        process.wait()
        raise
    if process.returncode:
        raise ConfigError(f"{' '.join(words[:2])} ended with {process.returncode}; see {out}")
    return peak


def _peak_mib(process: int) -> float:
    """Return the largest resident memory of a process until now, 0 where the system has no /proc.

    Unlike the figure of wait4, it does not include the process that started this one.
    """
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:  # it has just ended
        return 0.0
    found = PEAK.search(status)
    return int(found[1]) / 1024 if found else 0.0
