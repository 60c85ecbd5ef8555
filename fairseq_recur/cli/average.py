"""Average the parameters of several checkpoints of one training.

The output takes its settings from the first input, holds no optimizer state, and loads
wherever a checkpoint is decoded, validated or fine-tuned.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fairseq_recur import compat
from fairseq_recur.errors import CheckpointError, ConfigError
from fairseq_recur.files import whole_file

HELP = "average the parameters of checkpoints"

EPOCH = re.compile(r"checkpoint(\d+)\.pt")
UPDATE = re.compile(r"checkpoint_\d+_(\d+)\.pt")

SHOWN = 5  # parameters named in an error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `average`."""
    parser.add_argument(
        "--inputs",
        nargs="+",
        required=True,
        metavar="PATH",
        help="checkpoints; or one folder, of which --last takes the newest",
    )
    parser.add_argument("--output", required=True, metavar="FILE", help="where to write")
    parser.add_argument(
        "--last",
        type=int,
        metavar="N",
        help="with a folder: the N newest checkpointE.pt, by epoch E",
    )
    parser.add_argument(
        "--updates",
        action="store_true",
        help="with --last: take the checkpoint_E_U.pt instead, by update U",
    )
    parser.add_argument(
        "--checkpoint-upper-bound",
        type=int,
        metavar="U",
        help="with --last: none newer than this epoch (with --updates: this update)",
    )


def run(args: argparse.Namespace) -> int:
    """Choose the inputs, average them, write the output."""
    files = choose_inputs(args.inputs, args.last, args.updates, args.checkpoint_upper_bound)
    output = Path(args.output)
    if output.is_dir():
        raise ConfigError(f"--output {output} is a folder; expected the name of a file")
    state = average_checkpoints(files)
    with whole_file(output) as file:
        torch.save(state, file)
    print(f"{output}: average of {len(files)} checkpoints")
    for file in files:
        print(f"  {file}")
    return 0


def choose_inputs(
    inputs: Sequence[str],
    last: int | None = None,
    updates: bool = False,
    upper_bound: int | None = None,
) -> list[Path]:
    """Return the checkpoint files to average, the newest first where a folder was given.

    Raises ConfigError if a file is absent, if the folder has fewer than `last` checkpoints,
    or if the options do not go together.
    """
    paths = [Path(item) for item in inputs]
    folders = [path for path in paths if path.is_dir()]
    if folders and len(paths) > 1:
        raise ConfigError(f"--inputs has the folder {folders[0]} among others; give it alone")
    if not folders:
        if last is not None or updates or upper_bound is not None:
            absent = ", which does not exist; give a folder"
            there = "; leave them out" if paths[0].exists() else absent
            raise ConfigError(
                "--last, --updates and --checkpoint-upper-bound choose from a folder, "
                f"but --inputs is {paths[0]}{there}"
            )
        lost = [str(path) for path in paths if not path.is_file()]
        if lost:
            raise ConfigError(
                f"no such checkpoint: {', '.join(lost)}; give files that are there, or a folder"
            )
        return paths
    if last is None or last < 1:
        raise ConfigError(f"--inputs {paths[0]} is a folder: say how many with --last N (N >= 1)")
    return _newest(paths[0], last, updates, upper_bound)


def _newest(folder: Path, last: int, updates: bool, upper_bound: int | None) -> list[Path]:
    """Return the `last` newest checkpoints of a folder, the newest first."""
    pattern, shape = (UPDATE, "checkpoint_E_U.pt") if updates else (EPOCH, "checkpointE.pt")
    numbered = {}
    for file in folder.iterdir():
        match = pattern.fullmatch(file.name)
        if match and (upper_bound is None or int(match[1]) <= upper_bound):
            numbered[int(match[1])] = file
    if len(numbered) < last:
        bound = "" if upper_bound is None else f" up to {upper_bound}"
        there = ", ".join(sorted(file.name for file in folder.glob("*.pt"))) or "no *.pt at all"
        raise ConfigError(
            f"--last {last}: {folder} has {len(numbered)} of the form {shape}{bound}; "
            f"it holds {there}. Give a smaller --last"
        )
    return [numbered[number] for number in sorted(numbered, reverse=True)[:last]]


def average_checkpoints(files: Sequence[Path]) -> dict[str, Any]:
    """Average the parameters of checkpoints, one of which is in memory at a time.

    Floating-point tensors are summed in float64 and cast back to the type they have in the
    first file; all others (counters, masks) must be equal in all files.

    Returns the first file's state with the averaged parameters, without what belongs to
    its own parameters only (optimizer state, moving averages).
    Raises CheckpointError if a file cannot be read, or has other parameters than the first.
    """
    state = load(files[0])
    first = state["model"]
    sums = {name: _for_sum(tensor) for name, tensor in first.items()}
    for file in files[1:]:
        model = load(file)["model"]
        _must_match(files[0], first, file, model)
        for name, tensor in model.items():
            if tensor.is_floating_point():
                sums[name] += tensor.double()
            elif not torch.equal(tensor, first[name]):
                raise CheckpointError(
                    f"{file}: {name} ({tensor.dtype}) has other values than in {files[0]}; "
                    "only floating-point tensors can be averaged; "
                    "average checkpoints of one training"
                )
    state["model"] = {
        name: (sums[name] / len(files)).to(tensor.dtype) if tensor.is_floating_point() else tensor
        for name, tensor in first.items()
    }
    state["last_optimizer_state"] = None
    for moving_average in ("ema", "ema_fp32_params"):
        state.get("extra_state", {}).pop(moving_average, None)
    return state


def _for_sum(tensor: torch.Tensor) -> torch.Tensor:
    """A float64 copy to add to; what is not averaged is left alone."""
    return tensor.to(torch.float64, copy=True) if tensor.is_floating_point() else tensor


def load(file: Path) -> dict[str, Any]:
    """Read a checkpoint without running code from it.

    Raises CheckpointError if it is not a checkpoint of fairseq, damaged, or unsafe.
    """
    state = compat.read_checkpoint(str(file))
    if not isinstance(state["model"], dict):
        raise CheckpointError(
            f"{file}: no fairseq checkpoint: it has no parameters; "
            "give one that fairseq-train saved"
        )
    return state


def _must_match(
    first_file: Path,
    first: dict[str, torch.Tensor],
    file: Path,
    model: dict[str, torch.Tensor],
) -> None:
    """Raise CheckpointError, naming the keys, unless names and shapes are the same."""
    found = []
    for what, keys in (
        ("lacks", first.keys() - model.keys()),
        ("has in addition", model.keys() - first.keys()),
    ):
        if keys:
            names = sorted(keys)
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            found.append(f"{what} {', '.join(names[:SHOWN])}{more}")
    for name in sorted(first.keys() & model.keys()):
        if first[name].shape != model[name].shape:
            expected, shape = tuple(first[name].shape), tuple(model[name].shape)
            found.append(f"has {name} of shape {shape} instead of {expected}")
        elif first[name].is_floating_point() != model[name].is_floating_point():
            expected, dtype = first[name].dtype, model[name].dtype
            found.append(f"has {name} of type {dtype} instead of {expected}")
    if found:
        raise CheckpointError(
            f"{file} does not go with {first_file}: it {'; '.join(found[:SHOWN])}. "
            "Average checkpoints of one training"
        )
