"""Average the parameters of several checkpoints of one training.

The output has the configuration of the first input and no optimizer state. It can be decoded,
validated and fine-tuned like any checkpoint.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fairseq_recur.compat.checkpoint_writing import whole_checkpoint
from fairseq_recur.compat.checkpoints import refuse_nan
from fairseq_recur.errors import CheckpointError, ConfigError, first_items
from fairseq_recur.files import behind_link, check_outputs
from fairseq_recur.loading.states import read_state

EPOCH = re.compile(r"checkpoint(\d+)\.pt")
UPDATE = re.compile(r"checkpoint_\d+_(\d+)\.pt")
OF_TRAINING = re.compile(r"checkpoint(\d+|_\d+_\d+|_last|_best|\.best_.+)\.pt")
"""Names under which a training saves what it resumes from."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `average`."""
    parser.add_argument(
        "--inputs",
        nargs="+",
        required=True,
        metavar="PATH",
        help="checkpoints; or one folder, from which --last takes the newest",
    )
    parser.add_argument("--output", required=True, metavar="FILE", help="checkpoint to write")
    parser.add_argument(
        "--last",
        type=int,
        metavar="N",
        help="with a folder: average the N newest checkpointE.pt, by epoch E",
    )
    parser.add_argument(
        "--updates",
        action="store_true",
        help="with --last: use checkpoint_E_U.pt instead, by update U",
    )
    parser.add_argument(
        "--checkpoint-upper-bound",
        type=int,
        metavar="U",
        help="with --last: ignore checkpoints after this epoch (with --updates: this update)",
    )


def run(args: argparse.Namespace) -> int:
    """Select the inputs, average them, write the output."""
    files = choose_inputs(args.inputs, args.last, args.updates, args.checkpoint_upper_bound)
    output = Path(args.output)
    check_outputs(output)
    _keep_training(output, files)
    state = average_checkpoints(files)
    with whole_checkpoint(str(behind_link(output))) as stream:
        torch.save(state, stream)
    print(f"{output}: average of {len(files)} checkpoints")
    for file in files:
        print(f"  {file}, update {state['extra_state']['averaged'][str(file)]}")
    return 0


def _keep_training(output: Path, inputs: Sequence[Path]) -> None:
    """Raise ConfigError if the output would replace an input, or a checkpoint of a training.

    The average has no optimizer state, so a training could not resume from it.
    """
    if not output.exists():
        return
    if any(output.samefile(file) for file in inputs):
        raise ConfigError(f"--output {output} is one of the inputs; give another name")
    if OF_TRAINING.fullmatch(behind_link(output).name):
        raise ConfigError(
            f"--output {output} exists, and a training may resume from it, but not from an "
            "average; give another name, such as average.pt"
        )


def choose_inputs(
    inputs: Sequence[str],
    last: int | None = None,
    updates: bool = False,
    upper_bound: int | None = None,
) -> list[Path]:
    """Return the checkpoint files to average; from a folder, the newest first.

    Raises:
        ConfigError: a file is missing, the folder has fewer than `last` checkpoints, or the
            options contradict each other
    """
    paths = [Path(item) for item in inputs]
    folders = [path for path in paths if path.is_dir()]
    if folders and len(paths) > 1:
        raise ConfigError(
            f"--inputs: found the folder {folders[0]} and other paths; give only the folder"
        )
    if not folders:
        if last is not None or updates or upper_bound is not None:
            missing = ", which does not exist; give a folder"
            remedy = "; remove them" if paths[0].exists() else missing
            raise ConfigError(
                "--last, --updates and --checkpoint-upper-bound select from a folder, "
                f"but --inputs is {paths[0]}{remedy}"
            )
        lost = [str(path) for path in paths if not path.is_file()]
        if lost:
            raise ConfigError(
                f"no such checkpoint: {', '.join(lost)}; give existing files, or a folder"
            )
        return paths
    if last is None or last < 1:
        raise ConfigError(
            f"--inputs {paths[0]} is a folder; give the number of checkpoints, --last N (N >= 1)"
        )
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
        names = ", ".join(sorted(file.name for file in folder.glob("*.pt"))) or "no *.pt file"
        others, option = (EPOCH, "leave out") if updates else (UPDATE, "add")
        remedy = "Give a smaller --last" if numbered else "Name the files: --inputs FILE FILE"
        if not numbered and any(others.fullmatch(file.name) for file in folder.iterdir()):
            remedy = f"For the checkpoints that are there, {option} --updates"
        if upper_bound is not None:
            remedy = "Give a larger --checkpoint-upper-bound or a smaller --last"
        raise ConfigError(
            f"--last {last}: {folder} has {len(numbered)} files {shape}{bound}; "
            f"it contains {names}. {remedy}"
        )
    return [numbered[number] for number in sorted(numbered, reverse=True)[:last]]


def average_checkpoints(files: Sequence[Path]) -> dict[str, Any]:
    """Average the parameters of checkpoints, reading one at a time.

    Floating-point tensors are summed in float64 and cast back to their type in the first file.
    Names that share a tensor in the files, such as tied embeddings, share one in the result.
    All other tensors (counters, masks) must be equal in all files.

    Returns:
        the first file's state with the averaged parameters; its "extra_state" has "averaged", the
        updates of each file by its path; without optimizer state and moving averages, which
        belong to the first file's own parameters

    Raises:
        CheckpointError: a file cannot be read, a parameter is NaN, or its parameters differ from
            the first file's
    """
    state = read_state(files[0])
    first = state["model"]
    refuse_nan(str(files[0]), first)
    owners = _owners(first)
    sums = {name: first[name].to(torch.float64, copy=True) for name in set(owners.values())}
    updates = {str(files[0]): _updates(state)}
    for file in files[1:]:
        other = read_state(file)
        model, updates[str(file)] = other["model"], _updates(other)
        refuse_nan(str(file), model)
        _must_match(files[0], first, file, model)
        _separate(owners, sums, model)
        for name, tensor in model.items():
            if tensor.is_floating_point():
                if owners[name] == name:
                    sums[name] += tensor.double()
            elif not torch.equal(tensor, first[name]):
                raise CheckpointError(
                    f"{file}: values of {name} ({tensor.dtype}) differ from those in {files[0]}, "
                    "and only floating-point tensors can be averaged; "
                    "give checkpoints of one training"
                )
    means = {name: (total / len(files)).to(first[name].dtype) for name, total in sums.items()}
    state["model"] = {
        name: means[owners[name]] if name in owners else tensor for name, tensor in first.items()
    }
    state["last_optimizer_state"] = None
    extra = state.setdefault("extra_state", {})
    for moving_average in ("ema", "ema_fp32_params"):
        extra.pop(moving_average, None)
    extra["averaged"] = updates
    return state


def _updates(state: dict[str, Any]) -> int:
    """Return the updates of a training until a checkpoint; 0 if it does not tell."""
    history = state.get("optimizer_history") or [{}]
    return int(history[-1].get("num_updates", 0))


def _owners(model: dict[str, torch.Tensor]) -> dict[str, str]:
    """Return the first of the names that share a tensor, for each floating-point one."""
    found: dict[Any, str] = {}
    return {
        name: found.setdefault(_place(tensor), name)
        for name, tensor in model.items()
        if tensor.is_floating_point()
    }


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what two names of one tensor have in common, and no two tensors."""
    storage = tensor.untyped_storage().data_ptr()
    return storage, tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.dtype


def _separate(
    owners: dict[str, str], sums: dict[str, torch.Tensor], model: dict[str, torch.Tensor]
) -> None:
    """Give names sums of their own, in place, if their tensors differ in a further file."""
    for name, owner in owners.items():
        own, shared = model[name], model[owner]
        if _place(own) == _place(shared) or (
            own.dtype == shared.dtype and torch.equal(own, shared)
        ):
            continue
        owners[name] = name
        sums[name] = sums[owner].clone()


def _must_match(
    first_file: Path, first: dict[str, torch.Tensor], file: Path, model: dict[str, torch.Tensor]
) -> None:
    """Raise CheckpointError, naming the differences, unless names, shapes and kinds are equal."""
    found = []
    for what, keys in (
        ("lacks", first.keys() - model.keys()),
        ("adds", model.keys() - first.keys()),
    ):
        if keys:
            found.append(f"{what} {first_items(sorted(keys))}")
    for name in sorted(first.keys() & model.keys()):
        if first[name].shape != model[name].shape:
            expected, shape = tuple(first[name].shape), tuple(model[name].shape)
            found.append(f"has {name} of shape {shape} instead of {expected}")
        elif first[name].is_floating_point() != model[name].is_floating_point():
            found.append(f"has {name} of type {model[name].dtype} instead of {first[name].dtype}")
    if found:
        raise CheckpointError(
            f"{file} does not match {first_file}: it {first_items(found)}. "
            "Give checkpoints of one training"
        )
