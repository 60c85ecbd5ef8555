"""Running fairseq's commands in this process: importing fairseq anew takes three seconds."""

import hashlib
import importlib
import io
import logging
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

import fairseq_recur

USER_DIR = str(Path(fairseq_recur.__file__).parent)
"""What a user gives to ``--user-dir``."""

SHORT = ["--max-len-b", "12"]
"""Flags of generate and interactive for translations of at most 12 words."""


def run_command(command: str, *arguments: Any, stdin: str | bytes = "") -> str:
    """Run ``fairseq-COMMAND`` with the arguments; its standard output and log as one text.

    Args:
        command: "train", "generate", "interactive", "validate", "preprocess", "hydra_train", ...
        arguments: turned into strings
        stdin: what the command reads

    Raises:
        whatever the command raises
    """
    module = importlib.import_module(f"fairseq_cli.{command}")
    argv: list[str] = [f"fairseq-{command}", *map(str, arguments)]
    output = io.StringIO()
    typed = io.TextIOWrapper(io.BytesIO(stdin if isinstance(stdin, bytes) else stdin.encode()))
    handler = logging.StreamHandler(output)
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    root.handlers, root.level = [handler], logging.INFO
    reset_command_state()
    try:
        with patch.object(sys, "argv", argv), patch.object(sys, "stdin", typed):
            with redirect_stdout(output):
                module.cli_main()
    finally:
        root.handlers, root.level = handlers, level
        reset_command_state()
    return output.getvalue()


def generate(data: Any, checkpoint: Any, *flags: Any) -> str:
    """Run ``fairseq-generate`` of a checkpoint, or of several joined with colons, on the CPU.

    Without worker processes: the next command of this process would wait five seconds for
    the end of each. And with short translations, which is enough for the tests' corpus.
    """
    return run_command(
        "generate", data, "--user-dir", USER_DIR, "--path", checkpoint, "--cpu",
        "--num-workers", 0, *SHORT, *flags,
    )  # fmt: skip


def reset_command_state() -> None:
    """Forget what fairseq keeps in its modules between two trainings of one process."""
    from fairseq import checkpoint_utils
    from fairseq.logging import metrics

    metrics.reset()
    if hasattr(checkpoint_utils.save_checkpoint, "best"):
        del checkpoint_utils.save_checkpoint.best
    train = sys.modules.get("fairseq_cli.train")
    for name in ("should_stop_early",):
        function = getattr(train, name, None)
        for attribute in ("best", "num_runs"):
            if hasattr(function, attribute):
                delattr(function, attribute)


def programs_in(folder: Path) -> Path:
    """Make a folder with the programs that an environment has, for PATH: this process's."""
    folder.mkdir(parents=True)
    for name, words in (("python", ""), ("fairseq-recur", "-m fairseq_recur ")):
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n')
        (folder / name).chmod(0o755)
    return folder


def tree(work: Path) -> dict[str, str]:
    """Every file of a preparation but its lock, with the checksum of its content."""
    return {
        str(file.relative_to(work)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(work.rglob("*"))
        if file.is_file() and file.name != ".lock"
    }


class Hypothesis(NamedTuple):
    """One H- line: its score (log2 of the probability, by length) and its words."""

    score: float
    words: str


def hypotheses(output: str) -> dict[int, list[Hypothesis]]:
    """The H- lines of generate and interactive, by the sentence's number, in their order."""
    found: dict[int, list[Hypothesis]] = {}
    for number, score, words in re.findall(r"^H-(\d+)\t([^\t\n]+)\t(.*)$", output, re.M):
        found.setdefault(int(number), []).append(Hypothesis(float(score), words))
    return found


def token_scores(output: str) -> dict[int, list[float]]:
    """The P- lines of generate: the score of each word of the best hypothesis."""
    lines = re.findall(r"^P-(\d+)\t(.*)$", output, re.M)
    return {int(number): [float(score) for score in scores.split()] for number, scores in lines}


UNUSED = re.compile(
    r"(^encoder\.layers\.\d+\.(in_proj|out_proj|fc[12])_(weight|bias)|\._float_tensor)$"
)
"""What fairseq 0.12.2 has beside its weights: copies for a fast path, a buffer never filled."""


def weights(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A model's parameters or state without what only fairseq 0.12.2 has and none computes with."""
    return {name: w for name, w in state.items() if not UNUSED.search(name)}


def saved_weights(checkpoint: Any) -> dict[str, Tensor]:
    """A checkpoint's weights."""
    return weights(torch.load(checkpoint, weights_only=True)["model"])


def saved(folder: Path) -> dict[str, Any]:
    """The last checkpoint's weights and optimizer state."""
    checkpoint = folder / "checkpoint_last.pt"
    optimizer = torch.load(checkpoint, weights_only=True)["last_optimizer_state"]
    return {"model": saved_weights(checkpoint), "optimizer": optimizer}


def assert_identical(found: Any, expected: Any, where: str = "") -> None:
    """Equal to the last bit, tensors in nested dictionaries and lists."""
    assert type(found) is type(expected), where
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key in expected:
            assert_identical(found[key], expected[key], f"{where}/{key}")
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), where
        for i, (one, other) in enumerate(zip(found, expected)):
            assert_identical(one, other, f"{where}/{i}")
    elif isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype and torch.equal(found, expected), where
    else:
        assert found == expected, where


def update_losses(output: str) -> dict[int, float]:
    """The loss of each update, from a log of ``--log-format simple --log-interval 1``."""
    lines = re.findall(r"\bepoch \d+: .*\bloss=([-\w.]+),.*\bnum_updates=(\d+)", output, re.M)
    return {int(update): float(loss) for loss, update in lines}


def assert_half_precision_resumes(
    train: Callable[[str, int], dict[int, float]], folder: Path
) -> None:
    """A training of six updates in float16 equals one that was stopped after three.

    Args:
        train: trains in a folder below *folder* up to an update, and returns its losses by update
        folder: of both trainings
    """
    losses = train("once", 6)
    assert [*train("two", 3)] == [1, 2, 3]
    assert train("two", 6) == {n: losses[n] for n in (4, 5, 6)}
    once = saved(folder / "once")
    assert_identical(saved(folder / "two"), once)
    floats = [x for x in once["model"].values() if x.is_floating_point()]
    assert all(torch.equal(x.half().float(), x) for x in floats)  # fairseq saves them as float32
