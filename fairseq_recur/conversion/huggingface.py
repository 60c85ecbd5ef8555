"""Reading and writing folders of Hugging Face's format: config.json, weights, tokenizer.

No code from the files is run, and no file can ask for more memory than its own size.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fairseq_recur.compat.checkpoint_reading import refuse_damaged
from fairseq_recur.errors import CheckpointError, ConfigError, first_items

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "spiece.model",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
)
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")


def safetensors_torch() -> ModuleType:
    """Import the package that reads and writes safetensors.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import safetensors.torch
    except ImportError as error:
        raise ConfigError("safetensors is not installed: pip install safetensors") from error
    return safetensors.torch


@contextmanager
def damage_reported(path: Path) -> Iterator[None]:
    """Raise CheckpointError where the content of a file turns out to be malformed."""
    try:
        yield
    except (ConfigError, CheckpointError):
        raise
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{path} is damaged: {what:.200}; get the file again") from error


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file.

    Raises:
        ConfigError: there is no such file.
        CheckpointError: the file holds anything else.
    """
    if not path.is_file():
        there = ", ".join(sorted(p.name for p in path.parent.glob("*"))[:12]) or "nothing"
        raise ConfigError(
            f"no {path.name} in {path.parent}, which holds {there}; "
            "expected a model's folder in Hugging Face's format"
        )
    with damage_reported(path):
        content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is damaged: expected an object, found {content!r:.60}")
    return content


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read all weights of a folder, from one file or from shards with an index.

    BART's names come without the prefix "model.", which old files do not have either.

    Raises:
        ConfigError: there are no weights, or a shard is missing.
        CheckpointError: a file is damaged.
    """
    for name in WEIGHT_FILES:
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            weights = read_tensors(folder / name)
        elif index.is_file():
            weights = read_shards(index)
        else:
            continue
        return {name.removeprefix("model."): weight for name, weight in weights.items()}
    raise ConfigError(
        f"no weights in {folder}: expected {' or '.join(WEIGHT_FILES)}, or shards of one with its "
        "index (weights of TensorFlow or Flax cannot be read)"
    )


def read_shards(index: Path) -> dict[str, Tensor]:
    """Read the weights of all files that an index names."""
    places = read_object(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(p, str) for p in places.values()):
        raise CheckpointError(f"{index} is damaged: it has no weight_map; get the file again")
    shards = sorted({Path(place).name for place in places.values()})
    absent = [shard for shard in shards if not (index.parent / shard).is_file()]
    if absent:
        raise ConfigError(
            f"{index} names {', '.join(absent)}, but {index.parent} does not contain them; "
            "get these shards as well"
        )
    weights: dict[str, Tensor] = {}
    for shard in shards:
        weights.update(read_tensors(index.parent / shard))
    lost = sorted(places.keys() - weights.keys())
    if lost:
        raise CheckpointError(
            f"{index} names {first_items(lost)}, but no shard has these weights; "
            "get the shards again"
        )
    return weights


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Read the tensors of one file, by name."""
    safe = file.suffix == ".safetensors"
    load = safetensors_torch().load_file if safe else load_pickled
    try:
        weights = load(file)
    except CheckpointError:
        raise
    except Exception as error:  # damaged bytes raise whatever they lead to
        raise CheckpointError(
            f"{file} cannot be read: {type(error).__name__}: {error}; get the file again"
        ) from error
    if not isinstance(weights, dict) or not all(map(is_plain, weights.values())):
        raise CheckpointError(
            f"{file} holds something other than named, dense tensors; expected a model's weights"
        )
    return weights


def is_plain(weight: Any) -> bool:
    """Whether a value is a dense tensor that holds each of its elements.

    A tensor with a stride of 0 would take a few bytes in the file and any number when copied.
    """
    return (
        isinstance(weight, Tensor)
        and weight.layout is torch.strided
        and not (weight.is_meta or weight.is_quantized)
        and weight.dim() > 0
        and weight.numel() * weight.element_size() <= weight.untyped_storage().nbytes()
    )


def load_pickled(file: Path) -> Any:
    """Read what torch has saved, without running code from the file or inflating it.

    Raises:
        CheckpointError: the file is compressed, or a checksum in it is wrong.
    """
    refuse_damaged(str(file))
    return torch.load(file, map_location="cpu", weights_only=True)


def write_model(folder: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> None:
    """Write config.json and model.safetensors into an existing folder."""
    text = json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
    # safetensors refuses a tensor that two names share.
    copies = {name: weight.detach().clone().contiguous() for name, weight in weights.items()}
    file = folder / "model.safetensors"
    save = safetensors_torch().save_file
    from safetensors import SafetensorError

    try:
        save(copies, file, metadata={"format": "pt"})
    except SafetensorError as error:  # the disk is full
        raise OSError(
            f"{file.name} could not be written: {error}; make room in its folder and start again"
        ) from error


def copy_tokenizer(source: Path, target: Path) -> list[str]:
    """Copy the files of a tokenizer that exist; return their names."""
    found = [name for name in TOKENIZER_FILES if (source / name).is_file()]
    for name in found:
        shutil.copyfile(source / name, target / name)
    return found
